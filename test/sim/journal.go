package sim

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/durable"
	"github.com/keyward/keyward/journal"
	"github.com/keyward/keyward/owner"
)

// The times of package durable's Loop and of internal/app, those of seconds shorter than there.
const (
	stallAfter  = 2 * time.Second
	findEvery   = 3 * time.Second // 10 s there
	findFirst   = 500 * time.Millisecond
	retryLoad   = 200 * time.Millisecond
	loadTimeout = 6 * time.Second // 30 s there
	stopTimeout = 4 * time.Second
	restFactor  = 4
)

// announcement describes the journals that a member has loaded, as it announces them.
type announcement struct {
	ring   uint64 // ID of the last ring
	size   int
	at     int64 // when it was complete, in seconds
	loaded int   // journals of its members
}

// journaling drives the journal of a member, as package durable's Loop does.
type journaling struct {
	keeper  *durable.Keeper // nil: none
	volume  *volume
	process *process
	task    *diskTask // that runs now, or nil
	ring    *durable.CompleteRing

	writing    bool // rounds are made
	roundAt    int64
	roundToken int
	sleepSince int64
	rest       int64
	kicked     bool
	locked     bool  // journals of other processes were found
	foundAt    int64 // when they were last searched for
	roundSince int64 // when the round that is going on began; 0: none is
	longest    int64 // time of a round
	stalled    int64 // since when no request waits, because a round takes too long; 0: requests wait
	idle       bool  // the last round has done nothing, and another one is due at once
	down       bool  // since the last complete generation, the journal has failed
	unreadable bool  // not all that is on the volume was loaded
	onLeave    func()
	closing    bool // it stops in good order
	clean      bool // it has
}

// newJournal creates m's journal, and loads those of former boots.
func (m *member) newJournal() {
	w := m.w
	if !w.o.Durable.On {
		return
	}
	j := &m.journaling
	m.trustedAt = w.now
	j.volume, j.roundAt = w.slots[m.slot].volume, math.MaxInt64
	j.process = m.newProcess(j.volume)
	m.table[m.slot].loading = true
	j.keeper = durable.New(durable.Options{
		Node: m.node,
		Journal: journal.Options{
			FS: j.process, Dir: journalDir, Label: "sim", Scheme: 1, Member: string(slotID(m.slot)), Boot: inst(m.slot, m.boot),
			Salt: w.rnd.Uint64, SegmentBytes: 32 << 10,
		},
		Apply: func(e owner.Ready) {
			if !m.gone && !w.over {
				m.apply(e)
			}
		},
		Ring:  func() *durable.CompleteRing { return j.ring },
		Clock: func() int64 { return w.now },
	})
	d := w.randomBelow(400 * time.Millisecond)
	w.after(loadTimeout, m, func() {
		if m.table[m.slot].loading {
			w.stats.count("journal: not loaded in time")
			m.announceJournals(announcement{}, false)
		}
	})
	w.after(d, m, m.loadJournals)
}

// loadJournals loads the journals of former boots, announces them, and starts to write this boot's.
func (m *member) loadJournals() {
	var res durable.Recovery
	m.runTask(func() {
		res = m.keeper.Load(context.Background(), m.clock)
		m.unreadable = res.Skipped > 0 || res.Hidden || m.process.dead
	}, func() {
		if m.table[m.slot].loading && m.waitsForJournals(&res) {
			m.w.stats.count("journal: held by another")
			m.keeper.Release()
			m.w.after(retryLoad+m.w.randomBelow(retryLoad), m, m.loadJournals)
			return
		}
		m.sabotageLoaded(&res)
		m.locked, m.foundAt = res.Locked > 0 || res.Hidden, m.w.now
		m.w.trace("%s has loaded %d journals on volume %d: %d counters, %d ahead, %d of ring %v, %d bad, %d locked, %d skipped",
			m.name(), res.Boots, m.volume.name, res.Counters, m.keeper.ReservedAhead(), res.OfRing, res.Ring, res.Bad, res.Locked, res.Skipped)
		if res.Bad > 0 {
			m.w.stats.count("journal: bad blocks")
		}
		if res.Boots > 0 {
			m.w.stats.count("journal: loaded")
		}
		m.chargeAhead(&res)
	})
}

// waitsForJournals reports whether res lacks journals that are not those of live members.
func (m *member) waitsForJournals(res *durable.Recovery) bool {
	if res.Hidden || len(res.Held) > 0 && !m.hasSearched() {
		return true
	}
	return slices.ContainsFunc(res.Held, func(boot uint64) bool {
		for i := range m.table {
			if m.live(i) && inst(i, m.table[i].boot) == boot {
				return false
			}
		}
		return true
	})
}

// chargeAhead charges what the journals have reserved ahead, once m knows whether the other members of their ring have
// outlived its former boot.
func (m *member) chargeAhead(res *durable.Recovery) {
	w := m.w
	if m.keeper.ReservedAhead() > 0 && res.Ring != nil && len(res.Ring.Members) > 1 && !m.hasSearched() {
		w.after(50*time.Millisecond, m, func() { m.chargeAhead(res) })
		return
	}
	if n := m.keeper.ReservedAhead(); n > 0 {
		outlived := m.othersOutlived(res.Ring)
		w.stats.count(map[bool]string{true: "journal: ahead dropped", false: "journal: ahead charged"}[outlived])
		m.keeper.ChargeAhead(m.clock(), !outlived && w.bug != bugForgetAhead)
	}
	m.keeper.Start()
	if m.locked {
		m.rest = m.searchIn()
	} else {
		m.rest = math.MaxInt64
	}
	m.writing, m.sleepSince = true, w.now
	m.announceJournals(announcementOf(res), !m.unreadable)
}

// announcementOf returns what a member announces of what it has loaded.
func announcementOf(res *durable.Recovery) (a announcement) {
	if r := res.Ring; r != nil {
		a = announcement{r.ID(), len(r.Members), r.At / int64(time.Second), res.OfRing}
	}
	return a
}

// searchIn returns the time between two searches for journals that other processes hold.
func (m *member) searchIn() int64 {
	if m.joined {
		return int64(findEvery)
	}
	return int64(findFirst)
}

// announceJournals ends the state in which m takes no place on the ring.
func (m *member) announceJournals(a announcement, loaded bool) {
	e := &m.table[m.slot]
	e.loading, e.journals = false, a
	if m.loadedAt == 0 {
		m.loadedAt = m.w.now
	}
	m.loadedVolume = m.loadedVolume || loaded
	m.gossipToAll()
}

// hasSearched reports whether m has tried to reach all other members.
func (m *member) hasSearched() bool {
	return m.w.now-m.startedAt > int64(time.Second) || m.hasMet()
}

// othersOutlived reports whether all other members of r, of which there is at least one, are still the same boots.
func (m *member) othersOutlived(r *durable.CompleteRing) bool {
	if r == nil || len(r.Members) < 2 {
		return false
	}
	for _, x := range r.Members {
		i := slotOf(x.Name)
		if i != m.slot && (!m.live(i) || inst(i, m.table[i].boot) != x.Boot) {
			return false
		}
	}
	return true
}

// recordRing makes the journal name the ring that is complete.
func (m *member) recordRing() {
	p := m.node.Progress()
	r := m.view.Ring
	if m.keeper == nil || !p.Complete() || r == nil || r.Fingerprint() != p.Ring {
		return
	}
	done := &durable.CompleteRing{At: m.clock()}
	for i := range r.Len() {
		x := r.At(i)
		done.Members = append(done.Members, journal.RingMember{Name: string(x.ID), Boot: x.BootID})
	}
	if m.ring != nil && m.ring.ID() == done.ID() {
		return
	}
	m.ring, m.kicked = done, true
}

// scheduleRound schedules the next round, which decisions may need earlier than expected.
func (m *member) scheduleRound() {
	if !m.writing || m.task != nil {
		return
	}
	in := min(m.rest, int64(m.node.JournalIn()))
	due := int64(math.MaxInt64)
	switch {
	case m.kicked:
		due = m.w.now
	case in < math.MaxInt64:
		due = max(m.w.now, m.sleepSince+in)
	}
	if m.idle { // package durable's Loop would make round after round until the journal is tried again
		due = max(due, m.w.now+int64(time.Millisecond))
	}
	if due >= m.roundAt {
		return
	}
	m.roundAt = due
	m.roundToken++
	token := m.roundToken
	m.w.after(time.Duration(due-m.w.now), m, func() {
		if token == m.roundToken && m.writing && m.task == nil {
			m.round()
		}
	})
}

// round makes one round.
func (m *member) round() {
	w, began, again := m.w, m.w.now, int64(0)
	m.roundAt, m.roundSince, m.kicked, m.process.failed, m.process.writes = math.MaxInt64, began, false, nil, 0
	w.stats.count("journal: round")
	w.after(stallAfter, m, func() {
		if m.roundSince == began && m.stalled == 0 {
			m.stalled = w.now
			w.stats.count("journal: stalled")
			w.trace("%s's journal stalls", m.name())
			m.apply(m.node.SetJournal(false))
		}
	})
	m.runTask(func() { again = m.keeper.Round(m.clock()) }, func() { m.endRound(again) })
}

// endRound processes the end of a round that has to be followed by another one within again nanoseconds, or by none.
func (m *member) endRound(again int64) {
	w, p := m.w, m.process
	took := w.now - m.roundSince
	m.idle = again > 0 && p.writes == 0 && m.node.JournalIn() == 0
	if m.idle {
		w.stats.count("journal: idle round, and another one at once")
	}
	m.longest, m.roundSince = max(m.longest, took), 0
	m.rest = math.MaxInt64
	switch {
	case again == 0:
		m.rest = restFactor * took
	case again > 0:
		m.rest = again
	}
	if m.locked {
		m.rest = min(m.rest, m.searchIn())
	}
	if p.failed != nil {
		w.stats.count("journal: failed")
		w.trace("%s's journal fails: %v", m.name(), p.failed)
		m.down = true
	} else if p.writes > 0 && again != 0 {
		m.down = false
	}
	if m.stalled != 0 {
		if m.stalled = 0; p.failed == nil {
			m.keeper.Start()
		}
	}
	m.sleepSince = w.now
	switch {
	case m.onLeave != nil:
		m.stopJournal(m.onLeave)
	case m.locked && w.now-m.foundAt >= m.searchIn():
		m.findJournals()
	default:
		m.scheduleRound()
	}
}

// findJournals loads journals that other processes held before.
func (m *member) findJournals() {
	m.foundAt = m.w.now
	var res durable.Recovery
	m.runTask(func() {
		if res = m.keeper.Load(context.Background(), m.clock); !m.process.dead {
			m.keeper.ChargeAhead(m.clock(), m.w.bug != bugForgetAhead)
		}
	}, func() {
		m.locked, m.sleepSince = res.Locked > 0 || res.Hidden, m.w.now
		if res.Boots > 0 {
			m.w.stats.count("journal: found later")
			m.kicked = true
			m.announceJournals(announcementOf(&res), m.loadedVolume)
		}
		if m.onLeave != nil {
			m.stopJournal(m.onLeave)
			return
		}
		m.scheduleRound()
	})
}

// stopJournal writes all counters, and then calls ended: also if that takes too long, or there is no journal.
func (m *member) stopJournal(ended func()) {
	if m.keeper == nil {
		ended()
		return
	}
	first := m.onLeave == nil
	m.onLeave = ended
	if first {
		m.w.after(stopTimeout, m, func() {
			m.w.stats.count("journal: not stopped in time")
			ended()
		})
	}
	if m.task != nil && m.writing {
		return // after the round
	}
	if m.task != nil { // it is loading
		ended()
		return
	}
	m.writing = false
	m.process.failed = nil
	var err error
	m.runTask(func() { err = m.keeper.Stop(m.clock()) }, func() {
		m.clean = err == nil
		m.w.trace("%s has stopped its journal: %v", m.name(), err)
		m.w.stats.count(map[bool]string{true: "journal: stopped", false: "journal: not stopped"}[m.clean])
		ended()
	})
}
