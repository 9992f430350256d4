package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// byTenant returns req as a request of a tenant with that weight.
func byTenant(req Request, tenant uint64, weight uint32) Request {
	req.Tenant, req.TenantWeight = tenant, weight
	return req
}

// askTenants asks n for one hit of each tenant in turn, at even intervals over the window that begins at start, as
// often as their demands require: the first demand is the largest. It returns the hits that each tenant got.
func askTenants(t *testing.T, n *Node, start int64, req Request, demand ...int) []int {
	t.Helper()
	got := make([]int, len(demand))
	for i := range demand[0] {
		now := start + int64(req.Rule.Window)*int64(i)/int64(demand[0])
		for tenant, d := range demand {
			if (i+1)*d/demand[0] == i*d/demand[0] {
				continue
			}
			res := take(n, now, byTenant(req, uint64(tenant+1), 1))
			if res.Kind != Decided || res.Authority != Full || res.Over && res.Remaining != 0 {
				t.Fatalf("%+v", res)
			}
			if !res.Over {
				got[tenant]++
			} else if res.FairShare != (res.After <= uint64(req.Rule.Depth())) {
				t.Fatalf("the reason of a refusal: %+v", res)
			}
		}
	}
	return got
}

// TestFairShares requires, for each algorithm, that tenants who ask for less than their share get all of it while one
// tenant asks for ten times the limit, and that this tenant gets the rest.
func TestFairShares(t *testing.T) {
	for _, alg := range algorithms {
		n := alone(Options{})
		req := ask(1, 100, time.Minute, 1)
		req.Rule.Algorithm = alg
		var got []int
		for window := range int64(4) {
			got = askTenants(t, n, t0+window*60*second, req, 1000, 20, 10, 25)
		}
		sum := got[0] + got[1] + got[2] + got[3]
		if got[1] != 20 || got[2] != 10 || got[3] != 25 || sum > 100 || sum < 97 || alg == limit.FixedWindow && sum != 100 {
			t.Errorf("%v: the tenants have %d of 100, and asked for 1000, 20, 10 and 25", alg, got)
		}
		if f := n.Stats(t0 + 239*second); f.Fair.Refused == 0 || f.FairRows == 0 {
			t.Errorf("%v: %+v", alg, f.Fair)
		}
	}
}

// TestFairBurst requires that a bucket's depth is divided, whatever its relation to the limit.
func TestFairBurst(t *testing.T) {
	for _, burst := range []uint32{20, 300} {
		n := alone(Options{})
		req := ask(1, 100, time.Minute, 1)
		req.Rule.Algorithm, req.Rule.Burst = limit.TokenBucket, burst
		all := [3]int{}
		for window := range int64(9) {
			for i, n := range askTenants(t, n, t0+window*60*second, req, 1000, 30, 30) {
				if window >= 6 {
					all[i] += n
				}
			}
		}
		if sum := all[0] + all[1] + all[2]; all[1] < 89 || all[2] < 89 || sum < 290 || sum > 300+int(burst) {
			t.Errorf("burst %d: the tenants have %d of 300, and asked for 3000, 90 and 90", burst, all)
		}
	}
}

// TestFairRemaining requires that a tenant's remaining hits are those that it would get, and that a request which
// charges nothing reports the same.
func TestFairRemaining(t *testing.T) {
	n := alone(Options{})
	req := ask(1, 100, time.Minute, 1)
	askTenants(t, n, t0, req, 200, 200)
	now := t0 + 60*second
	for _, op := range []Op{DryRun, Take} {
		if res := take(n, now, byTenant(withOp(req, op), 1, 1)); res.Over || res.Remaining < 48 || res.Remaining > 49 {
			t.Errorf("operation %d: %+v, want half of the limit", op, res)
		}
	}
	if res := take(n, now, byTenant(withOp(req, Read), 1, 1)); res.After != 1 || res.Remaining < 48 || res.Remaining > 49 {
		t.Errorf("a reading: %+v", res)
	}
	if res := take(n, now, byTenant(withOp(ask(1, 100, time.Minute, 60), DryRun), 1, 1)); !res.Over || !res.FairShare {
		t.Errorf("a dry run above the share: %+v", res)
	}
	if res := take(n, now, byTenant(ask(1, 100, time.Minute, 60), 1, 1)); !res.Over || !res.FairShare {
		t.Errorf("a request above the share: %+v", res)
	}
	if res := take(n, now, withOp(req, Read)); res.After != 1 {
		t.Errorf("a refused request was charged: %+v", res)
	}
	all := n.Tenants(now, &req)
	if len(all) != 2 || all[0].Used != 1 || all[0].Offered != 61 || all[1].Left < 49 || all[1].Left > 50 {
		t.Errorf("the tenants are %+v", all)
	}
	take(n, now, byTenant(withOp(req, Refund), 1, 1))
	if all = n.Tenants(now, &req); all[0].Used != 0 {
		t.Errorf("after a refund, the tenants are %+v", all)
	}
}

// TestFairUnused requires that nothing decides a fair rule without its owner, and that what fairness refuses to one
// tenant is not refused to others: no deny cache, no hot keys, no leases.
func TestFairUnused(t *testing.T) {
	n := member(Options{Self: "a", DenyCache: 100, HotRate: 1}, t0, "a", "b")
	req := ask(ownedBy(t, ringOf("a", "b"), "a", 0), 10, time.Minute, 1)
	for i := range int64(2000) {
		if i%20 == 0 {
			n.Tick(t0 + i*second/20)
		}
		if res := take(n, t0+i*second/20, byTenant(req, 1, 1)); res.Hot || res.Path != Local || res.Authority == Cached {
			t.Fatalf("request %d: %+v", i, res)
		}
	}
	if f := n.Stats(t0 + 100*second); f.DenyKeys != 0 || f.Lease.HotKeys != 0 {
		t.Errorf("%d keys in the deny cache, %d hot keys", f.DenyKeys, f.Lease.HotKeys)
	}
	over := Result{Kind: Decided, Decision: limit.Decision{Over: true, Before: 9, After: 10}, FairShare: true}
	theirs := byTenant(ask(ownedBy(t, ringOf("a", "b"), "b", 0), 10, time.Minute, 1), 1, 1)
	n.Observe(t0+100*second, &theirs, &over)
	if res := take(n, t0+100*second, theirs); res.Kind != Forward || res.Member != "b" {
		t.Errorf("after a refusal by the owner: %+v", res)
	}
}

// TestFairTakeover requires that the limit holds when the key's successor takes over without tenants.
func TestFairTakeover(t *testing.T) {
	w := newNetwork(t, 1, Options{}, "a", "b", "c")
	req := ask(1, 300, 24*time.Hour, 1)
	admitted := uint64(0)
	spend := func(hits int) {
		for range hits {
			ids := w.ids()
			w.ask(ids[w.rnd.IntN(len(ids))], byTenant(req, 1+w.rnd.Uint64N(3), 1), func(res Result) {
				if !res.Over {
					admitted++
				}
			})
			w.step(true)
		}
	}
	first := w.ring().At(w.ring().Owner(req.RingPos)).ID
	spend(150)
	if got := len(w.nodes[first].Tenants(w.now, &req)); got != 3 {
		t.Errorf("the owner has %d tenants, want 3", got)
	}
	delete(w.nodes, first)
	w.run(300 * time.Millisecond)
	w.adopt()
	w.run(6 * time.Second)
	next := w.ring().At(w.ring().Owner(req.RingPos)).ID
	if got := w.nodes[next].Tenants(w.now, &req); len(got) != 0 {
		t.Errorf("the new owner begins with tenants: %+v", got)
	}
	spend(900)
	if u := tolerance(&req); admitted > 300+u || admitted < 300-u-3 {
		t.Errorf("%d of 300 admitted by two owners", admitted)
	}
	if got := len(w.nodes[next].Tenants(w.now, &req)); got != 3 {
		t.Errorf("the new owner has %d tenants, want 3", got)
	}
}

// TestFairDegraded requires that degraded policies decide without fairness, and within their own bounds.
func TestFairDegraded(t *testing.T) {
	for d, want := range map[policy.Degraded]int{policy.LocalShare: 30, policy.FailOpen: 30, policy.FailClosed: 0} {
		n := member(Options{Self: "a"}, t0, "a", "b", "c")
		req := withDegraded(ask(ownedBy(t, ringOf("a", "b", "c"), "b", 0), 90, time.Minute, 1), d)
		admitted := 0
		for i := range uint64(100) {
			other := byTenant(req, 1+i%2, 1)
			if res := n.Degrade(t0+second, &other); !res.Over {
				admitted++
			} else if res.FairShare {
				t.Fatalf("%v: %+v", d, res)
			}
		}
		if admitted != want {
			t.Errorf("%v: %d admitted, want %d", d, admitted, want)
		}
		if all := n.Tenants(t0+second, &req); len(all) != 0 {
			t.Errorf("%v: tenants %+v", d, all)
		}
	}
}

// TestFairRoutes requires that a route which makes a key hot does not make members decide a fair rule by leases.
func TestFairRoutes(t *testing.T) {
	w := newNetwork(t, 3, Options{HotRate: 200}, "a", "b", "c")
	req := byTenant(ask(1, 100_000, time.Hour, 1), 1, 1)
	for _, n := range w.nodes {
		n.SetRoutes([]hotkey.Route{{Owner: "q", Mode: hotkey.Spread}}, func(string) uint64 { return req.RingPos })
	}
	var sum tally
	w.pour(req, 2000, 3*time.Second, &sum)
	if sum.local > 0 || sum.admitted == 0 {
		t.Errorf("%+v of a fair rule are decided by leases", sum)
	}
}

func TestFairAllocatesNothing(t *testing.T) {
	n := alone(Options{})
	req := byTenant(ask(1, 1000, time.Minute, 1), 1, 2)
	other := byTenant(ask(1, 1000, time.Minute, 1), 2, 1)
	if got := testing.AllocsPerRun(1000, func() {
		n.Decide(t0, &req)
		n.Decide(t0, &other)
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
	for i := range int64(10) {
		n.Tick(t0 + (120+i)*second)
	}
	if f := n.Stats(t0 + 130*second); f.FairRows != 0 {
		t.Errorf("%d rows remain after two windows", f.FairRows)
	}
}
