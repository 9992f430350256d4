package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/ring"
)

// leaseOptions are the options of leases, hot keys and approximate rules.
type leaseOptions struct {
	On          bool
	Wide        bool          // 20 to 50 members, on the ring from the start
	Calm        bool          // no faults, and no member joins or leaves
	ByLease     float64       // fraction of the rules that always lease
	Approximate float64       // fraction of the rules that are approximate
	HotRate     float64       // in requests per second, above which a key is hot
	Lull        time.Duration // in the middle, with few requests, for keys to cool down
	Decrees     int           // manual routes, which make a key hot or never hot for a while
	Reclaim     bool          // hits of silent holders are reclaimed
	OnCrash     bool          // hits of failed holders are reclaimed
	TTL         time.Duration // of a grant
}

// expandLeases returns the options of a seed with leases: fewer keys, with at least as many requests as their limits
// allow.
func expandLeases(seed uint64) options {
	o := expandBase(seed)
	r := rand.New(rand.NewPCG(seed, 0x1ea5e))
	o.Leases.On = true
	o.Keys, o.Requests = 1+r.IntN(3), 1500+r.IntN(1500)
	switch r.IntN(4) {
	case 0:
		o.Algorithms = []limit.Algorithm{limit.FixedWindow}
	case 1:
		o.Algorithms = []limit.Algorithm{limit.SlidingWindow}
	}
	o.Leases.mechanisms(r, &o)
	switch x := r.IntN(40); {
	case x == 0:
		o.makeWide(r)
	case x < 6:
		o.makeCalm()
	case x < 11:
		o.Members = 2
	case x < 15:
		o.Members = 10
	}
	if !o.Leases.Wide {
		o.Slots = min(o.Members+2, maxSlots)
	}
	return o
}

func (l *leaseOptions) mechanisms(r *rand.Rand, o *options) {
	switch r.IntN(6) {
	case 0, 1, 2:
		l.ByLease = 1
	case 3:
		l.ByLease, l.Approximate = 0.5, 0.5
	case 4:
		l.Approximate = 1
	case 5:
		o.Keys, l.HotRate = 6+r.IntN(4), 10+10*r.Float64()
		l.Lull = 40 * time.Second
	}
	if r.IntN(3) == 0 {
		l.Decrees = 1 + r.IntN(4)
	}
	if r.IntN(3) == 0 {
		l.Reclaim = true
	}
	if l.Reclaim || r.IntN(4) == 0 {
		l.TTL = time.Second + time.Duration(r.IntN(3000))*time.Millisecond
	}
}

// expandReclaim returns the options of a seed with leases in which owners reclaim the hits of failed holders.
func expandReclaim(seed uint64) options {
	o := expandLeases(seed)
	r := rand.New(rand.NewPCG(seed, 0xc7a5))
	l := &o.Leases
	l.OnCrash, l.Reclaim, l.ByLease, l.Approximate = true, false, 1, 0
	if !l.Wide && !l.Calm {
		o.Crashes += r.IntN(3)
		o.Algorithms = []limit.Algorithm{limit.FixedWindow}
	}
	return o
}

// makeWide makes it a short run of many members, of which one or two join or leave.
func (o *options) makeWide(r *rand.Rand) {
	o.Leases.Wide = true
	o.Members = 20 + r.IntN(31)
	o.Slots, o.Length = o.Members+1, 5*time.Second
	o.Keys, o.Requests, o.Leases.Lull, o.Leases.HotRate = 1, 4000, 0, 0
	o.Leaves, o.Joins, o.Rolls = r.IntN(2), r.IntN(2), 0
	o.Crashes, o.Pauses = min(o.Crashes, 1), min(o.Pauses, 1)
	o.Cuts, o.OneWay, o.Partitions, o.Steps, o.Stills = min(o.Cuts, 1), 0, 0, 0, 0
}

func (o *options) makeCalm() {
	o.Leases.Calm, o.Leases.Approximate, o.Leases.ByLease = true, 0, 1
	o.Leases.Decrees, o.Leases.Lull, o.Leases.HotRate = 0, 0, 0
	o.Keys = min(o.Keys, 2)
	o.Algorithms = []limit.Algorithm{limit.FixedWindow}
	o.Skew, o.Drift, o.Addends, o.Refunds, o.Serial = 0, 0, false, false, true
	o.Leaves, o.Joins, o.Rolls, o.Rules = 0, 0, 0, 0
	o.Loss, o.Reorder, o.Double, o.Breaks, o.Deaf = 0, 0, 0, 0, 0
	o.Crashes, o.Pauses, o.Cuts, o.OneWay, o.Partitions, o.Steps, o.Stills = 0, 0, 0, 0, 0, 0, 0
	o.Deadline = time.Second
}

// lull returns the time of a request that would be sent at the given time without a lull.
func (w *world) lull(at time.Duration) time.Duration {
	l := w.o.Leases.Lull
	switch {
	case l == 0:
	case w.rnd.IntN(30) == 0:
		return w.o.Length/2 + w.randomBelow(l)
	case at > w.o.Length/2:
		return at + l
	}
	return at
}

// limitLogSize limits logs to what fits into the tables, in runs with leases.
func (w *world) limitLogSize(r *rule) {
	if w.o.Leases.On && r.limit.Algorithm.Log() {
		r.limit.Limit = min(r.limit.Limit, 300)
	}
}

// shrinkBurst gives some buckets, in runs with leases, a burst that the requests of a moment exceed and a rate that
// they do not exceed: such buckets are empty most of the time.
func (w *world) shrinkBurst(r *rule) {
	if w.o.Leases.On && r.limit.Algorithm.Bucket() && w.chance(0.6) {
		r.limit.Limit, r.limit.Burst = 3*r.limit.Limit, 8+w.rnd.Uint32N(40)
	}
}

// chooseMechanism chooses the mechanism of r and its parameters.
func (w *world) chooseMechanism(r *rule) {
	l := &w.o.Leases
	if !l.On || r.by == policy.Static {
		return
	}
	x := w.rnd.Float64()
	r.by = policy.ByOwner
	r.knobs = lease.Terms{TTL: l.TTL, Reclaim: l.Reclaim, ReclaimCrash: l.OnCrash, Min: 1 + w.rnd.Uint32N(10),
		Partition: r.partition}
	switch {
	case x < l.ByLease:
		r.by = policy.ByLease
	case x < l.ByLease+l.Approximate:
		r.by, r.strict = policy.Approximate, false
		r.knobs.Slack = max(r.limit.Limit/20, uint32(w.o.Slots)*(1+w.rnd.Uint32N(3)))
	}
}

// ruleChangeKinds returns the number of kinds of rule changes.
func (w *world) ruleChangeKinds() int {
	if w.o.Leases.On {
		return 5
	}
	return 4
}

// amountIn returns a limit for a window of that length: with leases, from a tenth of the hits that will be requested
// to a little more than those.
func (w *world) amountIn(window time.Duration) uint32 {
	if !w.o.Leases.On {
		return w.amount()
	}
	perSecond := float64(w.o.Requests) / w.o.Length.Seconds()
	if w.o.Leases.HotRate == 0 {
		perSecond /= float64(w.o.Keys)
	}
	if w.o.Addends {
		perSecond *= 5.75
	}
	return uint32(max(20, perSecond*window.Seconds()*(0.1+1.1*w.rnd.Float64())))
}

// setRoute sets a manual route of a key for a while, which makes it hot or never hot.
func (w *world) setRoute() {
	k := w.pickKey()
	r := &w.rules[len(w.rules)-1][k]
	modes := [...]hotkey.Mode{hotkey.Spread, hotkey.Spread, hotkey.Never}
	route := hotkey.Route{Owner: r.place(w.keys[k].name), Mode: modes[w.rnd.IntN(len(modes))]}
	w.stats.count("lease: hot, or never hot, by decree")
	w.trace("decree: {Domain:%v Name:%v Owner:%v Mode:%d Manual:%v By:%v Ver:%v Limit:%v Window:%v Subs:%v}",
		route.Domain, route.Name, route.Owner, route.Mode, route.Manual,
		route.Author, route.Version, route.Limit, route.Window, route.Subs)
	w.manualRoutes = append(slices.Clone(w.manualRoutes), route)
	w.distributeRoutes()
	w.after(time.Second+w.randomBelow(6*time.Second), nil, func() {
		w.manualRoutes = slices.DeleteFunc(slices.Clone(w.manualRoutes),
			func(x hotkey.Route) bool { return x.Owner == route.Owner })
		w.distributeRoutes()
	})
}

// distributeRoutes sends the manual routes to all members.
func (w *world) distributeRoutes() {
	decrees := w.manualRoutes
	for _, m := range w.running() {
		w.after(w.randomBelow(500*time.Millisecond), m, func() { m.node.SetRoutes(decrees, ring.Hash) })
	}
}

// meetAll makes m know all members from the start. Otherwise there would be a ring for each that becomes known.
func (m *member) meetAll() {
	for i := range m.w.slots {
		if p := m.w.slots[i].now; p != nil {
			m.table[i] = entry{boot: p.boot, state: active, heardAt: m.w.now, beat: 1}
		}
	}
}

// sendLease sends a message about leases to another member, as send does.
func (w *world) sendLease(m *member, o *lease.Delivery) {
	to := slotOf(o.To)
	if to < 0 || to >= len(w.slots) {
		w.fail("message about leases to unknown member %q", o.To)
		return
	}
	if w.verbose {
		w.trace("%s -> %s  %s", m.name(), o.To, leaseText(&o.Batch))
	}
	w.oracle.leaseSent(m, to, &o.Batch)
	if !w.healed && w.chance(w.o.Loss) {
		w.stats.count("fault: lost message")
		return
	}
	times := 1
	if !w.healed && w.chance(w.o.Double) {
		w.stats.count("fault: repeated message")
		times = 2
		late := copyOfLease(&o.Batch)
		w.repeatLater(m, to, true, func(there *member) { there.receiveLease(m, late) })
	}
	for range times {
		msg := copyOfLease(&o.Batch)
		w.deliver(m, to, w.delay()+w.sabotageDelay(msg), func(there *member) { there.receiveLease(m, msg) })
	}
}

func (m *member) receiveLease(from *member, msg *lease.Batch) {
	w := m.w
	w.sabotageLease(m, msg)
	w.mixHash(uint64(m.slot), uint64(from.slot), uint64(msg.Kind),
		uint64(len(msg.Requests)+len(msg.Grants)+len(msg.Notices)))
	before := w.oracle.leaseArrived(m, from, msg)
	m.steppingLease = msg.Kind == lease.Ask
	m.apply(m.node.StepLease(m.clock(), slotID(from.slot), inst(from.slot, from.boot), msg))
	if m.steppingLease {
		w.sabotageCredit(m, from, msg, before)
		w.oracle.checkLent(m)
	}
}

// copyOfLease returns a copy of a message that shares no memory with its sender.
func copyOfLease(m *lease.Batch) *lease.Batch {
	c := lease.Batch{
		Kind: m.Kind, Requests: slices.Clone(m.Requests), Grants: slices.Clone(m.Grants), Notices: slices.Clone(m.Notices),
	}
	for i := range c.Requests {
		c.Requests[i].State.Slots = slices.Clone(c.Requests[i].State.Slots)
	}
	for i := range c.Grants {
		c.Grants[i].State.Slots = slices.Clone(c.Grants[i].State.Slots)
	}
	return &c
}
