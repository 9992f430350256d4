package sim

import (
	"slices"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

const (
	gossipEvery = 200 * time.Millisecond
	deadAfter   = 3200 * time.Millisecond // of silence, with the default detection time
	leftFor     = int64(30 * time.Second) // how long a graceful leave is remembered
)

// state is the state of a member as it announces it.
type state uint8

const (
	joining state = iota
	active
	leaving
	left
)

// entry describes the newest boot of a slot, as one member knows it.
type entry struct {
	boot     int // 0: nothing is known
	state    state
	beat     uint32 // number of announcements of this boot
	complete uint64 // the last ring that is complete at this member
	peak     int    // its N_ref
	heardAt  int64  // when beat rose, in true time

	// With journals.
	loading     bool // it is loading its journals
	journals    announcement
	established bool   // it trusts its ring
	ring        uint64 // fingerprint
}

// newer reports whether e replaces o for the same slot.
func (e entry) newer(o entry) bool {
	return e.boot > o.boot || e.boot == o.boot && (e.beat > o.beat || e.state > o.state)
}

// gossip sends one round of gossip: to a live member, and to one random slot, whether a member runs there or not.
func (m *member) gossip() {
	me := &m.table[m.slot]
	me.beat++
	me.heardAt = m.w.now
	if gap := m.w.now - m.gossipedAt; gap > int64(time.Second) {
		// The member itself has paused, so it must not conclude that the others were silent.
		for i := range m.table {
			m.table[i].heardAt = min(m.w.now, m.table[i].heardAt+gap)
		}
	}
	m.gossipedAt = m.w.now
	n := len(m.w.slots)
	m.gossipTo(m.w.rnd.IntN(n))
	for i, first := 0, m.w.rnd.IntN(n); i < n; i++ {
		if j := (first + i) % n; j != m.slot && m.live(j) {
			m.gossipTo(j)
			break
		}
	}
	m.update()
	m.w.after(m.w.o.hastened(gossipEvery-20*time.Millisecond+m.w.randomBelow(40*time.Millisecond)), m, m.gossip)
}

func (m *member) gossipTo(to int) {
	if to == m.slot || !m.w.healed && m.w.chance(m.w.o.Deaf) {
		return
	}
	table := slices.Clone(m.table)
	m.w.deliver(m, to, m.w.delay(), func(there *member) { there.mergeGossip(table) })
}

// gossipToAll sends this member's state to all others at once, as a leaving member does.
func (m *member) gossipToAll() {
	m.table[m.slot].beat++
	for i := range m.w.slots {
		m.gossipTo(i)
	}
}

func (m *member) mergeGossip(table []entry) {
	for i := range table {
		in, mine := table[i], &m.table[i]
		if i == m.slot || !in.newer(*mine) {
			continue
		}
		if in.boot > mine.boot && mine.boot > 0 && mine.state != left {
			delete(m.farewell, i) // the boot in between has not left gracefully
		}
		in.heardAt = m.w.now
		if in.state == left && (mine.state != left || mine.boot != in.boot) {
			m.farewell[i] = m.w.now
		}
		*mine = in
	}
	m.update()
}

// deadAfter returns the silence after which m considers another member dead.
func (m *member) deadAfter() int64 {
	return int64(scaled(deadAfter, m.w.o.detectionOf(m.slot).OrDefault()))
}

// live reports whether the boot in slot i is considered running.
func (m *member) live(i int) bool {
	e := &m.table[i]
	return e.boot > 0 && e.state != left && (i == m.slot || m.w.now-e.heardAt < m.deadAfter())
}

// update adopts the ring and membership that follow from the table.
func (m *member) update() {
	if m.gone {
		return
	}
	boots := make([]int, len(m.w.slots))
	for i := range m.w.slots {
		if m.live(i) && m.table[i].state == active {
			boots[i] = m.table[i].boot
		}
	}
	same := slices.Equal(boots, m.ringBoots) && m.view.Ring != nil
	if same && m.newView(boots, m.view.Ring).Equal(m.view) {
		return
	}
	m.recordLost(boots)
	v := m.newView(boots, nil)
	if same {
		v.Ring = m.view.Ring
	} else {
		m.w.replayHeld(m)
		m.ringBoots, v.Ring = boots, m.w.ringOf(boots)
		m.pastRings = append(m.pastRings, servedRing{m.w.now, v.Ring})
		m.w.stats.count("transition: ring adopted")
		m.w.ringChangedAt, m.table[m.slot].ring = m.w.now, v.Ring.Fingerprint()
	}
	m.view = v
	m.w.mixHash(uint64(m.slot), v.Ring.Fingerprint(), uint64(v.NRef))
	m.w.trace("%s adopts %s, %s", m.name(), names(v.Ring), viewText(v))
	m.w.oracle.adopted(m)
	m.apply(m.node.SetMembership(m.clock(), v))
	m.w.sabotageAdoption(m)
}

// recordLost records the members that the ring has lost without a graceful leave: they may be admitting elsewhere
// until N_ref decays.
func (m *member) recordLost(boots []int) {
	for i, old := range m.ringBoots {
		if old > 0 && boots[i] == 0 && i != m.slot && m.table[i].state != left && m.table[i].state != leaving {
			m.lost[i] = m.w.now
			delete(m.farewell, i)
			m.w.stats.count("transition: member lost")
		}
	}
}

// ownNRef returns N_ref according to this member's own memory.
func (m *member) ownNRef(boots []int) int {
	n := 0
	for i := range m.w.slots {
		at, lost := m.lost[i]
		switch {
		case boots[i] > 0:
			delete(m.lost, i)
			n++
		case !lost:
		case m.table[i].state == left || m.w.now-at > int64(m.w.o.Decay):
			if m.table[i].state != left {
				m.w.oracle.decayed()
			}
			delete(m.lost, i)
		default:
			n++
		}
	}
	return n
}

// newView returns the view that follows from the table. Its members are in the order of the slots.
func (m *member) newView(boots []int, r *ring.Ring) *membership.View {
	peak := m.ownNRef(boots)
	m.table[m.slot].peak = peak
	v := &membership.View{
		Self: slotID(m.slot), BootID: inst(m.slot, m.boot), Ring: r, NRef: max(1, peak), Joined: m.joined,
	}
	for i := range m.w.slots {
		e := &m.table[i]
		if m.live(i) {
			v.NRef = max(v.NRef, e.peak)
			v.Members = append(v.Members, membership.Member{
				ID: slotID(i), BootID: inst(i, e.boot), State: membership.MemberState(e.state), Weight: weight(i),
				Detection: m.w.o.detectionOf(i), Zone: zoneOf(i, m.w.o.Zones),
			})
		}
		if at, ok := m.farewell[i]; ok && i != m.slot && m.w.now-at < leftFor {
			v.Left = append(v.Left, slotID(i))
		}
	}
	if !m.joined {
		v.NRef = max(v.NRef, m.w.o.Members)
	}
	return v
}

// servedRing is a ring that a member served to clients from a time on.
type servedRing struct {
	at   int64
	ring *ring.Ring
}
