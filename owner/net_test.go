package owner

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/ring"
)

const milli = int64(time.Millisecond)

// network is a cluster of Nodes. Their messages are in a queue until they are delivered, in order or not.
type network struct {
	t      testing.TB
	now    int64
	rnd    *rand.Rand
	nodes  map[ring.ID]*Node
	states map[ring.ID]membership.MemberState
	insts  map[ring.ID]uint64
	boots  uint64
	left   []ring.ID
	nref   int
	queue  []envelope
	order  []ring.ID // of nodes, as last asked for
	done   map[ring.ID]map[Waiter]Result
	cut    func(from, to ring.ID) bool
	seen   [protocol.OwnershipReply + 1]int // messages by kind, and
	given  int                              // keys of which the token came alone
	still  bool                             // no transfer goes on
	skew   map[ring.ID]int64                // of clocks
	lossy  float64                          // of messages about leases: so many are lost, and as many come twice
	mute   bool                             // all of them are lost
	leased int                              // messages about leases
	audits map[ring.ID][]Audit
	// coordinator lends to all members as one region; nil: it cannot be reached.
	coordinator *federation.Memory
	o           Options
}

type envelope struct {
	from, to ring.ID
	inst     uint64
	msg      protocol.Message
	lease    *lease.Batch // instead
}

// clock returns the time of id's clock.
func (w *network) clock(id ring.ID) int64 { return w.now + w.skew[id] }

func newNetwork(t testing.TB, seed uint64, o Options, ids ...ring.ID) *network {
	w := &network{t: t, now: t0, rnd: random(seed), nodes: map[ring.ID]*Node{}, states: map[ring.ID]membership.MemberState{}, insts: map[ring.ID]uint64{}, done: map[ring.ID]map[Waiter]Result{}, skew: map[ring.ID]int64{}, audits: map[ring.ID][]Audit{}, o: o}
	for _, id := range ids {
		w.boot(id, membership.Active)
	}
	w.nref = len(ids)
	w.adopt()
	w.run(3 * time.Second)
	for _, id := range ids {
		if !w.nodes[id].Progress().Complete() {
			t.Fatalf("%s: %+v", id, w.nodes[id].Progress())
		}
	}
	return w
}

func (w *network) boot(id ring.ID, st membership.MemberState) {
	w.boots += 0x100
	w.insts[id] = w.boots
	o := w.o
	o.Self, o.BootID, o.Seed = id, w.insts[id]|1, [2]uint64{7, uint64(len(w.insts))}
	w.nodes[id], w.states[id], w.done[id] = New(o), st, map[Waiter]Result{}
}

func (w *network) ids() (ids []ring.ID) {
	if len(w.order) == len(w.nodes) && !slices.ContainsFunc(w.order, func(id ring.ID) bool { return w.nodes[id] == nil }) {
		return w.order
	}
	defer func() { w.order = ids }()
	for id := range w.nodes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (w *network) ring() *ring.Ring {
	var ms []ring.Member
	for _, id := range w.ids() {
		if w.states[id] == membership.Active {
			ms = append(ms, ring.Member{ID: id, BootID: w.insts[id] | 1, Incarnation: 1, Weight: 1})
		}
	}
	return ring.New(ms)
}

// adopt gives all members a ring of the present members.
func (w *network) adopt() {
	for _, id := range w.ids() {
		w.adoptAt(id, w.ring())
	}
}

func (w *network) adoptAt(id ring.ID, r *ring.Ring) {
	v := &membership.View{
		Self: id, BootID: w.insts[id] | 1, Ring: r, NRef: max(w.nref, r.Len()), Joined: true, Left: w.left,
	}
	for _, p := range w.ids() {
		v.Members = append(v.Members, membership.Member{ID: p, BootID: w.insts[p] | 1, State: w.states[p], Weight: 1})
	}
	w.effects(id, w.nodes[id].SetMembership(w.clock(id), v))
}

func (w *network) effects(id ring.ID, fx Ready) {
	for _, o := range fx.Messages {
		w.queue = append(w.queue, envelope{from: id, to: o.To, inst: w.insts[id] | 1, msg: o.Msg})
	}
	for _, o := range fx.Leases {
		if w.leased++; w.mute {
			continue
		}
		copies := 1
		if w.lossy > 0 {
			copies = 1 - b2i(w.rnd.Float64() < w.lossy) + b2i(w.rnd.Float64() < w.lossy)
		}
		for range copies {
			w.queue = append(w.queue, envelope{from: id, to: o.To, inst: w.insts[id] | 1, lease: &o.Batch})
		}
	}
	if len(fx.Audits) > 0 {
		w.audits[id] = append(w.audits[id], fx.Audits...)
	}
	for _, r := range fx.PoolRequests {
		if w.coordinator == nil {
			break
		}
		if g, ok := w.coordinator.Grant(w.now, "region", &r.Request); ok {
			w.effects(id, w.nodes[id].StepFederation(w.clock(id), r.Authority, time.Millisecond, []federation.PoolGrant{g}, false))
		}
	}
	for _, d := range fx.PoolsDone {
		d.Waiter.(func(PoolDone))(d)
	}
	for _, d := range fx.Done {
		if _, twice := w.done[id][d.Waiter]; twice {
			w.t.Fatalf("a request of %s is resolved twice", id)
		}
		w.done[id][d.Waiter] = d.Result
	}
}

// transfers returns the members to which n sends counters.
func (w *network) transfers(n *Node) []ring.ID {
	n.serial.Lock()
	defer n.serial.Unlock()
	return n.receivers()
}

// step does one thing: it delivers a message, pulls a chunk, or flushes or ticks a member.
func (w *network) step(reorder bool) {
	for _, id := range w.ids() {
		n := w.nodes[id]
		if in := n.FlushIn(); in == 0 || in < math.MaxInt64 && w.rnd.IntN(3) == 0 {
			w.effects(id, n.Flush(w.clock(id)))
		}
		for _, to := range w.transfers(n) {
			if w.rnd.IntN(2) == 0 && !w.still {
				if msg, ok := n.Pull(w.clock(id), to, nil); ok {
					w.queue = append(w.queue, envelope{from: id, to: to, inst: w.insts[id] | 1, msg: msg})
				}
			}
		}
	}
	if len(w.queue) == 0 {
		return
	}
	i := 0
	if reorder {
		i = w.rnd.IntN(min(4, len(w.queue)))
		for k := range i { // a transfer's own messages keep their order
			if e, f := &w.queue[k], &w.queue[i]; e.lease == nil && f.lease == nil && e.from == f.from && e.to == f.to && e.msg.Kind == f.msg.Kind || e.msg.Kind == protocol.Chunk && w.queue[i].msg.Kind == protocol.Ack {
				i = 0
				break
			}
		}
	}
	e := w.queue[i]
	if i == 0 {
		w.queue = w.queue[1:]
	} else {
		w.queue = slices.Delete(w.queue, i, i+1)
	}
	if e.lease != nil {
		if n := w.nodes[e.to]; n != nil && (w.cut == nil || !w.cut(e.from, e.to)) {
			w.effects(e.to, n.StepLease(w.clock(e.to), e.from, e.inst, e.lease))
		}
		return
	}
	w.seen[e.msg.Kind]++
	if e.msg.Kind == protocol.OwnershipReply && e.msg.Status == protocol.KeyGiven {
		w.given += len(e.msg.Counters)
	}
	if n := w.nodes[e.to]; n != nil && (w.cut == nil || !w.cut(e.from, e.to)) {
		w.effects(e.to, n.Step(w.clock(e.to), e.from, e.inst, &e.msg))
	}
}

// run advances the time by d.
func (w *network) run(d time.Duration) {
	for end := w.now + int64(d); w.now < end; w.now += 2 * milli {
		if w.now/(100*milli) != (w.now-2*milli)/(100*milli) {
			for _, id := range w.ids() {
				w.effects(id, w.nodes[id].Tick(w.clock(id)))
			}
		}
		steps := 12
		if len(w.nodes) > 8 {
			steps = max(steps, len(w.queue))
		}
		for range steps {
			w.step(false)
		}
	}
}

// pending is one request until it is decided.
type pending struct {
	at    ring.ID // asked there
	by    ring.ID // and waiting there
	q     Request
	hops  int
	until int64
}

// ask sends a request to member at. decided gets the result, which may come later.
func (w *network) ask(at ring.ID, req Request, decided func(Result)) {
	p := &pending{at: at, by: at, q: req, until: w.now + 12*milli}
	p.q.Waiter = p
	w.follow(p, w.nodes[at].Decide(w.clock(at), &p.q), decided)
}

func (w *network) follow(p *pending, res Result, decided func(Result)) {
	for res.Kind == Forward && res.Member != "" && p.hops < 3 {
		p.hops++
		n := w.nodes[res.Member]
		if n == nil || w.cut != nil && (w.cut(p.at, res.Member) || w.cut(res.Member, p.at)) {
			break
		}
		results := make([]Result, 1)
		p.by = res.Member
		n.Serve(w.clock(res.Member), false, []Request{p.q}, results)
		res = results[0]
		w.observe(p, &res)
	}
	if res.Kind == Pending {
		w.wait(p, decided)
		return
	}
	if res.Kind != Decided {
		res = w.nodes[p.at].Degrade(w.clock(p.at), &p.q)
	}
	decided(res)
}

// observe passes another member's result to the member that forwarded the request.
func (w *network) observe(p *pending, res *Result) {
	if p.by != p.at && res.Kind == Decided {
		w.nodes[p.at].Observe(w.clock(p.at), &p.q, res)
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// wait runs the network until the request is resolved or its time is over.
func (w *network) wait(p *pending, decided func(Result)) {
	for i := 0; ; i++ {
		if res, ok := w.done[p.by][p]; ok {
			delete(w.done[p.by], p)
			w.observe(p, &res)
			w.follow(p, res, decided)
			return
		}
		n := w.nodes[p.by]
		if n == nil || w.now > p.until {
			if n != nil && !n.Cancel(p.q.Key, p) {
				continue
			}
			decided(w.nodes[p.at].Degrade(w.clock(p.at), &p.q))
			return
		}
		w.step(true)
		if i%max(8, len(w.queue)) == 7 {
			w.now += milli
		}
	}
}

// leave removes id from the ring and waits until its handoff is complete.
func (w *network) leave(t *testing.T, id ring.ID, load func(int)) {
	t.Helper()
	w.states[id] = membership.Leaving
	for _, other := range w.ids() {
		w.adoptAt(other, w.ring())
		load(60)
	}
	for range 50 {
		if w.nodes[id].Progress().HandedOff {
			break
		}
		w.run(100 * time.Millisecond)
	}
	delete(w.nodes, id)
	w.left = append(w.left, id)
	w.nref = len(w.nodes)
	w.adopt()
}

// seeds returns n, or a third of it in short mode.
func seeds(n uint64) uint64 {
	if testing.Short() {
		return n / 3
	}
	return n
}
