package sim

import (
	"math/rand/v2"
	"time"

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
	// without the owner, and hits that a part of a partitioned cluster has admitted or charged.
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
