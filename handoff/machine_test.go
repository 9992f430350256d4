package handoff

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/ring"
)

const ms = int64(time.Millisecond)

// cluster is a few Machines. The test decides when their messages are delivered. Counters are not sent: transfers end
// as soon as they start.
type cluster struct {
	t        testing.TB
	now      int64
	machines map[ring.ID]*Machine
	boots    map[ring.ID]uint64
	states   map[ring.ID]membership.MemberState
	queue    []envelope
	cut      func(from, to ring.ID) bool
	lose     func(from ring.ID, t Transfer) bool // the Ack of a transfer
	watch    func(from ring.ID, outs []protocol.Outbound)
	nref     int
	left     []ring.ID

	detection map[ring.ID]membership.Detection
	old       map[ring.ID]bool // members whose version disregards the Detection of others
}

type envelope struct {
	from   ring.ID
	bootID uint64
	protocol.Outbound
}

func newCluster(t testing.TB, ids ...ring.ID) *cluster { return newClusterOf(t, nil, nil, ids...) }

// newClusterOf returns a cluster of which some members have another Detection than the default, or an old version.
func newClusterOf(t testing.TB, d map[ring.ID]membership.Detection, old map[ring.ID]bool, ids ...ring.ID) *cluster {
	c := &cluster{
		detection: d, old: old,
		t: t, now: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC).UnixNano(),
		machines: map[ring.ID]*Machine{}, boots: map[ring.ID]uint64{}, states: map[ring.ID]membership.MemberState{},
	}
	for _, id := range ids {
		c.boot(id, membership.Active)
	}
	c.nref = len(ids)
	c.adoptAll()
	c.run(3 * time.Second)
	return c
}

func (c *cluster) boot(id ring.ID, s membership.MemberState) {
	c.boots[id] += 2
	bootID := c.boots[id]<<8 | 1
	c.machines[id], c.states[id] = NewMachine(Options{Self: id, BootID: bootID, Detection: c.detection[id]}), s
}

func (c *cluster) bootID(id ring.ID) uint64 { return c.boots[id]<<8 | 1 }

func (c *cluster) ids() []ring.ID {
	var ids []ring.ID
	for id := range c.machines {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (c *cluster) ring() *ring.Ring {
	var ms []ring.Member
	for _, id := range c.ids() {
		if c.states[id] == membership.Active {
			ms = append(ms, ring.Member{ID: id, BootID: c.bootID(id), Incarnation: 1, Weight: 1})
		}
	}
	return ring.New(ms)
}

func (c *cluster) adopt(id ring.ID, r *ring.Ring) {
	v := &membership.View{
		Self: id, BootID: c.bootID(id), Ring: r, NRef: max(c.nref, r.Len()), Joined: true, Left: c.left,
	}
	for _, p := range c.ids() {
		v.Members = append(v.Members, membership.Member{ID: p, BootID: c.bootID(p), State: c.states[p], Weight: 1})
	}
	c.announce(v)
	c.send(id, c.machines[id].SetMembership(c.now, v))
}

// announce sets what the members of v have announced about their Detection, as v's own member understands it.
func (c *cluster) announce(v *membership.View) {
	for i := range v.Members {
		if v.Members[i].Detection = c.detection[v.Members[i].ID]; c.old[v.Self] {
			v.Members[i].Detection = 0
		}
	}
}

// isolate makes the members on r consider all others failed.
func (c *cluster) isolate(r *ring.Ring, nref int) {
	v := membership.View{Ring: r, NRef: nref, Joined: true}
	for i := range r.Len() {
		m := r.At(i)
		v.Members = append(v.Members, membership.Member{ID: m.ID, BootID: m.BootID, State: membership.Active, Weight: 1})
	}
	for i := range v.Members {
		mine := v
		mine.Self, mine.BootID, mine.Members = v.Members[i].ID, v.Members[i].BootID, slices.Clone(v.Members)
		c.announce(&mine)
		c.send(mine.Self, c.machines[mine.Self].SetMembership(c.now, &mine))
	}
}

func (c *cluster) adoptAll() {
	r := c.ring()
	for _, id := range c.ids() {
		c.adopt(id, r)
	}
}

func (c *cluster) send(from ring.ID, outs []protocol.Outbound) {
	if c.watch != nil {
		c.watch(from, outs)
	}
	for _, o := range outs {
		c.queue = append(c.queue, envelope{from, c.bootID(from), o})
	}
}

// pump delivers all messages and ends all transfers.
func (c *cluster) pump() {
	for range max(10_000, 100*len(c.machines)*len(c.machines)) { // every pair may exchange messages
		if len(c.queue) == 0 && !c.transfer() {
			return
		}
		if len(c.queue) == 0 {
			continue
		}
		e := c.queue[0]
		c.queue = c.queue[1:]
		if m := c.machines[e.To]; m != nil && (c.cut == nil || !c.cut(e.from, e.To)) {
			m.Contact(c.now, e.from)
			c.send(e.To, m.Step(c.now, e.from, e.bootID, &e.Msg))
		}
	}
	c.t.Fatal("messages do not end")
}

func (c *cluster) transfer() (any bool) {
	for _, id := range c.ids() {
		m := c.machines[id]
		for _, t := range m.Transfers() {
			msg, ok := m.Finish(c.now, t, 0)
			if ok && (c.lose == nil || !c.lose(id, t)) {
				c.send(id, []protocol.Outbound{{To: t.To, Msg: msg}})
			}
			any = any || ok
		}
	}
	return any
}

func (c *cluster) run(d time.Duration) {
	for end := c.now + int64(d); c.now < end; c.now += 100 * ms {
		c.pump()
		for _, id := range c.ids() {
			c.send(id, c.machines[id].Tick(c.now))
		}
		c.pump()
	}
}

// holders returns the members that would decide h now.
func (c *cluster) holders(h uint64) (ids []ring.ID) {
	for _, id := range c.ids() {
		v := c.machines[id].View()
		if extent, _, _ := v.Extent(c.now, policy.PartShare); extent != ExtentNone && v.Ownership(h, 0).State == OwnedHere {
			ids = append(ids, id)
		}
	}
	return ids
}

func (c *cluster) check(want int) {
	c.t.Helper()
	for h := range uint64(200) {
		h *= 0x9E3779B97F4A7C15
		if got := c.holders(h); len(got) > 1 || len(got) < want {
			c.t.Fatalf("key %x is owned by %v", h, got)
		}
	}
}

func (c *cluster) steady() {
	c.t.Helper()
	c.check(1)
	for _, id := range c.ids() {
		if p := c.machines[id].Progress(); c.states[id] == membership.Active && !p.Complete() {
			c.t.Fatalf("%s: %+v", id, p)
		}
	}
}

func TestJoinAndLeave(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	c.steady()
	c.boot("d", membership.Joining)
	c.adoptAll()
	c.run(time.Second)
	c.check(1)
	if p := c.machines["d"].Progress(); !p.Prefetched {
		t.Fatalf("the joining member has no replicas: %+v", p)
	}
	c.states["d"] = membership.Active
	r := c.ring()
	for _, id := range []ring.ID{"d", "a", "c", "b"} { // one after the other, as gossip spreads
		c.adopt(id, r)
		c.pump()
		c.check(1)
	}
	c.run(2 * time.Second)
	c.steady()
	c.states["b"] = membership.Leaving
	r = c.ring()
	for _, id := range []ring.ID{"b", "d", "c", "a"} {
		c.adopt(id, r)
		c.pump()
		c.check(1)
	}
	c.run(2 * time.Second)
	if p := c.machines["b"].Progress(); !p.HandedOff {
		t.Fatalf("the leaving member has not handed off: %+v", p)
	}
	delete(c.machines, "b")
	c.left, c.nref = []ring.ID{"b"}, 3
	c.adoptAll()
	c.run(time.Second)
	c.steady()
}

// TestLastToAdoptReleasesAtOnce requires that the last member that adopts a ring immediately releases the keys whose
// owners have already reported that ring. Otherwise no member would decide them until its next Tick.
func TestLastToAdoptReleasesAtOnce(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	c.boot("d", membership.Joining)
	c.adoptAll()
	c.run(time.Second)
	c.states["d"] = membership.Active
	for _, id := range []ring.ID{"d", "a", "b", "c"} {
		c.adopt(id, c.ring())
		c.pump()
	}
	c.steady()
}

func TestCrashIsTakenOver(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	delete(c.machines, "b")
	c.run(3 * time.Second)
	c.adoptAll()
	c.run(500 * time.Millisecond)
	c.steady() // no peer has confirmed b for 3 s, so there is nothing to wait for
	for h := range uint64(50) {
		h *= 0x9E3779B97F4A7C15
		for _, id := range c.ids() {
			if _, lost := c.machines[id].View().Lost(h); lost {
				t.Fatal("the successor has a replica, but the state is reported as lost")
			}
		}
	}
}

// TestALossOutlivesTheNext requires that a key whose owner and successor failed stays lost after another loss in which
// its new owner is the successor.
func TestALossOutlivesTheNext(t *testing.T) {
	c := newCluster(t, "a", "b", "c", "d")
	r := c.ring()
	for _, id := range []ring.ID{"b", "c"} {
		delete(c.machines, id)
	}
	c.run(3 * time.Second)
	c.adoptAll()
	c.run(500 * time.Millisecond)
	c.steady()
	delete(c.machines, "d")
	c.run(3 * time.Second)
	c.adoptAll()
	c.run(500 * time.Millisecond)
	c.steady()
	for _, h := range keysOf(t, r, "b", "c") {
		if _, lost := c.machines["a"].View().Lost(h); !lost {
			t.Fatalf("the key at %x is not reported as lost", h)
		}
	}
}

// TestALossMovesWithOwnership requires that a loss is transferred with ownership: the receiver knows of it although it
// joined later.
func TestALossMovesWithOwnership(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	r := c.ring()
	delete(c.machines, "b")
	delete(c.machines, "c")
	c.run(3 * time.Second)
	c.adoptAll()
	c.run(500 * time.Millisecond)
	c.nref = 1
	c.boot("d", membership.Joining)
	c.adoptAll()
	c.run(time.Second)
	c.states["d"] = membership.Active
	c.adoptAll()
	c.run(time.Second)
	c.steady()
	known := map[ring.ID]int{}
	for h := range uint64(200) {
		h *= 0x9E3779B97F4A7C15
		o, e := r.At(r.Owner(h)).ID, r.At(r.Successor(h)).ID
		for _, id := range c.ids() {
			at, lost := c.machines[id].View().Lost(h)
			first, _ := c.machines["a"].View().Lost(h)
			if lost != (o != "a" && e != "a") || at != first {
				t.Fatalf("%s: the key of %s and %s is lost: %v, at %d and not %d", id, o, e, lost, at, first)
			}
			if lost {
				known[id]++
			}
		}
	}
	if known["a"] == 0 || known["d"] == 0 {
		t.Fatalf("nothing is lost: %v", known)
	}
}

// TestNothingIsLostWithReturningMembers separates a cluster into two sides and joins them again: no state is lost,
// because every member is back.
func TestNothingIsLostWithReturningMembers(t *testing.T) {
	c := newCluster(t, "a", "b", "c", "d", "e")
	whole := c.ring()
	part := func(ids ...ring.ID) *ring.Ring {
		var ms []ring.Member
		for _, id := range ids {
			ms = append(ms, whole.At(whole.Index(id)))
		}
		return ring.New(ms)
	}
	one, two := part("a", "b", "c"), part("d", "e")
	side := func(id ring.ID) *ring.Ring {
		if one.Index(id) >= 0 {
			return one
		}
		return two
	}
	c.cut = func(from, to ring.ID) bool { return side(from) != side(to) }
	c.run(3 * time.Second)
	c.isolate(one, 5)
	c.isolate(two, 5)
	c.run(4 * time.Second)
	known := func() (n int) {
		for h := range uint64(200) {
			for _, id := range c.ids() {
				if _, lost := c.machines[id].View().Lost(h * 0x9E3779B97F4A7C15); lost {
					n++
				}
			}
		}
		return n
	}
	if known() == 0 {
		t.Fatal("no loss is reported during the partition")
	}
	c.cut = nil
	c.adoptAll()
	c.run(4 * time.Second)
	c.steady()
	if n := known(); n > 0 {
		t.Errorf("%d keys are reported as lost", n)
	}
}

// TestALossIsReportedBeforeItIsFound lets the owner and the successor of keys crash. The owner restarts while the
// successor still counts as live, so the others cannot take anything over yet. They report the missing members to it.
func TestALossIsReportedBeforeItIsFound(t *testing.T) {
	c := newCluster(t, "a", "b", "c", "d")
	whole := c.ring()
	successor := whole.At(whole.Index("b"))
	delete(c.machines, "a")
	delete(c.machines, "b")
	with := func() *ring.Ring { // the successor has failed
		ms := []ring.Member{successor}
		r := c.ring()
		for i := range r.Len() {
			ms = append(ms, r.At(i))
		}
		return ring.New(ms)
	}
	c.run(100 * time.Millisecond)
	c.boot("a", membership.Joining)
	for _, s := range []membership.MemberState{membership.Joining, membership.Active} {
		c.states["a"] = s
		r := with()
		for _, id := range c.ids() {
			c.adopt(id, r)
		}
		c.run(200 * time.Millisecond)
	}
	c.adoptAll()
	c.run(4 * time.Second)
	c.steady()
	for _, h := range keysOf(t, whole, "a", "b") {
		for _, id := range c.ids() {
			if _, known := c.machines[id].View().Lost(h); !known {
				t.Fatalf("%s: the loss of the key at %x is not reported", id, h)
			}
		}
	}
}

// keysOf returns keys whose owner and successor on r are both among ids. There is at least one.
func keysOf(t *testing.T, r *ring.Ring, ids ...ring.ID) (keys []uint64) {
	t.Helper()
	for h := range uint64(200) {
		h *= 0x9E3779B97F4A7C15
		if slices.Contains(ids, r.At(r.Owner(h)).ID) && slices.Contains(ids, r.At(r.Successor(h)).ID) {
			keys = append(keys, h)
		}
	}
	if len(keys) == 0 {
		t.Fatalf("no key has both of %v", ids)
	}
	return keys
}

// TestRepeatedReleaseIsNotNew lets a member leave a ring, transfer keys and adopt the same ring again. A member that
// never left the ring repeats its release, which does not prove who owns the keys now.
func TestRepeatedReleaseIsNotNew(t *testing.T) {
	c := newCluster(t, "a", "b")
	c.boot("g", membership.Joining)
	c.boot("n", membership.Joining)
	c.adoptAll()
	c.run(time.Second)
	first := true // b receives nothing from a, so its base stays
	c.lose = func(from ring.ID, tr Transfer) bool {
		return from == "a" && tr.To != "n" || from == "n" && tr.To == "g" || first && from == "n"
	}
	c.states["g"] = membership.Active
	one := c.ring()
	c.adoptAll()
	c.run(500 * time.Millisecond)
	c.states["n"] = membership.Active
	two := c.ring()
	c.adopt("n", two)
	c.adopt("g", two)
	c.pump()
	first = false
	c.states["n"] = membership.Leaving
	for _, id := range []ring.ID{"n", "g", "a", "b"} {
		c.adopt(id, one)
		c.pump()
	}
	c.run(500 * time.Millisecond)
	given := 0
	for h := range uint64(2000) {
		h *= 0x9E3779B97F4A7C15
		if one.At(one.Owner(h)).ID != "g" || two.At(two.Owner(h)).ID != "n" {
			continue
		}
		given++
		if c.machines["g"].View().Ownership(h, 0).State == OwnedHere {
			t.Fatal("g decides a key that it transferred, and whose owner has not released it")
		}
	}
	if given == 0 {
		t.Fatal("no key was transferred")
	}
}

// deliver delivers, loses or duplicates a random message, or ends transfers.
func (c *cluster) deliver(rnd *rand.Rand) {
	if rnd.IntN(3) == 0 {
		c.transfer()
	}
	if len(c.queue) == 0 {
		return
	}
	i := rnd.IntN(len(c.queue))
	e := c.queue[i]
	if rnd.IntN(10) > 0 {
		c.queue = slices.Delete(c.queue, i, i+1)
	}
	if m := c.machines[e.To]; m != nil && rnd.IntN(10) > 0 {
		c.send(e.To, m.Step(c.now, e.from, e.bootID, &e.Msg))
	}
}
