package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
)

// inSet returns a request of a set.
func inSet(i int, id uint64, op Op, r limit.Rule, hits uint64) Request {
	q := hold(i, id, op, r, hits)
	q.Hold.TTL, q.Hold.Flags = time.Second, claim.Set
	return q
}

// TestSetIsReleasedOnce requires of every algorithm that what a set charges is given back once while it is remembered,
// and stays charged afterwards, without any record that remains.
func TestSetIsReleasedOnce(t *testing.T) {
	for _, a := range algorithms {
		t.Run(a.String(), func(t *testing.T) {
			r := limit.Rule{Algorithm: a, Window: time.Hour, Limit: 10}
			n := alone(Options{})
			decide := func(now int64, q Request) Result { return n.Decide(now, &q) }
			now := t0 + second
			decide(now, inSet(1, 1, Take, r, 4))
			read := inSet(1, 2, Read, r, 3)
			want := decide(now, read)
			got := decide(now, inSet(1, 2, Take, r, 3))
			if got.Before != 4 || got.After != 7 || got.ReadRemaining != want.Remaining || got.ReadReset != want.Reset {
				t.Errorf("%+v; a Read: %+v", got, want)
			}
			over := decide(now, inSet(1, 3, Reserve, r, 4))
			if !over.Over || heldCount(t, n, now, read) != 7 {
				t.Errorf("a set beyond the limit: %+v", over)
			}
			for range 2 {
				decide(now+milli, inSet(1, 2, Release, r, 3))
				decide(now+milli, inSet(1, 3, Release, r, 4))
				if got := heldCount(t, n, now+milli, read); got != 4 {
					t.Errorf("%d charged after the release, want 4", got)
				}
			}
			if held, hits := n.HeldHits(key(1)); held != 0 || hits != 0 {
				t.Errorf("%d holds of %d hits", held, hits)
			}
			for i := range int64(20) {
				n.Tick(now + second + i*100*milli)
			}
			decide(now+3*second, inSet(1, 1, Release, r, 4))
			if got := heldCount(t, n, now+3*second, read); got == 0 {
				t.Error("a set that was not released in time was released")
			}
			if f := n.Stats(now + 3*second).Holds; f.Unmatched != 0 || f.Lapsed != 0 {
				t.Errorf("%+v", f)
			}
			for i := range n.shards {
				if x := n.shards[i].counters.Claims.Len(); x != 0 {
					t.Errorf("%d claims remain", x)
				}
			}
		})
	}
}

// TestSetsDoNotCrowdOutHolds requires that holds find room that claims of sets have taken, and that a set without room
// is admitted.
func TestSetsDoNotCrowdOutHolds(t *testing.T) {
	n := alone(Options{MaxHolds: 20})
	r := limit.Rule{Window: time.Hour, Limit: 1000}
	for id := range uint64(30) {
		q := inSet(1, id, Take, r, 1)
		if res := n.Decide(t0, &q); res.Over || res.After != id+1 {
			t.Fatalf("set %d: %+v", id, res)
		}
	}
	if f := n.Stats(t0).Holds; f.SetsUnclaimed != 20 { // half of the claims are of one domain
		t.Errorf("%d sets without a claim", f.SetsUnclaimed)
	}
	q := hold(1, 100, Reserve, r, 1)
	if res := n.Decide(t0, &q); res.Over {
		t.Errorf("a hold: %+v", res)
	}
}

// TestWholeCall requires that a refused call charges nothing, and which requests refuse it.
func TestWholeCall(t *testing.T) {
	r := limit.Rule{Window: time.Hour, Limit: 5}
	ask := func(i int, hits uint64, v Veto) Request {
		q := hold(i, 0, Take, r, hits)
		q.Hold, q.Whole, q.Veto = nil, true, v
		return q
	}
	for _, c := range []struct {
		name    string
		reqs    []Request
		refused bool
		want    [3]uint64 // charged to keys 1 to 3
	}{
		{"within", []Request{ask(1, 5, VetoAlone), ask(2, 1, VetoAlone)}, false, [3]uint64{5, 1}},
		{"one over", []Request{ask(1, 5, VetoAlone), ask(2, 6, VetoAlone)}, true, [3]uint64{}},
		{"one key twice", []Request{ask(1, 3, VetoAlone), ask(1, 3, VetoAlone)}, true, [3]uint64{}},
		{"shadow over", []Request{ask(1, 5, VetoAlone), ask(2, 6, VetoNever)}, false, [3]uint64{5, 6}},
		{"one of two quotas", []Request{ask(1, 5, VetoTogether), ask(2, 6, VetoTogether)}, false, [3]uint64{5}},
		{"both quotas", []Request{ask(1, 6, VetoTogether), ask(2, 6, VetoTogether), ask(3, 1, VetoAlone)}, true, [3]uint64{}},
		{"alone", []Request{ask(1, 6, VetoAlone)}, true, [3]uint64{}},
	} {
		n := alone(Options{DenyCache: 100})
		results := make([]Result, len(c.reqs))
		n.DecideAll(t0, false, c.reqs, results)
		if Refused(c.reqs, results) != c.refused {
			t.Errorf("%s: %+v", c.name, results)
		}
		for i, want := range c.want {
			if got := heldCount(t, n, t0, hold(i+1, 0, Read, r, 0)); got != want {
				t.Errorf("%s: %d charged to key %d, want %d", c.name, got, i+1, want)
			}
		}
	}
}

// TestRefusedHoldsAreNotMade requires that a call whose second hold is refused makes none.
func TestRefusedHoldsAreNotMade(t *testing.T) {
	n := alone(Options{})
	r := limit.Rule{Window: time.Hour, Limit: 5, Algorithm: limit.InFlight}
	reqs := []Request{hold(1, 1, Reserve, r, 1), hold(2, 1, Reserve, r, 6)}
	results := make([]Result, 2)
	n.DecideAll(t0, false, reqs, results)
	if results[0].Over || !results[1].Over {
		t.Errorf("%+v", results)
	}
	for i := range reqs {
		if held, hits := n.HeldHits(reqs[i].Key); held != 0 || hits != 0 {
			t.Errorf("key %d: %d holds of %d hits", i+1, held, hits)
		}
	}
	reqs[1] = hold(2, 1, Reserve, r, 5)
	for range 2 { // the second time, the requests are repeated ones
		n.DecideAll(t0, false, reqs, results)
		if results[0].Over || results[1].Over || heldCount(t, n, t0, reqs[1]) != 5 {
			t.Errorf("%+v", results)
		}
	}
}
