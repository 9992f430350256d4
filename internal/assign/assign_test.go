package assign

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/keyward/keyward/envoy/rlqs"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/quota"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// cluster is the only member of a cluster, with a clock that the test sets.
type cluster struct {
	node  *owner.Node
	clock atomic.Int64
	as    func(*owner.Request, *owner.Result) // changes a result; nil: none
}

func newCluster(at int64) *cluster {
	c := &cluster{node: owner.New(owner.Options{Self: "a"})}
	c.clock.Store(at)
	c.node.Tick(at)
	c.node.SetMembership(at, &membership.View{Self: "a", Ring: ring.New([]ring.Member{{ID: "a"}}), NRef: 1, Joined: true})
	return c
}

func (c *cluster) now() time.Time { return time.Unix(0, c.clock.Load()) }

func (c *cluster) Decide(_ policy.Deadline, stop bool, qs []owner.Request, as []owner.Result) {
	c.node.DecideAll(c.clock.Load(), stop, qs, as)
	if c.as != nil {
		for i := range qs {
			c.as(&qs[i], &as[i])
		}
	}
}

// used returns the count of key in the current window.
func (c *cluster) used(r owner.Request) uint64 {
	r.Op = owner.DryRun
	return c.node.Decide(c.clock.Load(), &r).After
}

// sent collects the assignments.
type sent struct {
	mu  sync.Mutex
	all []rlqs.Assignment
	ack []uint64 // serials to acknowledge
}

func (s *sent) send(_, serial uint64, as []rlqs.Assignment) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, as...)
	s.ack = append(s.ack, serial)
	return nil
}

func (s *sent) take() ([]rlqs.Assignment, []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, ack := s.all, s.ack
	s.all, s.ack = nil, nil
	return all, ack
}

const aMinute = int64(time.Minute)

// rig is an Assigner of one member.
type rig struct {
	*Assigner
	*cluster
	sent    sent
	request owner.Request
	bucket  rlqs.QuotaBucket
}

func newRig(t *testing.T, at int64, limitOf uint32) *rig {
	r := &rig{cluster: newCluster(at)}
	r.request = owner.Request{Key: owner.Key{1, 2}, Rule: limit.Rule{Limit: limitOf, Window: time.Minute}}
	r.bucket = rlqs.QuotaBucket{Key: "k", Fit: rlqs.FitLimited, Match: config.Match{Limit: r.request.Rule}, Request: r.request}
	r.Assigner = New(Options{Charger: r.cluster, Send: r.sent.send, Members: func() int { return 1 }, Now: r.cluster.now})
	t.Cleanup(r.Assigner.Close)
	return r
}

func (r *rig) report(s, allowed, denied uint64, elapsed time.Duration) {
	r.Reported(r.cluster.now(), s, []rlqs.BucketUsage{{Bucket: &r.bucket, Allowed: allowed, Denied: denied, Elapsed: elapsed}})
}

// await returns the pushes that arrive until one of that kind does. It moves the clock, because pushes have distances.
func (r *rig) await(t *testing.T, kind rlqs.AssignmentKind, s uint64) (p rlqs.Assignment) {
	t.Helper()
	for range 1000 {
		all, acks := r.sent.take()
		for _, serial := range acks {
			r.Acked(r.cluster.now(), s, serial)
		}
		for _, p := range all {
			if p.Kind == kind {
				return p
			}
		}
		r.clock.Add(int64(10 * time.Millisecond))
		r.node.Tick(r.clock.Load())
		r.step(func(int64) {})
		time.Sleep(time.Millisecond) // requests to owners have goroutines
	}
	t.Fatalf("no push of kind %d", kind)
	return p
}

// TestAssignmentsAreCharged checks that an Envoy gets no more than what the owner has charged, that other callers of the
// rule see the charge, and that all Envoys and callers together get no more than the limit.
func TestAssignmentsAreCharged(t *testing.T) {
	r := newRig(t, 1000*aMinute+int64(time.Second), 1000)
	r.Opened(r.cluster.now(), 1, rlqs.EnvoyStream{Name: "one"})
	r.report(1, 0, 5, 0)
	p := r.await(t, rlqs.AssignPair, 1)
	if p.Tokens == 0 || uint64(p.Tokens) > r.used(r.request) {
		t.Errorf("%d hits are assigned, and %d charged", p.Tokens, r.used(r.request))
	}
	calls := r.request
	calls.Hits = 1
	admitted := uint64(0)
	for range 2000 {
		if res := r.node.Decide(r.clock.Load(), &calls); !res.Over {
			admitted++
		}
	}
	if charged := uint64(p.Tokens); admitted+charged > 1000 || admitted == 0 {
		t.Errorf("%d hits by calls and %d by the Envoy, of 1000", admitted, charged)
	}
	r.report(1, uint64(p.Tokens), 50, 5*time.Second)
	r.clock.Add(int64(5 * time.Second))
	r.report(1, 0, 50, 5*time.Second)
	if all, _ := r.sent.take(); len(all) > 0 && all[0].Kind == rlqs.AssignPair && admitted+uint64(p.Tokens)+uint64(all[0].Tokens) > 1000 {
		t.Errorf("%+v above the limit", all)
	}
}

// TestOnlyOwnersGrant checks that hits which no owner has charged, or not in the window, are not assigned, and that such a
// charge is given back.
func TestOnlyOwnersGrant(t *testing.T) {
	for name, change := range map[string]func(*owner.Request, *owner.Result){
		"local share": func(q *owner.Request, res *owner.Result) {
			if q.Op == owner.Reserve {
				res.Authority = owner.Share
			}
		},
		"another window": func(q *owner.Request, res *owner.Result) {
			if q.Op == owner.Reserve {
				res.Reset += time.Minute
			}
		},
	} {
		r := newRig(t, 1000*aMinute+int64(time.Second), 1000)
		r.as = change
		r.Opened(r.cluster.now(), 1, rlqs.EnvoyStream{Name: "one"})
		r.report(1, 0, 5, 0)
		for range 100 {
			r.clock.Add(int64(10 * time.Millisecond))
			r.step(func(int64) {})
			time.Sleep(time.Millisecond)
			all, _ := r.sent.take()
			for _, p := range all {
				if p.Kind == rlqs.AssignPair {
					t.Fatalf("%s: %+v", name, p)
				}
			}
		}
		r.Close()
		if used := r.used(r.request); used != 0 {
			t.Errorf("%s: %d hits stay charged", name, used)
		}
	}
}

// TestGapless checks that the hits of the next window are charged before it begins, and that the Envoy can go on over the
// turn of the window.
func TestGapless(t *testing.T) {
	r := newRig(t, 1000*aMinute+int64(40*time.Second), 6000)
	r.Opened(r.cluster.now(), 1, rlqs.EnvoyStream{Name: "one"})
	r.report(1, 0, 5, 0)
	r.await(t, rlqs.AssignPair, 1)
	for range 3 {
		r.clock.Add(int64(5 * time.Second))
		r.node.Tick(r.clock.Load())
		r.report(1, 100, 0, 5*time.Second)
		for range 20 {
			_, acks := r.sent.take()
			for _, serial := range acks {
				r.Acked(r.cluster.now(), 1, serial)
			}
			r.clock.Add(int64(10 * time.Millisecond))
			r.step(func(int64) {})
			time.Sleep(time.Millisecond)
		}
	}
	end := 1001 * aMinute
	for r.clock.Load() < end-int64(500*time.Millisecond) {
		r.clock.Add(int64(50 * time.Millisecond))
		r.node.Tick(r.clock.Load())
		r.step(func(int64) {})
		time.Sleep(time.Millisecond)
		if all, acks := r.sent.take(); len(acks) > 0 {
			for _, serial := range acks {
				r.Acked(r.cluster.now(), 1, serial)
			}
			for _, p := range all {
				if p.Kind == rlqs.AssignDeny {
					t.Fatalf("denied at %v", time.Duration(end-r.clock.Load()))
				}
			}
		}
	}
	r.clock.Store(end + 1)
	if used := r.used(r.request); used == 0 {
		t.Error("nothing is charged to the next window")
	}
}

// metric returns the value of a metric without labels.
func (r *rig) metric(t *testing.T, name string) float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(r.Collectors()...)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "keyward_quota_"+name {
			m := f.GetMetric()[0]
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// TestAnotherCounter checks that hits of one counter are not assigned for another, when a rule changes so that the same
// descriptor with the same limit has another counter, as with another algorithm.
func TestAnotherCounter(t *testing.T) {
	r := newRig(t, 1000*aMinute+int64(time.Second), 1000)
	r.Opened(r.cluster.now(), 1, rlqs.EnvoyStream{Name: "one"})
	r.report(1, 0, 5, 0)
	r.await(t, rlqs.AssignPair, 1)
	seconds := func(n int) (pairs []rlqs.Assignment) { // with load, and reports every 5 s
		for i := range n * 20 {
			r.clock.Add(int64(50 * time.Millisecond))
			r.node.Tick(r.clock.Load())
			if r.step(func(int64) {}); i%100 == 0 {
				r.report(1, 20, 100, 5*time.Second)
			}
			time.Sleep(time.Millisecond) // requests to owners have goroutines
			all, acks := r.sent.take()
			for _, serial := range acks {
				r.Acked(r.cluster.now(), 1, serial)
			}
			for _, p := range all {
				if p.Kind == rlqs.AssignPair && p.Tokens > 0 {
					pairs = append(pairs, p)
				}
			}
		}
		return pairs
	}
	seconds(57) // the next window is charged
	changed := r.bucket
	changed.Request.Key = owner.Key{3, 4}
	r.bucket, r.request = changed, changed.Request
	seconds(1)
	pairs := seconds(10) // of the next window
	charged := r.used(r.request)
	if len(pairs) == 0 {
		t.Fatal("nothing is assigned")
	}
	for _, p := range pairs {
		if uint64(p.Tokens) > charged {
			t.Errorf("%d hits are assigned, and %d are charged to the rule's counter", p.Tokens, charged)
		}
	}
}

// TestNotAssignedAnyMore checks that a key whose rule has lost its mechanism, or its limit, gives back at once what its
// Envoys do not have, to the counter that it was charged to.
func TestNotAssignedAnyMore(t *testing.T) {
	for _, fit := range []rlqs.BucketFit{rlqs.FitOwner, rlqs.FitUnlimited, rlqs.FitShadow} {
		r := newRig(t, 1000*aMinute+int64(time.Second), 1000)
		r.Opened(r.cluster.now(), 1, rlqs.EnvoyStream{Name: "one"})
		r.report(1, 0, 5, 0)
		p := r.await(t, rlqs.AssignPair, 1)
		before := r.used(r.request)
		r.bucket = rlqs.QuotaBucket{Key: "k", Fit: fit, Match: r.bucket.Match}
		r.report(1, 0, 5, 5*time.Second)
		r.Assigner.Close()
		if now := r.used(r.request); now != uint64(p.Tokens) || before <= now {
			t.Errorf("%v: %d hits are charged, %d before; the Envoy has %d", fit, now, before, p.Tokens)
		}
		if lost := testutil.ToFloat64(r.metrics.lost); lost > 0 {
			t.Errorf("%v: %v hits were not given back", fit, lost)
		}
	}
}

// TestMetricsOfStreams checks the metrics of open streams: ids, the age of reports, and responses without acknowledgement.
func TestMetricsOfStreams(t *testing.T) {
	r := newRig(t, 1000*aMinute+int64(time.Second), 1000)
	expect := func(when string, want ...float64) {
		t.Helper()
		for i, name := range []string{"ids", "report_age_seconds", "unacked_seconds"} {
			if got := r.metric(t, name); got != want[i] {
				t.Errorf("%s: %s is %v, want %v", when, name, got, want[i])
			}
		}
	}
	expect("no stream", 0, 0, 0)
	r.Opened(r.cluster.now(), 1, rlqs.EnvoyStream{Name: "one"})
	r.report(1, 0, 5, 0)
	r.await(t, rlqs.AssignPair, 1)
	sent := r.clock.Load() // await does not acknowledge the response that it waits for, unless it is the first one
	for _, serial := range []uint64{1, 2, 3} {
		r.Acked(r.cluster.now(), 1, serial)
	}
	r.report(1, 5, 0, 5*time.Second)
	r.clock.Store(sent + int64(3*time.Second))
	expect("3 s after a report", 1, 3, 0)
	r.Closed(r.cluster.now(), 1)
	expect("closed", 0, 0, 0)
	if admitted, refused := testutil.ToFloat64(r.metrics.admitted), testutil.ToFloat64(r.metrics.refused); admitted != 5 || refused != 5 {
		t.Errorf("%v admitted and %v refused requests, want 5 and 5", admitted, refused)
	}
}

// TestReturnsThatFail checks that hits which an owner keeps charged are not counted as returned.
func TestReturnsThatFail(t *testing.T) {
	for _, away := range []bool{false, true} {
		r := newRig(t, 1000*aMinute+int64(time.Second), 1000)
		r.as = func(q *owner.Request, res *owner.Result) {
			if away && q.Op != owner.Reserve {
				res.Authority = owner.Share
			}
		}
		r.Opened(r.cluster.now(), 1, rlqs.EnvoyStream{Name: "one"})
		r.report(1, 0, 5, 0)
		r.await(t, rlqs.AssignPair, 1)
		r.mu.Lock()
		mine := uint64(0)
		for _, l := range r.keys["k"].lots {
			mine += l.Hits
		}
		r.giveBack(r.clock.Load(), quota.WindowHits{Key: "k", Window: r.request.Rule.Index(r.clock.Load()), Hits: mine + 10})
		r.giveBack(r.clock.Load(), quota.WindowHits{Key: "?", Hits: 1})
		r.mu.Unlock()
		r.Close()
		want := [2]float64{float64(mine), 11}
		if away {
			want = [2]float64{0, float64(mine) + 11}
		}
		if got := [2]float64{r.metric(t, "returned_hits_total"), r.metric(t, "unreturned_hits_total")}; got != want || mine == 0 {
			t.Errorf("owner away %v: returned and unreturned %v, want %v", away, got, want)
		}
	}
}

// TestStates checks the description of keys and Envoys.
func TestStates(t *testing.T) {
	r := newRig(t, 1000*aMinute+int64(time.Second), 1000)
	r.Opened(r.cluster.now(), 1, rlqs.EnvoyStream{Name: "one"})
	r.report(1, 0, 5, 0)
	p := r.await(t, rlqs.AssignPair, 1)
	r.Opened(r.cluster.now(), 2, rlqs.EnvoyStream{Name: "two"})
	r.report(2, 0, 5, 0)
	now, states, total := r.States(10, 10)
	if now != r.clock.Load() || total != 1 || len(states) != 1 || states[0].Bucket != &r.bucket || states[0].Lines != 2 {
		t.Fatalf("%d, %+v of %d", now, states, total)
	}
	for _, e := range states[0].Envoys {
		if e.Name == "one" && (e.Kind != quota.Pair || e.Lease != uint64(p.Tokens)) || e.Name == "two" && e.Reported != now {
			t.Errorf("%+v", e)
		}
	}
	if _, states, _ = r.States(10, 1); len(states[0].Envoys) != 1 {
		t.Errorf("%d Envoys", len(states[0].Envoys))
	}
	if _, states, total = r.States(0, 10); len(states) != 0 || total != 1 || r.Streams() != 2 {
		t.Errorf("%+v of %d", states, total)
	}
}
