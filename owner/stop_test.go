package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/ring"
)

func pair(hits uint64) []Request {
	return []Request{ask(1, 15, time.Hour, hits), ask(2, 14, time.Hour, hits)}
}

// The vector of envoyproxy/ratelimit's stop mode.
func TestStopMode(t *testing.T) {
	n := alone(Options{})
	as := make([]Result, 2)
	n.DecideAll(t0, false, pair(10), as)
	for i, c := range []struct {
		hits          uint64
		before, after [2]uint64
		remaining     [2]uint32
		over          [2]bool
	}{
		{1, [2]uint64{10, 10}, [2]uint64{11, 11}, [2]uint32{4, 3}, [2]bool{}},
		{2, [2]uint64{11, 11}, [2]uint64{13, 13}, [2]uint32{2, 1}, [2]bool{}},
		// 15 would fit, 15 > 14 does not: the first stays, and its statistics still see 2 hits before it.
		{2, [2]uint64{11, 13}, [2]uint64{13, 15}, [2]uint32{2, 0}, [2]bool{false, true}},
	} {
		n.DecideAll(t0, true, pair(c.hits), as)
		for j, a := range as {
			if a.Kind != Decided || a.Before != c.before[j] || a.After != c.after[j] || a.Remaining != c.remaining[j] || a.Over != c.over[j] {
				t.Errorf("request %d, descriptor %d: %+v", i, j, a)
			}
		}
	}
	if a := take(n, t0, ask(1, 15, time.Hour, 0)); a.After != 13 {
		t.Errorf("the first was charged: %+v", a)
	}
}

// Two questions on one key are each looked at alone and then charged in a row, as the original does.
func TestStopModeRepeatedKey(t *testing.T) {
	n := alone(Options{})
	take(n, t0, ask(1, 15, time.Hour, 14))
	qs := []Request{ask(1, 15, time.Hour, 1), ask(1, 15, time.Hour, 1), ask(2, 9, time.Hour, 1)}
	as := make([]Result, 3)
	n.DecideAll(t0, true, qs, as)
	if as[0].Over || as[0].After != 15 || !as[1].Over || as[1].After != 16 || as[2].After != 1 {
		t.Errorf("%+v", as)
	}
}

// A question of 0 hits stops the others as well when its key stands over the limit.
func TestStopModeOverWithoutHits(t *testing.T) {
	n := alone(Options{})
	take(n, t0, ask(1, 5, time.Hour, 6))
	qs := []Request{ask(2, 9, time.Hour, 3), ask(1, 5, time.Hour, 0)}
	as := make([]Result, 2)
	n.DecideAll(t0, true, qs, as)
	if as[0].After != 0 || as[0].Over || as[0].Remaining != 9 || !as[1].Over || as[1].After != 6 {
		t.Errorf("%+v", as)
	}
	take(n, t0, ask(2, 9, time.Hour, 8))
	n.DecideAll(t0, true, qs, as)
	if as[0].After != 11 || !as[0].Over || !as[1].Over {
		t.Errorf("both over: %+v", as)
	}
}

// With a deny cache nothing at all is charged then, not even what would go over.
func TestStopModeCachedWithoutHits(t *testing.T) {
	n := alone(Options{DenyCache: 10})
	take(n, t0, ask(1, 5, time.Hour, 6))
	take(n, t0, ask(2, 9, time.Hour, 8))
	qs := []Request{ask(2, 9, time.Hour, 3), ask(1, 5, time.Hour, 0)}
	as := make([]Result, 2)
	n.DecideAll(t0, true, qs, as)
	if as[0].After != 8 || as[0].Over || as[0].Remaining != 1 || !as[1].Over || as[1].Authority != Cached {
		t.Errorf("%+v", as)
	}
}

func TestStopModeWithCachedKey(t *testing.T) {
	n := alone(Options{DenyCache: 10})
	take(n, t0, ask(1, 5, time.Hour, 9))
	take(n, t0, ask(2, 5, time.Hour, 2))
	as := make([]Result, 2)
	qs := []Request{ask(2, 5, time.Hour, 1), ask(1, 5, time.Hour, 1)}
	n.DecideAll(t0, true, qs, as)
	if as[1].Authority != Cached || !as[1].Over || as[0].After != 2 || as[0].Before != 1 || as[0].Over {
		t.Errorf("stop mode: %+v", as)
	}
	n.DecideAll(t0, false, qs, as)
	if as[1].Authority != Cached || as[0].After != 3 {
		t.Errorf("plain: %+v", as)
	}
}

// Across owners the caller peeks at all and then takes on some; one owner's group alone is exact.
func TestStopModeAcrossOwners(t *testing.T) {
	r := ringOf("a", "b")
	nodes := map[ring.ID]*Node{}
	for _, id := range []ring.ID{"a", "b"} {
		nodes[id] = member(Options{Self: id}, t0, "a", "b")
	}
	qs := []Request{ask(ownedBy(t, r, "a", 0), 15, time.Hour, 13), ask(ownedBy(t, r, "b", 0), 14, time.Hour, 13)}
	as := make([]Result, 2)
	round := func() {
		for i := range qs {
			nodes[r.At(r.Owner(qs[i].RingPos)).ID].Serve(t0, "a", true, qs[i:i+1], as[i:i+1])
		}
	}
	round()
	qs[0].Hits, qs[1].Hits = 2, 2
	nodes["a"].DecideAll(t0, true, qs, as)
	if as[0].Kind != Forward || as[0].Member != "a" || as[1].Kind != Forward || as[1].Member != "b" {
		t.Fatalf("asked: %+v", as)
	}
	nodes["a"].Serve(t0, "b", true, qs, as)
	if as[0].Kind != Forward || as[1].Kind != Forward {
		t.Fatalf("served: %+v", as)
	}
	qs[0].Op, qs[1].Op = DryRun, DryRun
	round()
	qs[0].Op, qs[1].Op = Take, Take
	ApplyStop(qs, as)
	if qs[0].Op != Read || qs[1].Op != Take {
		t.Fatalf("second round: %+v", qs)
	}
	round()
	if as[0].After != 13 || as[0].Before != 11 || as[0].Remaining != 2 || !as[1].Over || as[1].After != 15 {
		t.Fatalf("answers: %+v", as)
	}
}

func TestStopModeWhilePaused(t *testing.T) {
	n := member(Options{Self: "a"}, t0, "a", "b")
	as := make([]Result, 2)
	n.DecideAll(t0+2*second, true, pair(1), as)
	if as[0].Authority != Share || as[1].Authority != Share {
		t.Errorf("asked: %+v", as)
	}
	n.Serve(t0+2*second, "b", true, pair(1), as)
	if as[0].Kind != Forward || as[0].Member != "" || as[1].Kind != Forward {
		t.Errorf("served: %+v", as)
	}
}
