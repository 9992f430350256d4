package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/protocol"
)

// regions are clusters of one member each, and a coordinator. Time passes only when a test says so.
type regions struct {
	*testing.T
	now     int64
	nodes   []*Node
	pool    *federation.Memory
	cut     map[int]bool // regions that cannot reach the coordinator
	flights []flight
	terms   federation.RuleTerms
	calls   int
	ahead   int64                         // of the coordinators' clocks
	pools   map[uint32]*federation.Memory // by authority, in place of pool
	lent    map[uint32]map[int64]bool     // windows of which something was lent, by authority
}

// flight is a request on its way.
type flight struct {
	at     int64
	region int
	sent   int64
	r      CoordinatorRequest
}

const oneWay = int64(75 * time.Millisecond)

func newRegions(t *testing.T, weights ...uint32) *regions {
	w := &regions{T: t, now: t0, cut: map[int]bool{}, terms: federation.RuleTerms{Authority: federation.AuthorityID("home"), Floor: 5}}
	w.pool = federation.NewMemory(federation.Always(7), 0, func() int64 { return w.now })
	for i := range weights {
		w.nodes = append(w.nodes, member(Options{
			Self: "a", BootID: uint64(1001 + 2000*i),
			Federation: placeOf(i, weights...),
		}, t0, "a"))
	}
	return w
}

func (w *regions) ask(lim uint32, window time.Duration) Request {
	q := ask(1, lim, window, 1)
	q.Federation = &w.terms
	return q
}

// perform does what region i requires, and returns the results of requests that waited.
func (w *regions) perform(i int, fx Ready) (done []Done) {
	for _, r := range fx.PoolRequests {
		w.calls++
		w.flights = append(w.flights, flight{w.now + oneWay, i, w.now, r})
	}
	return fx.Done
}

// cancel ends the wait of a request of region i whose caller has given up.
func (w *regions) cancel(i int, q *Request) { w.nodes[i].Cancel(q.Key, q.Waiter) }

// wait lets time pass, in milliseconds, and returns the results of requests that waited.
func (w *regions) wait(ms int) (done []Done) {
	for range ms {
		w.now += int64(time.Millisecond)
		for len(w.flights) > 0 && w.flights[0].at <= w.now {
			f := w.flights[0]
			w.flights = w.flights[1:]
			done = append(done, w.arrive(&f)...)
		}
		for i, n := range w.nodes {
			if n.FlushIn() <= time.Millisecond {
				done = append(done, w.perform(i, n.Flush(w.now))...)
			}
			if w.now%(50*int64(time.Millisecond)) == 0 {
				done = append(done, w.perform(i, n.Tick(w.now))...)
			}
		}
	}
	return done
}

// arrive delivers a request to the coordinator, and its reply a round trip after the request.
func (w *regions) arrive(f *flight) (done []Done) {
	if w.cut[f.region] {
		return nil
	}
	pool := w.pool
	if w.pools != nil {
		pool = w.pools[f.r.Authority]
	}
	g, ok := pool.Grant(w.now+w.ahead, regionNames[f.region], &f.r.Request)
	if ok && g.Total > 0 {
		if w.lent == nil {
			w.lent = map[uint32]map[int64]bool{}
		}
		if w.lent[f.r.Authority] == nil {
			w.lent[f.r.Authority] = map[int64]bool{}
		}
		w.lent[f.r.Authority][g.Window] = true
	}
	w.now += oneWay // replies overtake nothing here
	defer func() { w.now -= oneWay }()
	if !ok {
		return nil
	}
	n := w.nodes[f.region]
	return w.perform(f.region, n.StepFederation(w.now, f.r.Authority, time.Duration(w.now-f.sent), []federation.PoolGrant{g}, false))
}

var regionNames = []string{"r0", "r1", "r2"}

// A region spends its floor without the coordinator, and then what that lends. In all no more than the limit is admitted.
func TestFloorThenEscrow(t *testing.T) {
	w := newRegions(t, 1, 1, 1)
	q := w.ask(300, time.Hour)
	for i := range 5 { // 5 % of 100
		if res := take(w.nodes[0], w.now, q); res.Kind != Decided || res.Authority != Full || res.Over {
			t.Fatalf("hit %d: %+v", i, res)
		}
	}
	q.Waiter = 1
	if res := take(w.nodes[0], w.now, q); res.Kind != Pending {
		t.Fatalf("above the floor: %+v", res)
	}
	done := w.wait(200)
	if len(done) != 1 || done[0].Waiter != 1 || done[0].Result.Over || done[0].Result.Authority != Escrow {
		t.Fatalf("after the reply: %+v", done)
	}
	if n := w.nodes[0].Stats(w.now).PoolWaits; n != 1 {
		t.Errorf("%d requests waited, by the statistics", n)
	}
	admitted := 6
	for i := range 3 * 20_000 {
		q.Waiter = i
		if res := take(w.nodes[i%3], w.now, q); res.Kind == Decided && !res.Over {
			admitted++
		}
		if i%3 == 0 {
			for _, d := range w.wait(1) {
				if d.Result.Kind == Decided && !d.Result.Over {
					admitted++
				}
			}
		}
	}
	if admitted < 297 || admitted > 300 {
		t.Errorf("%d of 300 admitted", admitted)
	}
}

// While the coordinator is away, a region does what its rule's outage policy says.
func TestCutRegion(t *testing.T) {
	for outage, want := range map[federation.Outage][2]int{
		federation.FailClosed:   {15, 15 + 285 - 20}, // floor, and escrow
		federation.RegionalOnly: {100, 110},          // the slice
		federation.Snapshot:     {15, 15 + 95 + 95},  // and a third of what was left
	} {
		w := newRegions(t, 1, 1, 1)
		w.terms.Outage, w.terms.Floor = outage, 15
		q := w.ask(300, time.Hour)
		admitted := 0
		spend := func(hits int) {
			for i := range hits {
				q.Waiter = i
				res := take(w.nodes[0], w.now, q)
				if res.Kind == Decided && !res.Over {
					admitted++
				}
				for _, d := range w.wait(1) {
					if d.Result.Kind == Decided && !d.Result.Over {
						admitted++
					}
				}
				if i >= 20 {
					q.Waiter = i - 20
					w.cancel(0, &q)
				}
			}
		}
		spend(10)
		w.cut[0] = true
		spend(6000)
		if admitted < want[0] || admitted > want[1] {
			t.Errorf("%v: %d admitted, not %d to %d", outage, admitted, want[0], want[1])
		}
		w.cut[0] = false
		before := admitted
		w.wait(11_000)
		spend(3000)
		if admitted <= before {
			t.Errorf("%v: nothing admitted after the outage", outage)
		}
	}
}

// TestOutageBound requires that the metric of hits above limits reports what a member has admitted above its floor while the
// coordinator is away, and only until the window ends; with fail_closed nothing.
func TestOutageBound(t *testing.T) {
	for outage, want := range map[federation.Outage][2]uint64{
		federation.FailClosed:   {0, 0},
		federation.RegionalOnly: {85 - 2*20, 85}, // slice less what was lent, and less the floor
		federation.Snapshot:     {60, 95},        // a third of what was left of the pool
	} {
		w := newRegions(t, 1, 1, 1)
		w.terms.Outage, w.terms.Floor = outage, 15
		w.now = t0 - t0%int64(time.Hour)
		q := w.ask(300, time.Hour)
		spend := func(hits int) (admitted uint64) {
			for i := range hits {
				q.Waiter = i
				if res := take(w.nodes[0], w.now, q); res.Kind == Decided && !res.Over {
					admitted++
				}
				w.wait(1)
				w.cancel(0, &q)
			}
			return admitted
		}
		spend(10)
		w.wait(200)
		bound := func() uint64 { return w.nodes[0].Stats(w.now).OutageBound }
		if n := bound(); n != 0 {
			t.Errorf("%v: %d while the coordinator answers", outage, n)
		}
		w.cut[0] = true
		before := uint64(10) // all from the floor of 15
		admitted := before + spend(6000)
		escrow := w.granted(0, q.Key)
		// What was admitted is the floor, the escrow, and the hits above them.
		if n := bound(); n < want[0] || n > want[1] || outage != federation.FailClosed && admitted > 15+escrow+n {
			t.Errorf("%v: the bound is %d, want %d to %d; %d admitted, %d lent", outage, n, want[0], want[1], admitted, escrow)
		}
		if f := w.nodes[0].Stats(w.now); f.Outages[outage] == 0 || f.Outages[federation.FailOpen] != 0 {
			t.Errorf("%v: %v decisions by outage policies", outage, f.Outages)
		}
		if f := w.nodes[0].Stats(w.now); f.Bound() != f.OutageBound {
			t.Errorf("%v: the sum is %d, the outage %d", outage, f.Bound(), f.OutageBound)
		}
		w.cut[0] = false
		w.wait(11_000)
		if spend(30); outage != federation.FailClosed && bound() == 0 {
			t.Errorf("%v: the bound is 0 before the window has ended", outage)
		}
		w.now += int64(time.Hour)
		w.wait(100)
		if n := bound(); n != 0 {
			t.Errorf("%v: the bound is %d in the next window", outage, n)
		}
	}
}

// granted returns how many hits region i has been lent for key in this window.
func (w *regions) granted(i int, key Key) uint64 {
	s, _ := w.nodes[i].shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.escrows.keys[key]; x != nil {
		return x.Granted(w.now)
	}
	return 0
}

// Only a charge waits for the coordinator: in stop mode, a request that waited in both rounds would have two results.
func TestDryRunsDoNotWait(t *testing.T) {
	w := newRegions(t, 1, 1)
	w.terms.Floor = 0
	q := w.ask(10, time.Hour)
	if res := take(w.nodes[0], w.now, withOp(q, DryRun)); res.Kind != Decided || res.Over {
		t.Errorf("dry run: %+v", res)
	}
	if res := take(w.nodes[0], w.now, withOp(q, Read)); res.Kind != Decided || res.After != 0 {
		t.Errorf("read: %+v", res)
	}
	results := make([]Result, 1)
	q.Waiter = 1
	w.nodes[0].DecideAll(w.now, true, []Request{q}, results)
	if done := w.wait(200); results[0].Kind != Pending || len(done) != 1 || done[0].Result.Over {
		t.Errorf("stop mode: %+v, then %+v", results[0], done)
	}
}

// Hits of a floor are replicated before they are admitted, as those of an ordinary rule of that limit, although other
// regions have the rest of the limit.
func TestFloorIsReplicated(t *testing.T) {
	w := newNetwork(t, 1, Options{Federation: placeOf(0, 1, 1)}, "a", "b")
	q := ask(ownedBy(t, w.ring(), "a", 0), 100, time.Hour, 1)
	q.Strict, q.Federation = true, &federation.RuleTerms{Authority: federation.AuthorityID("home"), Floor: 50}
	for i := range 25 {
		q.Waiter = i
		if res := take(w.nodes["a"], w.now, q); res.Kind != Pending {
			t.Fatalf("hit %d: %+v", i, res)
		}
		fx := w.nodes["a"].Flush(w.now)
		if len(fx.Messages) != 1 || fx.Messages[0].Msg.Kind != protocol.Replica || fx.Messages[0].Msg.Counters[0].Key != q.Key {
			t.Fatalf("hit %d: %+v", i, fx)
		}
		ack := w.nodes["b"].Step(w.now, "a", w.insts["a"]|1, &fx.Messages[0].Msg).Messages
		done := w.nodes["a"].Step(w.now, "b", w.insts["b"]|1, &ack[0].Msg).Done
		if len(done) != 1 || done[0].Result.Kind != Decided || done[0].Result.Over || done[0].Result.Authority != Full {
			t.Fatalf("hit %d: %+v", i, done)
		}
	}
}

// TestEscrows requires that the description of escrows has what the coordinator has lent to each region, and no more keys
// than requested.
func TestEscrows(t *testing.T) {
	w := newRegions(t, 1, 1)
	q := w.ask(200, time.Hour)
	for i := range 300 {
		for r := range w.nodes {
			q.Waiter = i
			take(w.nodes[r], w.now, q)
		}
		w.wait(5)
	}
	held, all := w.nodes[0].Escrows(w.now, 5)
	if len(held) != 1 || all != 1 || held[0].Key != q.Key || held[0].Authority != w.terms.Authority || held[0].Rule.Limit != 200 {
		t.Fatalf("%d, %+v", all, held)
	}
	e := held[0]
	if e.Usable != 190 || e.Used < e.Have || e.Have == 0 || e.Left > e.Have || !e.UsedUp || e.Demand < 100 || len(e.Others) != 1 || e.Others[0].Region != "r1" || e.Others[0].Granted == 0 {
		t.Errorf("%+v", e)
	}
	if none, all := w.nodes[0].Escrows(w.now, 0); len(none) != 0 || all != 1 {
		t.Errorf("%d of %d", len(none), all)
	}
	if away, rtt := w.nodes[0].CoordinatorState(e.Authority); away || rtt < 100*time.Millisecond || rtt > 200*time.Millisecond {
		t.Errorf("away %v, %v", away, rtt)
	}
	if away, _ := w.nodes[0].CoordinatorState(e.Authority + 1); !away {
		t.Error("an unknown coordinator is not away")
	}
}

// With reclaim, the hits of an escrow whose key gets another owner are spent once: by the next owner, or by whom the
// coordinator lends them to then.
func TestReclaimedHitsDoNotMove(t *testing.T) {
	for _, reclaim := range []time.Duration{0, federation.ReclaimCrash} {
		w := newRegions(t, 1)
		w.terms.Store.Reclaim = reclaim
		q := w.ask(1000, time.Hour)
		q.Hits = 10
		for i := range 12 { // more than the floor
			q.Waiter = i
			take(w.nodes[0], w.now, q)
			w.wait(200)
		}
		n := w.nodes[0]
		s, _ := n.shard(q.Key)
		x := s.escrows.keys[q.Key]
		b := x.Escrow.Balance()
		if b.Left == 0 {
			t.Fatal("nothing is left to move")
		}
		spent := b.Have - b.Left
		fx := Ready{}
		n.passOn(s, q.Key, x, w.now, handoff.Ownership{State: handoff.OwnedElsewhere, Member: "b"}, &fx)
		moved := uint64(0)
		for _, m := range fx.Leases {
			for _, notice := range m.Batch.Notices {
				moved += uint64(notice.Limit)
			}
		}
		if s.counts.MovedOut != moved {
			t.Errorf("%d of %d moved hits are counted", s.counts.MovedOut, moved)
		}
		for i := range fx.PoolRequests {
			w.pool.Grant(w.now, regionNames[0], &fx.PoolRequests[i].Request)
		}
		// The next owner's escrow requests all that it can get.
		next := federation.PoolRequest{Key: q.Key, Rule: q.Rule, Pool: 950, Epoch: 7, Boot: 99, Seq: uint64(w.now) + 1, Tokens: 1000, Reclaim: reclaim}
		g, ok := w.pool.Grant(w.now, regionNames[0], &next)
		if !ok || spent+moved+g.Total > 950 {
			t.Errorf("reclaim %v: %d spent, %d moved and %d lent of 950", reclaim, spent, moved, g.Total)
		}
	}
}
