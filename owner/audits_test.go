package owner

import (
	"slices"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/owner/internal/lending"
	"github.com/keyward/keyward/ring"
)

// auditedKeys returns requests for hits on n keys by rules of all algorithms. Every second rule has audit logs.
func auditedKeys(n int) (reqs []Request) {
	for i := range n {
		req := ask(i, 100, time.Hour, 3)
		req.Rule.Algorithm, req.Audit = algorithms[i/2%len(algorithms)], i%2 == 0
		reqs = append(reqs, req)
	}
	return reqs
}

// wantAudits requires one Audit of the given kind for each key with audit logs in reqs that moves, and none of another
// key. moves returns the member that writes it and the one that it names.
func (w *network) wantAudits(kind lending.AuditKind, reqs []Request, moves func(req *Request) (writer, other ring.ID)) {
	w.t.Helper()
	got := map[Key]int{}
	for id, audits := range w.audits {
		for _, a := range audits {
			if a.Kind != kind {
				continue
			}
			got[a.Key]++
			i := slices.IndexFunc(reqs, func(r Request) bool { return r.Key == a.Key })
			if writer, other := moves(&reqs[i]); writer != id || other != a.Member || a.Limit != 100 || a.At == 0 ||
				a.Used == 0 || a.Used > 3 || a.Used < 3 && !reqs[i].Rule.Algorithm.Bucket() {
				w.t.Errorf("%s: %+v, want one of %s about %s", id, a, writer, other)
			}
		}
	}
	for i := range reqs {
		want := 0
		if writer, _ := moves(&reqs[i]); writer != "" && reqs[i].Audit {
			want = 1
		}
		if n := got[reqs[i].Key]; n != want {
			w.t.Errorf("key %d (%v): %d records of kind %v, want %d", i, reqs[i].Rule.Algorithm, n, kind, want)
		}
	}
}

// TestMovesAreAudited requires that an owner writes one Audit of each key with audit logs that it releases to a member
// that joins, whether with all keys or alone, and that the next owner of a failed member's keys writes one of each when
// it first decides it.
func TestMovesAreAudited(t *testing.T) {
	w := newNetwork(t, 5, Options{}, "a", "b")
	reqs := auditedKeys(200)
	for i := range reqs {
		w.ask("a", reqs[i], func(Result) {})
	}
	w.run(time.Second)
	before := w.ring()
	w.boot("c", membership.Joining)
	w.adopt()
	w.run(time.Second)
	w.still = true // so that the ownership of the first keys is requested alone
	w.states["c"], w.nref = membership.Active, 3
	w.adopt()
	w.run(50 * time.Millisecond)
	askAll := func(reqs []Request) {
		for i := range reqs {
			w.ask("b", withOp(reqs[i], Read), func(Result) {})
		}
	}
	askAll(reqs[:100])
	w.still = false
	w.run(3 * time.Second)
	if w.given == 0 {
		t.Error("no key was released alone")
	}
	after := w.ring()
	owner := func(r *ring.Ring, req *Request) ring.ID { return r.At(r.Owner(req.RingPos)).ID }
	w.wantAudits(lending.AuditTransfer, reqs, func(req *Request) (writer, other ring.ID) {
		if owner(after, req) == "c" {
			writer, other = owner(before, req), "c"
		}
		return writer, other
	})
	askAll(reqs)
	w.run(time.Second)
	delete(w.nodes, "c")
	w.adopt()
	w.run(8 * time.Second)
	for range 2 {
		askAll(reqs)
		w.run(time.Second)
	}
	w.wantAudits(lending.AuditTakeover, reqs, func(req *Request) (writer, other ring.ID) {
		if owner(after, req) == "c" {
			writer, other = owner(before, req), "c"
		}
		return writer, other
	})
}

// TestApproximateKeysAreAudited requires that an owner knows from the reports of other members that a key has audit
// logs.
func TestApproximateKeysAreAudited(t *testing.T) {
	n := member(Options{Self: "a"}, t0, "a")
	meet(n, "b", 5)
	req := ask(1, 1000, time.Hour, 1)
	r := lease.GrantRequest{
		Key: req.Key, RingPos: req.RingPos, Rule: req.Rule, Seq: 1, Left: 1, Terms: lease.Terms{Audit: true, Slack: 50},
		State: limit.State{Slots: []limit.Slot{{Writer: 4, At: req.Rule.Index(t0), Charged: 1}}},
	}
	n.StepLease(t0, "b", 5, &lease.Batch{Kind: lease.Ask, Requests: []lease.GrantRequest{r}})
	s, hash := n.shard(req.Key)
	if e := s.counters.Owned.Find(hash, req.Key); e == nil || !s.counters.Audited(e) || !e.Complete() {
		t.Errorf("%+v is not a counter with audit logs", e)
	}
}

// TestLostAuditsAreCounted requires that Audits that find no room are counted, and that TakeAudits ends the degraded
// windows.
func TestLostAuditsAreCounted(t *testing.T) {
	n := New(Options{Self: "a"})
	const keys = 80_000
	for i := range keys {
		req := ask(i, 100, time.Hour, 1)
		req.Audit = true
		n.Degrade(t0, &req)
	}
	fx := n.Tick(t0 + second)
	made := uint64(len(fx.Audits))
	if fx.LostAudits == 0 || made == 0 || made+fx.LostAudits != keys {
		t.Errorf("%d made, %d lost of %d", made, fx.LostAudits, keys)
	}
	for i := range keys { // of each key that has room, the last window ends and the next one begins
		req := ask(i, 100, time.Hour, 1)
		req.Audit = true
		n.Degrade(t0+3600*second, &req)
	}
	fx = n.Tick(t0 + 3601*second)
	if n := uint64(len(fx.Audits)); n == 0 || n+fx.LostAudits != keys+made {
		t.Errorf("%d made, %d lost of %d", n, fx.LostAudits, keys+made)
	}
	last, lost := n.TakeAudits(t0 + 3602*second)
	if uint64(len(last)) != made || lost != 0 || last[0].Kind != lending.AuditDegradedLast {
		t.Errorf("%d at the end, %d lost, want %d", len(last), lost, made)
	}
	if last, lost = n.TakeAudits(t0 + 3602*second); len(last) != 0 || lost != 0 {
		t.Errorf("%d more, %d lost", len(last), lost)
	}
}

// TestDegradedWindowsAreAudited requires one Audit of the first and one of the last decision without the owner in a
// window, for rules with audit logs.
func TestDegradedWindowsAreAudited(t *testing.T) {
	n := New(Options{Self: "a"})
	req := ask(1, 100, time.Minute, 2)
	n.Degrade(t0, &req)
	req.Audit = true
	n.Degrade(t0, &req)
	n.Degrade(t0+second, &req)
	audits := n.Tick(t0 + 2*second).Audits
	if len(audits) != 1 || audits[0].Kind != lending.AuditDegradedFirst || audits[0].At != t0 {
		t.Fatalf("%+v", audits)
	}
	if audits = n.Tick(t0 + 10*second).Audits; len(audits) != 0 {
		t.Errorf("too early: %+v", audits)
	}
	audits = n.Tick(t0 + 11*second).Audits
	if len(audits) != 1 || audits[0].Kind != lending.AuditDegradedLast || audits[0].Hits != 4 || audits[0].Since != t0 || audits[0].At != t0+second {
		t.Errorf("%+v", audits)
	}
	n.Degrade(t0+20*second, &req)
	n.Degrade(t0+65*second, &req) // the next window
	kinds := []lending.AuditKind{}
	for _, a := range n.Tick(t0 + 66*second).Audits {
		kinds = append(kinds, a.Kind)
	}
	if want := []lending.AuditKind{lending.AuditDegradedFirst, lending.AuditDegradedLast, lending.AuditDegradedFirst}; !slices.Equal(kinds, want) {
		t.Errorf("%v, want %v", kinds, want)
	}
}
