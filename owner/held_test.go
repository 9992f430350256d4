package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/owner/internal/lending"
	"github.com/keyward/keyward/ring"
)

// holderOf returns a network in which a member that does not own q has a lease of it.
func holderOf(t *testing.T, req Request, sum *tally) (w *network, holder, owner ring.ID) {
	t.Helper()
	w = newNetwork(t, 5, Options{}, "a", "b", "c")
	owner = w.ring().At(w.ring().Owner(req.RingPos)).ID
	for _, id := range w.ids() {
		if id != owner {
			holder = id
		}
	}
	for range 20 {
		w.ask(holder, req, sum.count(&req))
		w.run(2 * time.Millisecond)
	}
	held := w.nodes[holder].Held(w.now)
	if len(held) != 1 || held[0].Left == 0 || held[0].Member != owner {
		t.Fatalf("no lease: %+v", held)
	}
	return w, holder, owner
}

// TestUsageIsOneNumber requires that the owner's count includes lent hits, and that it reports how many are lent.
func TestUsageIsOneNumber(t *testing.T) {
	var sum tally
	req := leased(1, 1000, time.Hour)
	w, holder, owner := holderOf(t, req, &sum)
	left := w.nodes[holder].Held(w.now)[0].Left
	used := take(w.nodes[owner], w.now, withOp(req, Read)).After
	hot := w.nodes[owner].HotKeys(w.now)
	if used != sum.admitted+left || len(hot) != 1 || hot[0].Used != used || hot[0].Lent < left {
		t.Errorf("%d admitted and %d left are %d at the owner: %+v", sum.admitted, left, used, hot)
	}
	w.run(3 * time.Second) // what is idle comes back
	if used := take(w.nodes[owner], w.now, withOp(req, Read)).After; used != sum.admitted {
		t.Errorf("%d admitted are %d at the owner", sum.admitted, used)
	}
}

// TestLeaseOutlivesTheConnection requires that a member that no other confirms spends its lease and at most its local
// share in addition.
func TestLeaseOutlivesTheConnection(t *testing.T) {
	var sum tally
	req := leased(1, 1000, time.Hour)
	w, holder, _ := holderOf(t, req, &sum)
	n := w.nodes[holder]
	left := n.Held(w.now)[0].Left
	later := w.now + int64(n.options.Detection.OwnershipTTL()) + second
	for range left {
		if res := take(n, later, req); res.Over || res.Path != Leased || res.Authority != Full {
			t.Fatalf("%+v", res)
		}
	}
	if res := take(n, later, req); res.Authority != Share {
		t.Errorf("beyond the lease: %+v", res)
	}
}

// TestLeasesEndWithTheClock requires that a clock step makes holders and grantors drop what depends on earlier times.
func TestLeasesEndWithTheClock(t *testing.T) {
	var sum tally
	req := leased(1, 1000, time.Hour)
	w, holder, owner := holderOf(t, req, &sum)
	w.effects(holder, w.nodes[holder].ClockStepped(w.now-second))
	w.effects(owner, w.nodes[owner].ClockStepped(w.now-second))
	if held := w.nodes[holder].Held(w.now); held[0].Left != 0 {
		t.Errorf("still held: %+v", held)
	}
	if hot := w.nodes[owner].HotKeys(w.now); len(hot) != 0 {
		t.Errorf("still lent: %+v", hot)
	}
}

// TestRefundLiftsRefusals requires that refunded hits can be admitted again after all members have refused.
func TestRefundLiftsRefusals(t *testing.T) {
	var sum tally
	req := leased(1, 100, time.Hour)
	w, holder, owner := holderOf(t, req, &sum)
	for range 200 {
		w.ask(holder, req, sum.count(&req))
		w.run(2 * time.Millisecond)
	}
	if res := take(w.nodes[holder], w.now, req); res.Authority != Cached || sum.admitted != 100 {
		t.Fatalf("not refused locally: %+v, %+v", res, sum)
	}
	back := withOp(req, Refund)
	back.Hits = 10
	w.ask(owner, back, func(Result) {})
	w.run(50 * time.Millisecond)
	for range 50 {
		w.ask(holder, req, sum.count(&req))
		w.run(2 * time.Millisecond)
	}
	if sum.admitted != 110 {
		t.Errorf("%d of 110 admitted", sum.admitted)
	}
}

// TestSilentHoldersLoseTheirLease requires that the hits of a silent holder are reclaimed after the TTL, if the rule
// says so. That includes hits that it has spent and not reported, which is the price of the option.
func TestSilentHoldersLoseTheirLease(t *testing.T) {
	var sum tally
	req := leased(1, 1000, time.Hour)
	req.LeaseTerms = &lease.Terms{Reclaim: true, TTL: 2 * time.Second}
	w, holder, owner := holderOf(t, req, &sum)
	w.cut = func(from, to ring.ID) bool { return from == holder || to == holder }
	before := take(w.nodes[owner], w.now, withOp(req, Read)).After
	w.run(4 * time.Second)
	used, back := take(w.nodes[owner], w.now, withOp(req, Read)).After, w.nodes[owner].Stats(w.now).Lease.Reclaimed
	if back == 0 || used != before-back {
		t.Errorf("%d of %d stand, %d came back", used, before, back)
	}
	if left := w.nodes[holder].Held(w.now); len(left) > 0 && left[0].Left > 0 {
		t.Errorf("still held: %+v", left)
	}
}

// TestFailedHoldersLoseTheirLease requires that the hits of a holder are reclaimed when the cluster has declared it
// failed, not before, and that the bound contains them.
func TestFailedHoldersLoseTheirLease(t *testing.T) {
	for _, crash := range []bool{false, true} {
		n := member(Options{Self: "a"}, t0, "a")
		n.Tick(t0)
		meet(n, "b", 5)
		req := ask(1, 1000, time.Hour, 1)
		r := lease.GrantRequest{
			Key: req.Key, RingPos: req.RingPos, Rule: req.Rule, Seq: 1, Want: true, Always: true, Demand: 1e6,
			Terms: lease.Terms{ReclaimCrash: crash},
		}
		n.StepLease(t0, "b", 5, &lease.Batch{Kind: lease.Ask, Requests: []lease.GrantRequest{r}})
		n.Tick(t0 + second)
		lent := n.Stats(t0 + second).Lease
		if lent.Lent == 0 || lent.Reclaimed != 0 {
			t.Fatalf("%+v", lent)
		}
		n.SetMembership(t0+second, standing("a", "a"))
		n.Tick(t0 + second)
		f := n.Stats(t0 + second)
		if want := map[bool]uint64{true: lent.Lent}[crash]; f.Lease.Reclaimed != want || f.ReclaimBound != want || f.Bound() < want {
			t.Errorf("reclaim: crash %v: %d reclaimed of %d, bound %d", crash, f.Lease.Reclaimed, lent.Lent, f.ReclaimBound)
		}
		if f = n.Stats(t0 + 7200*second); f.ReclaimBound != 0 {
			t.Errorf("the bound is %d after the window", f.ReclaimBound)
		}
	}
}

// TestAuditOfGrantsAndReports requires an Audit of each grant and report of a rule with audit logs.
func TestAuditOfGrantsAndReports(t *testing.T) {
	n := member(Options{Self: "a"}, t0, "a")
	n.Tick(t0)
	meet(n, "b", 5)
	req := ask(1, 1000, time.Hour, 1)
	r := lease.GrantRequest{Key: req.Key, RingPos: req.RingPos, Rule: req.Rule, Seq: 1, Want: true, Always: true, Demand: 1e6, Name: "d\x00k=v\x00v"}
	for _, c := range []struct {
		knobs lease.Terms
		want  int
	}{{lease.Terms{}, 0}, {lease.Terms{Audit: true}, 1}, {lease.Terms{Audit: true, Slack: 5}, 1}} {
		r.Terms, r.Seq = c.knobs, r.Seq+1
		fx := n.StepLease(t0, "b", 5, &lease.Batch{Kind: lease.Ask, Requests: []lease.GrantRequest{r}})
		if len(fx.Audits) != c.want || c.want > 0 && (fx.Audits[0].Name.Name != "k=v" || (fx.Audits[0].Kind == lending.AuditReport) != (c.knobs.Slack > 0)) {
			t.Errorf("%+v: %+v", c.knobs, fx.Audits)
		}
	}
}

// TestLeasesOfStrangersAreRefused requires that messages of unknown members and other boots are refused, and that only
// the owner of a key lends it.
func TestLeasesOfStrangersAreRefused(t *testing.T) {
	var sum tally
	req := leased(1, 1000, time.Hour)
	w, holder, owner := holderOf(t, req, &sum)
	before := take(w.nodes[owner], w.now, withOp(req, Read)).After
	r := lease.GrantRequest{Key: req.Key, RingPos: req.RingPos, Rule: req.Rule, Seq: 1 << 62, Want: true, Always: true, Demand: 1e6}
	m := lease.Batch{Kind: lease.Ask, Requests: []lease.GrantRequest{r}}
	for _, c := range []struct {
		at, from ring.ID
		inst     uint64
	}{{owner, "x", 1}, {owner, holder, 12345}, {holder, owner, w.insts[owner] | 1}} {
		n := w.nodes[c.at]
		if fx := n.StepLease(w.now, c.from, c.inst, &m); len(fx.Leases)+len(fx.Messages) > 0 {
			t.Errorf("%+v: %+v", c, fx)
		}
	}
	if after := take(w.nodes[owner], w.now, withOp(req, Read)).After; after != before {
		t.Errorf("%d were charged", after-before)
	}
	if w.nodes[owner].serial.machine.Peer("x") != nil {
		t.Error("x became known")
	}
}
