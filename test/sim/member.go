package sim

import (
	"fmt"
	"math"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

const (
	flushEvery  = 5 * time.Millisecond
	leaveWithin = 10 * time.Second
	joinWithin  = 4 * time.Second // a joiner waits no longer than this for its replicas and its turn
	lingering   = 500 * time.Millisecond
)

// member is one boot of a slot. It drives its node as package peer does.
type member struct {
	w           *world
	slot        int
	boot        int
	node        *owner.Node
	skew        int64
	drift       float64
	startedAt   int64
	gone        bool // crashed or left
	paused      bool
	backlog     []func() // events that a paused member processes when it resumes
	stepped     bool     // its clock was set
	clockBehind int64    // how long its clock has stopped, until it is corrected

	// From gossip.
	joined       bool
	table        []entry
	gossipedAt   int64
	ringBoots    []int
	view         *membership.View // without Ring before the first ring
	lost         map[int]int64    // slots whose member was lost without a graceful leave, and when
	farewell     map[int]int64    // slots whose member has left gracefully, and when
	pastRings    []servedRing     // adopted rings
	seq          uint64           // of its last Ping
	previousRing uint64           // fingerprint of the ring before the current one

	version      int                // of the rules
	waiting      map[*request]int64 // requests that this member's node will decide, and when it got them
	flushing     bool
	streams      map[ring.ID]*stream
	leavingSince int64 // when it began to leave

	steppingLease bool   // it is processing requests for leases
	reclaimed     uint64 // hits

	quota     *quotaBook // in worlds whose Envoys spend parts of a limit
	federated federatedMember
	layouts   *federation.LayoutSchedule // nil: it is in no federation

	// With journals.
	journaling
	seated         bool // it has met what it was to meet, and may take a place on the ring
	seatedAt       int64
	startedCluster bool  // no other member trusted its ring then
	followed       bool  // it has joined because another member was active, before it knew of all journals
	loadedAt       int64 // when it announced its journals
	trustedAt      int64 // when it trusted its ring for the first time; before, its start
	loadedVolume   bool  // it has loaded all that is on its volume
}

// stream is the connection that carries counters to one member.
type stream struct {
	at     int64 // when the last message arrives
	broken bool
}

// boot starts a member in a slot, on the ring at once or as a joiner.
func (w *world) boot(i int, first bool) {
	s := &w.slots[i]
	if w.stopping {
		w.after(500*time.Millisecond, nil, func() {
			if s.now == nil {
				w.boot(i, false)
			}
		})
		return
	}
	s.boots++
	m := &member{
		w: w, slot: i, boot: s.boots, view: &membership.View{}, startedAt: w.now, gossipedAt: w.now, joined: first, version: len(w.rules) - 1,
		table: make([]entry, len(w.slots)), ringBoots: make([]int, len(w.slots)),
		lost: map[int]int64{}, farewell: map[int]int64{},
		waiting: map[*request]int64{}, streams: map[ring.ID]*stream{},
	}
	if w.o.Skew > 0 {
		m.skew = w.rnd.Int64N(int64(w.o.Skew)) - int64(w.o.Skew)/2
	}
	m.drift = w.o.Drift * (2*w.rnd.Float64() - 1)
	keys := 1024
	if w.o.Leases.On {
		keys <<= 5 // for logs of many members
	}
	if w.o.MaxKeys > 0 {
		keys = w.o.MaxKeys
	}
	place := w.place(i, m.clock())
	m.layouts = place.Schedule
	if w.o.Quota.On {
		m.quota = newQuotaBook(m)
	}
	m.node = owner.New(owner.Options{
		Self: s.id, BootID: inst(i, s.boots), MaxKeys: keys, Policy: w.o.Policy, ProRata: !w.o.Full,
		HotRate: w.o.Leases.HotRate, Detection: w.o.detectionOf(i), DataWindow: w.o.Durable.Window,
		Federation: place,
	})
	m.node.SetRoutes(w.manualRoutes, ring.Hash)
	s.now = m
	m.table[i] = entry{boot: m.boot, state: joining, heardAt: w.now}
	w.trace("%s starts", m.name())
	w.stats.count("transition: started")
	w.after(w.randomBelow(100*time.Millisecond), m, m.tick)
	w.after(w.randomBelow(50*time.Millisecond), m, m.gossip)
	m.newJournal()
	switch {
	case w.o.Durable.On:
		m.joined = false
		w.after(seekEvery, m, m.seek)
	case first:
		// In a cluster that starts together, each member knows how many to wait for.
		m.joined = false
		w.after(100*time.Millisecond, m, m.coldStart)
	default:
		w.after(300*time.Millisecond, m, m.join)
	}
}

func (m *member) name() string { return fmt.Sprintf("%s.%d", m.w.slots[m.slot].id, m.boot) }

// do runs an event of this member, and then performs its effects.
func (m *member) do(fn func()) {
	fn()
	if m.gone {
		return
	}
	if m.node.FlushIn() == 0 {
		m.apply(m.node.Flush(m.clock()))
	}
	m.steppingLease = false
	m.scheduleRound()
	if m.node.FlushIn() < math.MaxInt64 && !m.flushing {
		m.flushing = true
		m.w.after(flushEvery, m, func() {
			m.flushing = false
			m.apply(m.node.Flush(m.clock()))
		})
	}
}

func (m *member) apply(e owner.Ready) {
	if e.ClockStopped > 0 {
		m.w.stats.count("fence: by the peers' clocks")
		m.w.trace("%s has stood still for %v", m.name(), e.ClockStopped)
		m.w.oracle.revoked(m)
	}
	for i := range e.Messages {
		if e.Messages[i].Msg.Kind == protocol.Ping {
			m.seq = e.Messages[i].Msg.Seq
		}
		m.w.send(m, &e.Messages[i])
	}
	for i := range e.Leases {
		m.w.sendLease(m, &e.Leases[i])
	}
	if len(e.PoolRequests) > 0 {
		m.w.federal.send(m, e.PoolRequests)
	}
	for i := range e.Done {
		if q, ok := e.Done[i].Waiter.(*request); ok { // not a request of sabotage
			m.resolved(q, e.Done[i].Result)
		}
	}
	m.startTransfers(e.Transfers)
	if e.ProgressChanged {
		m.recordRing()
	}
}

// tick advances the node's time.
func (m *member) tick() {
	m.beforeResumed()
	m.apply(m.node.Tick(m.clock()))
	m.w.oracle.reclaimed(m)
	m.progress()
	m.w.after(m.w.o.hastened(100*time.Millisecond+m.w.randomBelow(150*time.Millisecond)), m, m.tick)
}

func (m *member) receive(from *member, msg *protocol.Message) {
	m.w.sabotage(m, msg)
	m.w.oracle.countersArrived(m, msg)
	m.w.mixHash(uint64(m.slot), uint64(from.slot), uint64(msg.Kind), msg.Ring, msg.Seq)
	m.apply(m.node.Step(m.clock(), slotID(from.slot), inst(from.slot, from.boot), msg))
}

// startTransfers starts a stream to each of these members to which none runs.
func (m *member) startTransfers(members []ring.ID) {
	for _, to := range members {
		if m.streams[to] == nil {
			s := &stream{}
			m.streams[to] = s
			m.pump(to, s)
		}
	}
}

// pump sends the next part of a transfer. Parts arrive in order until the connection breaks.
func (m *member) pump(to ring.ID, s *stream) {
	msg, ok := m.node.Pull(m.clock(), to, nil)
	if !ok || s.broken {
		delete(m.streams, to)
		return
	}
	w := m.w
	w.stats.count(kindName(&msg))
	w.oracle.sent(m, &msg)
	if w.verbose {
		w.trace("%s => %s  %s", m.name(), to, msgText(&msg))
	}
	empty := msg.Kind == protocol.Chunk && len(msg.Counters) == 0
	if !empty && !w.healed && w.chance(w.o.Breaks) || !w.connected(m.slot, slotOf(to)) {
		w.stats.count("fault: broken stream")
		w.trace("%s => %s  breaks", m.name(), to)
		s.broken = true
	} else {
		s.at = max(s.at+1, w.now+int64(w.delay()))
		copied := copyOf(&msg)
		if !w.healed && w.chance(3*w.o.Double) {
			w.repeatMessage(m, slotOf(to), &msg)
		}
		w.deliver(m, slotOf(to), time.Duration(s.at-w.now), func(there *member) {
			if !s.broken {
				there.receive(m, copied)
			}
		})
	}
	pace := 50*time.Microsecond + w.randomBelow(time.Millisecond)
	if empty {
		pace = time.Microsecond
	}
	w.after(pace, m, func() { m.pump(to, s) })
}

// coldStart takes a place on the ring once all members that start together are known.
func (m *member) coldStart() {
	if m.w.o.Leases.Wide {
		m.meetAll()
	}
	known := 0
	for i := range m.w.slots {
		if m.live(i) {
			known++
		}
	}
	if known < m.w.o.Members && m.w.now-m.startedAt < int64(2500*time.Millisecond) {
		m.w.after(100*time.Millisecond, m, m.coldStart)
		return
	}
	m.become(active)
	m.trustRing()
}

// hasMet reports whether m knows a member on the ring, or all running members: no member starts a second cluster.
func (m *member) hasMet() bool {
	all := true
	for i := range m.w.slots {
		if i == m.slot {
			continue
		}
		if m.live(i) && m.table[i].state == active {
			return true
		}
		all = all && (m.w.slots[i].now == nil || m.live(i))
	}
	return all
}

// concurrentChanges reports whether planned changes do not wait for each other.
func (w *world) concurrentChanges() bool { return !w.o.Serial }

// myTurn reports whether all members have completed the current ring and no other member in state s precedes this
// one.
func (m *member) myTurn(s state) bool {
	if m.w.concurrentChanges() {
		return true
	}
	for i := range m.w.slots {
		if i == m.slot || !m.live(i) {
			continue
		}
		e := &m.table[i]
		if e.state == active && e.complete != m.view.Ring.Fingerprint() || i < m.slot && e.state == s ||
			e.state == leaving {
			return false
		}
	}
	return true
}

func (m *member) become(s state) {
	m.table[m.slot].state = s
	names := []string{"", "transition: joining to active", "transition: active to leaving", "transition: leaving to left"}
	m.w.stats.count(names[s])
	m.gossipToAll()
}

// leave begins to leave when this member's turn has come, or after two seconds. The last member stays: it has no
// receiver for its counters.
func (m *member) leave() {
	if m.w.o.Durable.On && (!m.joined || m.w.now-m.trustedAt < int64(unsettled)) {
		// A member that leaves during a cold start takes with it what it has loaded.
		m.w.after(100*time.Millisecond, m, m.leave)
		return
	}
	if m.leavingSince == 0 {
		m.leavingSince = m.w.now
	}
	if m.w.o.Quota.On && !m.quota.closed {
		m.quota.retire(m.leave)
		return
	}
	if m.table[m.slot].state != active || m.view.Ring.Len() < 2 || !m.myTurn(leaving) &&
		m.w.now-m.leavingSince < int64(2*time.Second) {
		if m.w.now-m.leavingSince < int64(leaveWithin) {
			m.w.after(100*time.Millisecond, m, m.leave)
		}
		return
	}
	m.w.trace("%s leaves", m.name())
	m.leavingSince = m.w.now
	m.become(leaving)
	m.update()
	m.awaitHandoff()
}

// awaitHandoff waits until the handoff is complete, lingers, and ends.
func (m *member) awaitHandoff() {
	switch {
	case m.node.Progress().HandedOff:
		m.w.after(lingering, m, func() {
			if !m.node.Progress().HandedOff {
				m.awaitHandoff()
				return
			}
			m.announceLeft()
		})
	case m.w.now-m.leavingSince > int64(leaveWithin):
		m.w.trace("%s has not handed over in time", m.name())
		m.w.stats.count("transition: left with handoff incomplete")
		m.w.crash(m)
	default:
		m.w.after(20*time.Millisecond, m, m.awaitHandoff)
	}
}

func (m *member) announceLeft() {
	m.become(left)
	m.w.trace("%s has left", m.name())
	m.w.oracle.left(m)
	m.stopJournal(m.end)
}

// end ends the process.
func (m *member) end() {
	if m.gone {
		return
	}
	m.w.oracle.checkViolations(m)
	m.gone = true
	m.kill()
	m.w.slots[m.slot].now = nil
}

// progress announces by gossip that the ring is complete at this member.
func (m *member) progress() {
	if p := m.node.Progress(); p.Complete() && m.view.Ring != nil {
		m.table[m.slot].complete = p.Ring
	}
}
