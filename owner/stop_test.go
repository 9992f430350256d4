package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/ring"
)

func pair(hits uint64) []Request {
	return []Request{ask(1, 15, time.Hour, hits), ask(2, 14, time.Hour, hits)}
}

// TestStopMode compares stop mode with envoyproxy/ratelimit.
func TestStopMode(t *testing.T) {
	n := alone(Options{})
	results := make([]Result, 2)
	n.DecideAll(t0, false, pair(10), results)
	for i, c := range []struct {
		hits          uint64
		before, after [2]uint64
		remaining     [2]uint32
		over          [2]bool
	}{
		{1, [2]uint64{10, 10}, [2]uint64{11, 11}, [2]uint32{4, 3}, [2]bool{}},
		{2, [2]uint64{11, 11}, [2]uint64{13, 13}, [2]uint32{2, 1}, [2]bool{}},
		// 15 is within the limit of the first, and 15 > 14 is not: the first is not charged, and its statistics still
		// show 2 hits before it.
		{2, [2]uint64{11, 13}, [2]uint64{13, 15}, [2]uint32{2, 0}, [2]bool{false, true}},
	} {
		n.DecideAll(t0, true, pair(c.hits), results)
		for j, res := range results {
			if res.Kind != Decided || res.Before != c.before[j] || res.After != c.after[j] || res.Remaining != c.remaining[j] || res.Over != c.over[j] {
				t.Errorf("request %d, descriptor %d: %+v", i, j, res)
			}
		}
	}
	if res := take(n, t0, ask(1, 15, time.Hour, 0)); res.After != 13 {
		t.Errorf("the first was charged: %+v", res)
	}
}

// TestStopModeRepeatedKey requires that two requests for one key are each checked alone and then charged in a row, as
// in envoyproxy/ratelimit.
func TestStopModeRepeatedKey(t *testing.T) {
	n := alone(Options{})
	take(n, t0, ask(1, 15, time.Hour, 14))
	reqs := []Request{ask(1, 15, time.Hour, 1), ask(1, 15, time.Hour, 1), ask(2, 9, time.Hour, 1)}
	results := make([]Result, 3)
	n.DecideAll(t0, true, reqs, results)
	if results[0].Over || results[0].After != 15 || !results[1].Over || results[1].After != 16 || results[2].After != 1 {
		t.Errorf("%+v", results)
	}
}

// TestStopModeOverWithoutHits requires that a request of 0 hits keeps the others from being charged if its key is
// above the limit.
func TestStopModeOverWithoutHits(t *testing.T) {
	n := alone(Options{})
	take(n, t0, ask(1, 5, time.Hour, 6))
	reqs := []Request{ask(2, 9, time.Hour, 3), ask(1, 5, time.Hour, 0)}
	results := make([]Result, 2)
	n.DecideAll(t0, true, reqs, results)
	if results[0].After != 0 || results[0].Over || results[0].Remaining != 9 || !results[1].Over || results[1].After != 6 {
		t.Errorf("%+v", results)
	}
	take(n, t0, ask(2, 9, time.Hour, 8))
	n.DecideAll(t0, true, reqs, results)
	if results[0].After != 11 || !results[0].Over || !results[1].Over {
		t.Errorf("both over: %+v", results)
	}
}

// TestStopModeCachedWithoutHits requires that nothing is charged then with a deny cache, not even what exceeds a
// limit.
func TestStopModeCachedWithoutHits(t *testing.T) {
	n := alone(Options{DenyCache: 10})
	take(n, t0, ask(1, 5, time.Hour, 6))
	take(n, t0, ask(2, 9, time.Hour, 8))
	reqs := []Request{ask(2, 9, time.Hour, 3), ask(1, 5, time.Hour, 0)}
	results := make([]Result, 2)
	n.DecideAll(t0, true, reqs, results)
	if results[0].After != 8 || results[0].Over || results[0].Remaining != 1 || !results[1].Over || results[1].Authority != Cached {
		t.Errorf("%+v", results)
	}
}

func TestStopModeWithCachedKey(t *testing.T) {
	n := alone(Options{DenyCache: 10})
	take(n, t0, ask(1, 5, time.Hour, 9))
	take(n, t0, ask(2, 5, time.Hour, 2))
	results := make([]Result, 2)
	reqs := []Request{ask(2, 5, time.Hour, 1), ask(1, 5, time.Hour, 1)}
	n.DecideAll(t0, true, reqs, results)
	if results[1].Authority != Cached || !results[1].Over || results[0].After != 2 || results[0].Before != 1 || results[0].Over {
		t.Errorf("stop mode: %+v", results)
	}
	n.DecideAll(t0, false, reqs, results)
	if results[1].Authority != Cached || results[0].After != 3 {
		t.Errorf("plain: %+v", results)
	}
}

// TestStopModeAcrossOwners requires that a caller with keys of several owners sends DryRun for all and then Take for
// some, and that one owner's group alone is exact.
func TestStopModeAcrossOwners(t *testing.T) {
	r := ringOf("a", "b")
	nodes := map[ring.ID]*Node{}
	for _, id := range []ring.ID{"a", "b"} {
		nodes[id] = member(Options{Self: id}, t0, "a", "b")
	}
	reqs := []Request{ask(ownedBy(t, r, "a", 0), 15, time.Hour, 13), ask(ownedBy(t, r, "b", 0), 14, time.Hour, 13)}
	results := make([]Result, 2)
	round := func() {
		for i := range reqs {
			nodes[r.At(r.Owner(reqs[i].RingPos)).ID].Serve(t0, true, reqs[i:i+1], results[i:i+1])
		}
	}
	round()
	reqs[0].Hits, reqs[1].Hits = 2, 2
	nodes["a"].DecideAll(t0, true, reqs, results)
	if results[0].Kind != Forward || results[0].Member != "a" || results[1].Kind != Forward || results[1].Member != "b" {
		t.Fatalf("asked: %+v", results)
	}
	nodes["a"].Serve(t0, true, reqs, results)
	if results[0].Kind != Forward || results[1].Kind != Forward {
		t.Fatalf("served: %+v", results)
	}
	reqs[0].Op, reqs[1].Op = DryRun, DryRun
	round()
	reqs[0].Op, reqs[1].Op = Take, Take
	ApplyStop(reqs, results)
	if reqs[0].Op != Read || reqs[1].Op != Take {
		t.Fatalf("second round: %+v", reqs)
	}
	round()
	if results[0].After != 13 || results[0].Before != 11 || results[0].Remaining != 2 || !results[1].Over || results[1].After != 15 {
		t.Fatalf("answers: %+v", results)
	}
}

func TestStopModeWhilePaused(t *testing.T) {
	n := member(Options{Self: "a"}, t0, "a", "b")
	results := make([]Result, 2)
	n.DecideAll(t0+2*second, true, pair(1), results)
	if results[0].Authority != Share || results[1].Authority != Share {
		t.Errorf("asked: %+v", results)
	}
	n.Serve(t0+2*second, true, pair(1), results)
	if results[0].Kind != Forward || results[0].Member != "" || results[1].Kind != Forward {
		t.Errorf("served: %+v", results)
	}
}
