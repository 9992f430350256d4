package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/ring"
)

// ownerOf returns the member that owns q's key.
func (w *network) ownerOf(q *Request) ring.ID { return w.ring().At(w.ring().Owner(q.RingPos)).ID }

// TestExtensionsAreReplicated requires that the successor of a crashed owner knows that a hold was extended.
func TestExtensionsAreReplicated(t *testing.T) {
	for _, a := range algorithms {
		w := newNetwork(t, 1, Options{}, "a", "b", "c")
		r := limit.Rule{Algorithm: a, Window: time.Hour, Limit: 100}
		q := hold(1, 1, Reserve, r, 5)
		q.Hold.TTL, q.Hold.Flags = 8*time.Second, claim.Releases
		w.ask("a", q, func(res Result) {
			if res.Over {
				t.Fatalf("%+v", res)
			}
		})
		w.run(time.Second)
		x := hold(1, 1, Extend, r, 0)
		w.ask("b", x, func(res Result) {
			if res.Over || res.Kind != Decided {
				t.Fatalf("%+v", res)
			}
		})
		w.run(time.Second)
		delete(w.nodes, w.ownerOf(&q))
		w.adopt()
		w.run(10 * time.Second)
		n := w.nodes[w.ownerOf(&q)]
		if holds, hits := n.HeldHits(q.Key); holds != 1 || hits != 5 {
			t.Errorf("%v: %d holds of %d hits are open after the first life of an extended hold", a, holds, hits)
		}
		w.ask("c", hold(1, 1, Release, r, 0), func(Result) {})
		for id := range w.nodes {
			w.ask(id, hold(1, 1, Release, r, 0), func(Result) {})
		}
		w.run(time.Second)
		if got := heldCount(t, n, w.now, q); got > 0 && !a.Bucket() || got > 1 { // a hit that has begun to drain does not come back
			t.Errorf("%v: the count is %d after the hold was released", a, got)
		}
	}
}

// TestRepeatedReservesWaitForTheReplica requires that a repeated request is not answered before the first one may be.
func TestRepeatedReservesWaitForTheReplica(t *testing.T) {
	w := newNetwork(t, 1, Options{}, "a", "b", "c")
	q := hold(1, 1, Reserve, limit.Rule{Window: time.Hour, Limit: 100}, 5)
	q.Strict = true
	n := w.nodes[w.ownerOf(&q)]
	for i := range 2 {
		q.Waiter = i
		if res := n.Decide(w.now, &q); res.Kind != Pending {
			t.Fatalf("request %d was decided before another member has its charge: %+v", i, res)
		}
	}
	w.run(100 * time.Millisecond)
	done := w.done[w.ownerOf(&q)]
	for i := range 2 {
		if res, ok := done[i]; !ok || res.Over || res.After != 5 {
			t.Errorf("request %d: %+v, %v", i, res, ok)
		}
	}
	q.Waiter = 2
	if res := n.Decide(w.now, &q); res.Kind != Decided || res.Over || res.After != 5 {
		t.Errorf("a repetition after the replica: %+v", res)
	}
}

// TestRepeatedReservesAreAdmitted requires that a repeated request is admitted as the first one was, also if commits have
// exceeded the limit since.
func TestRepeatedReservesAreAdmitted(t *testing.T) {
	n := alone(Options{})
	r := limit.Rule{Window: time.Hour, Limit: 100}
	first, second := hold(1, 1, Reserve, r, 60), hold(1, 2, Reserve, r, 40)
	n.Decide(t0, &first)
	n.Decide(t0, &second)
	second.Op, second.Hits = Commit, 90
	n.Decide(t0, &second)
	if res := n.Decide(t0+milli, &first); res.Over || res.After != 150 || res.Remaining != 0 {
		t.Errorf("%+v", res)
	}
}

// TestCopiesOfBucketClaims requires that a copy of an open claim of a bucket learns what was given back since it came: a
// new owner must not give back hits that have drained.
func TestCopiesOfBucketClaims(t *testing.T) {
	w := newNetwork(t, 1, Options{}, "a", "b", "c")
	r := limit.Rule{Algorithm: limit.TokenBucket, Window: 100 * time.Second, Limit: 100}
	first, second := hold(1, 1, Reserve, r, 10), hold(1, 2, Reserve, r, 10)
	w.ask("a", first, func(Result) {})
	w.ask("a", second, func(Result) {})
	w.run(time.Second)
	w.ask("a", hold(1, 1, Release, r, 0), func(Result) {})
	w.run(time.Second)
	plain := hold(1, 0, Take, r, 10)
	plain.Hold = nil
	w.ask("a", plain, func(Result) {})
	w.run(3 * time.Second)
	w.leave(t, w.ownerOf(&first), func(int) {})
	w.run(time.Second)
	n := w.nodes[w.ownerOf(&first)]
	before := heldCount(t, n, w.now, first)
	w.ask(w.ids()[0], hold(1, 2, Release, r, 0), func(Result) {})
	w.run(100 * time.Millisecond)
	// The second hold was charged on the first one's 10 hits, which came back after a second, and drains at one a second.
	if back := before - heldCount(t, n, w.now, first); back > 7 {
		t.Errorf("%d of 10 hits come back", back)
	}
}

// TestManyClaimsMoveWithRecentMarks requires that a member which gets a key with more claims than fit a message gives no
// hits back that its former owner has given back.
func TestManyClaimsMoveWithRecentMarks(t *testing.T) {
	w := newNetwork(t, 1, Options{}, "a", "b", "c")
	r := limit.Rule{Window: time.Hour, Limit: 10_000}
	reserve := func(id uint64) {
		q := hold(1, id, Reserve, r, 2)
		q.Hold.Max = 5000
		w.ask(w.ownerOf(&q), q, func(res Result) {
			if res.Over {
				t.Fatalf("%+v", res)
			}
		})
	}
	for id := range uint64(1000) {
		reserve(id)
	}
	w.run(time.Second)
	q := hold(1, 0, Reserve, r, 2)
	old := w.ownerOf(&q)
	for id := range uint64(100) { // the oldest ones, which come last in their chain
		w.ask(old, hold(1, id, Release, r, 0), func(Result) {})
	}
	var c protocol.CounterRecord
	c.Key, c.RingPos = q.Key, q.RingPos
	s, hash := w.nodes[old].shard(q.Key)
	s.mu.Lock()
	w.nodes[old].release(s, hash, w.now, "z", &c)
	s.mu.Unlock()
	settled := 0
	for i := range c.Claims {
		if c.Claims[i].State() != claim.Open {
			settled++
		}
	}
	if len(c.Claims) != protocol.MaxClaims || settled != 100 {
		t.Errorf("%d claims, %d of them settled", len(c.Claims), settled)
	}
}

// TestSettlementsReplaceSecondCharges requires that a member learns that a hold is settled also if it has the claim of a
// local share that has charged the same request, and that a new hold with the same id stays open.
func TestSettlementsReplaceSecondCharges(t *testing.T) {
	n := alone(Options{})
	q := hold(1, 1, Reserve, limit.Rule{Window: time.Hour, Limit: 10}, 1)
	s, _ := n.shard(q.Key)
	made := func(at int64, state claim.Stage, ttl time.Duration) *claim.Claim {
		c := &claim.Claim{ID: q.Hold.ID, Key: q.Key, RingPos: q.RingPos, Amount: 1}
		c.SetMade(at)
		c.SetTTL(ttl)
		c.SetState(state)
		return c
	}
	for at, want := range map[int64]claim.Stage{t0 + 10*milli: claim.Settled, t0 + 3*second: claim.Open} {
		if c := s.counters.Claims.Find(q.Hold.ID); c != nil {
			s.counters.Claims.Remove(c)
		}
		s.mergeClaim(t0+4*second, made(at, claim.Open, time.Minute), false)
		s.mergeClaim(t0+4*second, made(t0, claim.Settled, 2*time.Second), false)
		if c := s.counters.Claims.Find(q.Hold.ID); c.State() != want {
			t.Errorf("a claim made %v after one that is settled after 2s is in state %d", time.Duration(at-t0), c.State())
		}
	}
}

// TestFreedSlotsAreNotExtended requires that a request in flight learns that it has lost its slot, which another request
// may have by now, and that an earlier Extend keeps it.
func TestFreedSlotsAreNotExtended(t *testing.T) {
	const window = 10 * time.Second
	r := limit.Rule{Algorithm: limit.InFlight, Window: window, Limit: 1}
	w := newNetwork(t, 1, Options{}, "a", "b", "c")
	extend := func(id uint64) (res Result) {
		w.ask("a", hold(1, id, Extend, r, 0), func(r Result) { res = r })
		w.run(50 * time.Millisecond)
		return res
	}
	reserve := func(id uint64) (res Result) {
		q := hold(1, id, Reserve, r, 1)
		q.Hold.TTL = time.Minute
		w.ask("b", q, func(r Result) { res = r })
		w.run(50 * time.Millisecond)
		return res
	}
	if res := reserve(1); res.Over {
		t.Fatalf("%+v", res)
	}
	w.run(window * 3 / 4)
	if res := extend(1); res.Over || res.Kind != Decided {
		t.Errorf("the slot still counts: %+v", res)
	}
	w.run(window * 3 / 4)
	if res := reserve(2); !res.Over {
		t.Errorf("the slot was extended, and another request has it: %+v", res)
	}
	w.run(window)
	if res := extend(1); !res.Over || res.Kind != Decided {
		t.Errorf("the slot was freed, and Extend confirms it: %+v", res)
	}
	if res := reserve(3); res.Over {
		t.Errorf("the slot is free: %+v", res)
	}
}
