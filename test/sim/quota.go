package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/assign/lots"
	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/quota"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// quotaOptions are the parameters of worlds whose Envoys spend parts of one limit without calls.
type quotaOptions struct {
	On     bool
	Envoys int
	Limit  uint32        // in each window
	Window time.Duration // of it
	Load   float64       // hits of all Envoys in a window, as a multiple of the limit
	Skew   float64       // load of one Envoy in five, as a multiple of the others'
	Calls  float64       // hits of callers, as a multiple of the limit

	Breaks, Cuts, Stops int // of streams, of links between an Envoy and its sidecar, of Envoys
}

// expandQuota returns the options of a seed with Envoys that spend parts of a limit. In a third of the seeds all changes are
// planned, and in a third a member crashes and no other member fails: if an owner crashes while its successor does, or is paused
// or cut off, charges are lost.
func expandQuota(seed uint64) options {
	o := expandBase(seed)
	r := rand.New(rand.NewPCG(seed, 0x407a))
	o.Rules, o.Refunds, o.Steps, o.Stills, o.Full, o.OneOwner, o.Alike = 0, false, 0, 0, false, false, false
	o.Keys, o.Length, o.Requests = 2, time.Duration(32+r.IntN(20))*time.Second, 1000
	o.Crashes = min(o.Crashes, 1)
	switch seed % 3 {
	case 0:
		o.Crashes, o.Pauses, o.Cuts, o.OneWay, o.Partitions, o.Decay = 0, 0, 0, 0, 0, time.Minute
		o.Leaves, o.Joins = 1+r.IntN(3), 1+r.IntN(3)
	case 1:
		o.Pauses, o.Cuts, o.OneWay, o.Partitions, o.Decay, o.Crashes = 0, 0, 0, 0, time.Minute, 1
	default:
		o.Crashes, o.Decay = 0, time.Minute
	}
	q := &o.Quota
	q.On, q.Envoys, q.Limit = true, []int{1, 3, 10, 50}[r.IntN(4)], []uint32{100, 300, 1000, 2000}[r.IntN(4)]
	q.Window, q.Load, q.Skew = 10*time.Second, []float64{0.5, 1, 1.2, 2}[r.IntN(4)], []float64{1, 10}[r.IntN(2)]
	q.Calls = []float64{0, 0.1, 0.5}[r.IntN(3)]
	if r.IntN(3) > 0 {
		q.Breaks, q.Cuts, q.Stops = r.IntN(6), r.IntN(6), r.IntN(6)
	}
	if r.IntN(4) == 0 {
		q.Cuts += 5 * q.Envoys
	}
	switch r.IntN(6) {
	case 0:
		q.Window, o.Length = 20*time.Second, o.Length+30*time.Second
	case 1:
		q.Window, o.Length = time.Minute, o.Length+100*time.Second
	}
	return o
}

// quotaWorld is the limit that Envoys and callers spend.
type quotaWorld struct {
	request  owner.Request
	envoys   []*quotaEnvoy
	streams  quota.Stream // opened so far
	admitted map[int64]uint64
	calls    map[int64]uint64
	// excess counts what may be above the limit: hits that a stopped Envoy may have admitted late, calls that were admitted
	// without the owner, hits that a part of a partitioned cluster has admitted or charged, and what the only owner had.
	excess map[int64]uint64
}

const quotaKey = "hot"

// startQuota starts the Envoys and the callers.
func (w *world) startQuota() {
	o := &w.o.Quota
	if !o.On {
		return
	}
	h := ring.Hash("quota")
	x := &quotaWorld{admitted: map[int64]uint64{}, calls: map[int64]uint64{}, excess: map[int64]uint64{}}
	x.request = owner.Request{
		Key: owner.Key{h, h * 0x9E3779B97F4A7C15}, RingPos: h, Strict: true, Degraded: policy.FailClosed,
		Rule: limit.Rule{Limit: o.Limit, Window: o.Window},
	}
	w.quota = x
	sum := 0.0
	for i := range o.Envoys {
		e := newQuotaEnvoy(w, i)
		if e.rate = 1; i%5 == 0 {
			e.rate = o.Skew
		}
		sum += e.rate
		x.envoys = append(x.envoys, e)
	}
	for _, e := range x.envoys {
		e.rate *= o.Load * float64(o.Limit) / o.Window.Seconds() / sum
		w.after(w.randomBelow(5*time.Second), nil, e.arrive)
		w.after(w.randomBelow(quotaPoll), nil, e.attach)
	}
	if o.Calls > 0 {
		w.after(0, nil, w.quotaCall)
	}
	some := func(n int, fault func(*quotaEnvoy)) {
		for range n {
			w.after(w.randomBelow(w.o.Length), nil, func() { fault(x.envoys[w.rnd.IntN(len(x.envoys))]) })
		}
	}
	some(o.Breaks, func(e *quotaEnvoy) { e.breakStream(0) })
	some(o.Cuts, func(e *quotaEnvoy) { e.breakStream(w.randomBelow(7 * time.Second)) })
	some(o.Stops, func(e *quotaEnvoy) { e.stop(w.randomBelow(8 * time.Second)) })
}

// quotaCall is one hit of a caller of the rate limit service.
func (w *world) quotaCall() {
	o := &w.o.Quota
	w.after(w.exponential(o.Calls*float64(o.Limit)/o.Window.Seconds()), nil, w.quotaCall)
	m := w.readyMember()
	if m == nil {
		return
	}
	q := w.quota.request
	q.Hits = 1
	w.after(0, m, func() {
		m.askQuota(q, func(v *decision) {
			if v.result.Over {
				return
			}
			window := (&account{rule: q.Rule}).index(v)
			if v.byShare() || w.elsewhere(v) {
				w.stats.count("quota: call admitted without the owner")
				w.quota.excess[window]++
			}
			w.quotaAdmitted(w.quota.calls, window)
		})
	})
}

// elsewhere reports whether others may admit the full limit without knowing of the decision, because the cluster is partitioned.
func (w *world) elsewhere(v *decision) bool {
	available := w.o.Policy == policy.PartAvailable && v.by.missesMembers()
	return v.result.Authority == owner.Part || available || w.oracle.unrevoked(v)
}

// quotaCrashed counts what may be admitted again because the only owner has crashed: no member has its charges.
func (w *world) quotaCrashed(m *member) {
	x := w.quota
	if x == nil || m.view.Ring == nil || m.view.Ring.Len() > 1 {
		return
	}
	w.stats.count("quota: the only owner crashed")
	x.lost(w.now)
}

// lost counts the complete limit of the current window and of the next, which may be charged, too.
func (x *quotaWorld) lost(now int64) {
	for i := range int64(2) {
		x.excess[x.request.Rule.Index(now)+i] += uint64(x.request.Rule.Limit)
	}
}

// quotaParted counts what may be admitted again because a partition cuts the owner and its successor off from others, which
// assume that the hits of the window so far were admitted: all of this and the next one may be charged.
func (w *world) quotaParted(side []bool) {
	x := w.quota
	if x == nil {
		return
	}
	for i, s := range w.slots {
		m := s.now
		if m == nil || m.view.Ring == nil {
			continue
		}
		h := x.request.RingPos
		has := []int{m.view.Ring.Owner(h), m.view.Ring.Successor(h), m.view.Ring.ZoneReplica(h)}
		if !slices.ContainsFunc(has, func(j int) bool { return j >= 0 && side[slotOf(m.view.Ring.At(j).ID)] == side[i] }) {
			w.stats.count("quota: owner and successor cut off")
			x.lost(w.now)
			return
		}
	}
}

// exponential returns a random interval between events of that rate per second.
func (w *world) exponential(rate float64) time.Duration {
	return time.Duration(w.rnd.ExpFloat64() / rate * 1e9)
}

// askQuota has m decide q, and calls done with the decision.
func (m *member) askQuota(q owner.Request, done func(*decision)) {
	w := m.w
	w.requests++
	r := &request{id: w.requests, from: m, sentAt: w.now, deadline: w.now + int64(time.Second), req: q, quota: done}
	r.req.Waiter = r
	w.after(time.Second, m, r.expire)
	r.decide()
}

// quotaBook is a member's ledger, driven as package assign drives it.
type quotaBook struct {
	m      *member
	ledger *quota.Ledger
	lots   []lots.HeldLot
	note   lots.Note
	noting bool
	wakeAt int64 // by the member's clock
	closed bool  // the member leaves, and serves no streams
	open   map[quota.Stream]*quotaEnvoy
}

func newQuotaBook(m *member) *quotaBook {
	return &quotaBook{
		m: m, ledger: quota.NewLedger(quota.Options{Shared: true}), wakeAt: noTime, open: map[quota.Stream]*quotaEnvoy{},
	}
}

const noTime = int64(1) << 62

// drive does what is due, and schedules the rest.
func (b *quotaBook) drive() {
	m := b.m
	if m.view.Ring != nil { // a member that has just started has none
		b.ledger.SetMembers(m.view.Ring.Len())
	}
	for b.ledger.Next() <= m.clock() {
		work := b.ledger.Tick(m.clock())
		for _, r := range work.Responses {
			if e := b.open[r.Stream]; e != nil {
				e.respond(b, r)
			}
		}
		for _, h := range work.Asks {
			b.ask(h)
		}
		for _, h := range work.Returns {
			settlements, _ := lots.Return(&b.lots, m.w.quota.request, m.clock(), h)
			for _, s := range settlements {
				m.w.stats.count("quota: hits returned")
				m.askQuota(s.Request, func(*decision) {})
			}
		}
		for _, d := range work.Demands {
			b.announce(d)
		}
	}
	if next := b.ledger.Next(); next < b.wakeAt && next < noTime {
		b.wakeAt = next
		m.w.after(time.Duration(next-m.clock()), m, func() {
			b.wakeAt = noTime
			b.drive()
		})
	}
}

// retire gives back what Envoys need not have, ends the streams, and calls then.
func (b *quotaBook) retire(then func()) {
	m := b.m
	m.w.stats.count("quota: retired")
	b.ledger.Retire(m.clock())
	b.drive()
	m.w.after(300*time.Millisecond, m, func() {
		b.ledger.Leave(m.clock())
		b.drive()
		b.closed = true
		if last := b.note.Current(m.clock()); last.At != 0 {
			m.askQuota(lots.DemandRequest(&m.w.quota.request, owner.Release, last), func(*decision) {})
		}
		m.w.after(50*time.Millisecond, m, then)
	})
}

func (b *quotaBook) ident() claim.Ident {
	b.m.w.requests++
	return claim.Ident{b.m.w.requests, 0x407a}
}

// ask has the owner charge hits.
func (b *quotaBook) ask(h quota.WindowHits) {
	m, w := b.m, b.m.w
	g := quota.AskResult{WindowHits: quota.WindowHits{Key: h.Key, Window: h.Window}, Left: quota.LeftUnknown}
	q, l, ok := lots.Reserve(w.quota.request, h, m.clock(), b.ident())
	if !ok {
		b.ledger.Granted(m.clock(), g)
		return
	}
	m.askQuota(q, func(v *decision) {
		charged, release, left := lots.Charged(&q, &l, &v.result, m.clock())
		if release {
			w.stats.count("quota: charge released")
			m.askQuota(lots.Settle(w.quota.request, owner.Release, 0, l.ID), func(*decision) {})
		}
		if g.Left = left; charged || w.bug == bugUnchargedLot {
			w.stats.count("quota: charged")
			if w.elsewhere(v) {
				w.stats.count("quota: charged by a part of the cluster")
				w.quota.excess[l.Window] += l.Hits
			}
			g.Hits = l.Hits
			b.lots = append(b.lots, l)
		}
		b.ledger.Granted(m.clock(), g)
		b.drive()
	})
}

// announce gives the owner the member's demand.
func (b *quotaBook) announce(d quota.KeyDemand) {
	m, r := b.m, &b.m.w.quota.request
	if b.noting {
		return
	}
	b.noting = true
	before, next := b.note.Current(m.clock()), lots.NewNote(r, d.Hits, m.clock(), b.ident())
	make := func() {
		m.askQuota(lots.DemandRequest(r, owner.Reserve, next), func(v *decision) {
			all, kept, ended := uint64(0), before, next
			if !v.result.Over && v.result.Authority == owner.Full {
				all, kept, ended = lots.Demand(r, max(next.Parts, v.result.After-min(v.result.After, before.Parts))), next, before
			}
			b.noted(kept, all)
			if ended.At != 0 {
				m.askQuota(lots.DemandRequest(r, owner.Release, ended), func(*decision) {})
			}
		})
	}
	if before.At == 0 || !before.Near(&next) {
		make()
		return
	}
	m.askQuota(lots.DemandRequest(r, owner.Extend, before), func(v *decision) {
		if v.result.Over || v.result.Authority != owner.Full {
			make()
			return
		}
		before.At = next.At
		b.noted(before, lots.Demand(r, max(before.Parts, v.result.After)))
	})
}

func (b *quotaBook) noted(n lots.Note, all uint64) {
	b.note, b.noting = n, false
	o := &b.m.w.o.Quota
	b.ledger.CallsDemanded(b.m.clock(), quotaKey, uint64(o.Calls*float64(o.Limit)))
	b.ledger.Demanded(b.m.clock(), quotaKey, all)
	b.drive()
}
