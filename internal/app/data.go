package app

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/keyward/keyward/internal/durable"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/peer"
	"github.com/keyward/keyward/journal"
)

const (
	// loadTimeout is how long a member takes no place on the ring because its disk does not deliver the journals.
	loadTimeout = 30 * time.Second
	// journalTimeout is how long a member that stops may take to write all counters.
	journalTimeout = 4 * time.Second
	// retryLoad is the least time between two attempts to load journals that could not be opened.
	retryLoad = 200 * time.Millisecond
	// searchEvery is the time between two looks for the members of the last ring.
	searchEvery = 50 * time.Millisecond
)

// data is the member's journal.
type data struct {
	keeper  *durable.Keeper // nil: none
	runner  atomic.Pointer[durable.Loop]
	ring    atomic.Pointer[durable.CompleteRing]
	loaded  context.Context // ends when the journals are loaded, or loadTimeout has passed
	end     context.CancelFunc
	missing prometheus.Gauge
	result  atomic.Pointer[durable.Recovery]
	// unopened is the number of former journals that could not be opened when this member stopped waiting for them.
	unopened atomic.Int64
	// restarted reports whether updateJournal has looked once for a restart of all members. It is guarded by the calls of
	// onView, one at a time.
	restarted bool
	status    journalStatus
}

// newData creates the member's journal if --data is set. Nothing is read or written yet.
func (m *sidecar) newData() {
	m.data.loaded, m.data.end = context.WithCancel(context.Background())
	if m.Flags.Data == "" {
		m.data.end()
		return
	}
	m.data.missing = promauto.With(m.reg).NewGauge(prometheus.GaugeOpts{
		Name: "keyward_journal_missing",
		Help: "Journals of the last ring that no member has loaded, so that limits may be exceeded by what only they contain.",
	})
	promauto.With(m.reg).NewGauge(prometheus.GaugeOpts{
		Name: "keyward_journal_max_bytes",
		Help: "The most bytes of the journal's files: --data-size.",
	}).Set(float64(m.Flags.DataSize))
	m.data.keeper = durable.New(durable.Options{
		Node: m.node,
		Journal: journal.Options{
			Dir: m.Flags.Data, Label: m.Flags.Cluster, Scheme: peer.KeyScheme, Member: m.Flags.Node, Boot: m.bootID,
			MaxBytes: int64(m.Flags.DataSize),
		},
		Apply:    m.peer.Apply,
		Ring:     m.data.ring.Load,
		Clock:    func() int64 { return int64(time.Since(m.started)) },
		OnChange: m.onJournal,
		Logger:   m.Log, Registerer: m.reg,
	})
}

// onDecided wakes the journal if a decision left something to write.
func (m *sidecar) onDecided() {
	if r := m.data.runner.Load(); r != nil {
		r.Decided()
	}
}

// loadJournals loads the journals of former boots, announces them, and starts to write this boot's.
func (m *sidecar) loadJournals(ctx context.Context) {
	d := &m.data
	late := time.AfterFunc(loadTimeout, func() {
		m.Log.Error("journals are not loaded yet; joining without them", "dir", m.Flags.Data)
		m.announceJournals(nil)
	})
	loaded := make(chan durable.Recovery, 1)
	go func() { loaded <- m.loadAll(ctx) }() // a disk that stalls does not keep the process from ending
	var res durable.Recovery
	select {
	case <-ctx.Done():
		return
	case res = <-loaded:
	}
	d.result.Store(&res)
	if d.keeper.ReservedAhead() > 0 {
		d.keeper.ChargeAhead(m.peer.Now(), !m.othersOutlived(ctx, res.Ring))
	}
	if ctx.Err() != nil {
		return
	}
	d.runner.Store(durable.Run(d.keeper, m.peer.Now, func(more durable.Recovery) { m.announceJournals(&more) }))
	m.announceJournals(&res)
	late.Stop()
}

// loadAll loads the journals of former boots. If some of them cannot be opened yet, as while their processes end, it tries
// them again for at most loadTimeout. Those of live members are not waited for.
func (m *sidecar) loadAll(ctx context.Context) durable.Recovery {
	d := &m.data
	all := d.keeper.Load(ctx, m.peer.Now)
	for m.waitsFor(&all) && d.loaded.Err() == nil {
		d.keeper.Release()
		select {
		case <-ctx.Done():
			return all
		case <-time.After(retryLoad + rand.N(retryLoad)): // members that share a directory take turns
		}
		counters := all.Counters
		all = d.keeper.Load(ctx, m.peer.Now)
		all.Counters += counters
	}
	d.unopened.Store(int64(len(all.Held)))
	if all.Hidden {
		d.unopened.Store(1)
	}
	return all
}

// waitsFor reports whether r lacks journals that are not those of live members.
func (m *sidecar) waitsFor(r *durable.Recovery) bool {
	if r.Hidden {
		return true
	}
	c := m.cluster.Load()
	if len(r.Held) > 0 && !c.Searched() {
		return true // it is not known which members are live
	}
	live := c.View().Members
	r.Held = slices.DeleteFunc(r.Held, func(boot uint64) bool {
		return slices.ContainsFunc(live, func(x membership.Member) bool { return x.BootID == boot })
	})
	return len(r.Held) > 0
}

// announceJournals announces what was loaded, and ends the state in which this member takes no place on the ring. Without
// a result, nothing is loaded yet.
func (m *sidecar) announceJournals(res *durable.Recovery) {
	var j membership.Journals
	if res != nil && res.Ring != nil {
		r := res.Ring
		j = membership.Journals{Ring: r.ID(), Size: len(r.Members), At: r.At / int64(time.Second), Loaded: res.OfRing}
	}
	if res != nil && m.data.runner.Load() != nil && res.Locked == 0 && !res.Hidden {
		m.data.unopened.Store(0)
	}
	m.cluster.Load().SetLoaded(j)
	m.data.end()
}

// updateJournal passes a new view to the journal's metrics, and records the bound of a restart of all members.
func (m *sidecar) updateJournal(v *membership.View) {
	d := &m.data
	if d.keeper == nil {
		return
	}
	missing := v.Missing + int(d.unopened.Load())
	d.missing.Set(float64(missing))
	if r := d.runner.Load(); r != nil && v.Joined {
		r.Settle()
	}
	res := d.result.Load()
	if !v.Joined || res == nil || res.Ring == nil || res.Clean || d.restarted {
		return
	}
	d.restarted = true
	if !slices.ContainsFunc(v.Members, func(x membership.Member) bool { return res.Ring.Has(x.BootID) }) {
		m.node.Restarted(m.peer.Now(), missing)
	}
}

// othersOutlived reports whether all other members of a ring, of which there is at least one, are still the same boots:
// then they have every charge that this member's last boot has acknowledged under durability: strict.
func (m *sidecar) othersOutlived(ctx context.Context, r *durable.CompleteRing) bool {
	if r == nil || len(r.Members) < 2 || len(m.Flags.Join) == 0 {
		return false
	}
	c := m.cluster.Load()
	for !c.Searched() {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(searchEvery):
		}
	}
	live := c.View().Members
	return !slices.ContainsFunc(r.Members, func(x journal.RingMember) bool {
		return x.Name != m.Flags.Node && !slices.ContainsFunc(live, func(l membership.Member) bool {
			return string(l.ID) == x.Name && l.BootID == x.Boot
		})
	})
}

// recordRing makes the journal name the ring that is complete.
func (m *sidecar) recordRing(p membership.Progress) {
	c := m.cluster.Load()
	if m.data.keeper == nil || c == nil || !p.Complete() {
		return
	}
	r := c.View().Ring
	if r.Fingerprint() != p.Ring {
		return
	}
	done := &durable.CompleteRing{At: m.peer.Now()}
	for i := range r.Len() {
		x := r.At(i)
		done.Members = append(done.Members, journal.RingMember{Name: string(x.ID), Boot: x.BootID})
	}
	if was := m.data.ring.Load(); was != nil && was.ID() == done.ID() {
		return
	}
	m.data.ring.Store(done)
	if w := m.data.runner.Load(); w != nil {
		w.RingComplete()
	}
}

// stopJournal writes all counters, if that takes no longer than journalTimeout.
func (m *sidecar) stopJournal() {
	r := m.data.runner.Load()
	if r == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), journalTimeout)
	defer cancel()
	if err := r.Stop(ctx); err != nil {
		m.Log.Error("the journal was not written completely", "error", err)
	}
}
