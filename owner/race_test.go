package owner

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/ring"
)

// TestExactUnderConcurrency requires that concurrent requests admit exactly the limit.
func TestExactUnderConcurrency(t *testing.T) {
	for _, c := range []struct {
		limit uint32
		hits  uint64
		want  uint64 // admitted hits
	}{{1, 1, 1}, {7, 1, 7}, {100, 3, 99}, {1000, 1, 1000}, {5000, 7, 4998}, {10, 11, 0}, {0, 1, 0}} {
		n := alone(Options{})
		var admitted atomic.Uint64
		run(8, func(int) {
			for range 1000 {
				req := ask(1, c.limit, time.Hour, c.hits)
				if res := n.Decide(t0, &req); !res.Over {
					admitted.Add(c.hits)
				}
			}
		})
		if got := admitted.Load(); got != c.want {
			t.Errorf("limit %d by %d: admitted %d, want %d", c.limit, c.hits, got, c.want)
		}
		if res := take(n, t0, ask(1, c.limit, time.Hour, 0)); res.After != 8000*c.hits {
			t.Errorf("limit %d by %d: %d counted", c.limit, c.hits, res.After)
		}
	}
}

// TestStopModeUnderConcurrency requires that requests in stop mode that share keys in any order do not deadlock, and
// charge both keys if both have room and only the fuller one otherwise.
func TestStopModeUnderConcurrency(t *testing.T) {
	n := alone(Options{Seed: [2]uint64{3, 4}})
	var passed atomic.Uint64
	run(8, func(g int) {
		results := make([]Result, 2)
		for i := range 500 {
			reqs := []Request{ask(1, 300, time.Hour, 1), ask(2+i%3, 200, time.Hour, 1)}
			if g%2 == 0 {
				reqs[0], reqs[1] = reqs[1], reqs[0]
			}
			n.DecideAll(t0, true, reqs, results)
			if !results[0].Over && !results[1].Over {
				passed.Add(1)
			}
		}
	})
	if passed.Load() != 300 {
		t.Errorf("%d requests passed, want 300", passed.Load())
	}
	others := uint64(0)
	for i := range 3 {
		others += take(n, t0, ask(2+i, 200, time.Hour, 0)).After
	}
	if others != 300 {
		t.Errorf("the other keys were charged %d times for 300 requests that passed", others)
	}
}

// TestRingChangesDuringTakes runs everything concurrently with ring changes. It requires no race, no deadlock, no
// result by a ring that SetMembership has replaced, and at most the limit with full authority on every member.
func TestRingChangesDuringTakes(t *testing.T) {
	two := ringOf("a", "b")
	n := member(Options{Self: "a", DenyCache: 50, MaxKeys: 60}, t0, "a")
	mine := ownedBy(t, two, "a", 0)
	theirs := ownedBy(t, two, "b", 0)
	var admitted atomic.Uint64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			members := 1 + i%2
			n.SetMembership(t0, standing("a", []ring.ID{"a", "b"}[:members]...))
			req := withOp(ask(theirs, 10, time.Hour, 0), DryRun)
			if res := n.Decide(t0, &req); (res.Kind == Forward) != (members == 2) {
				t.Errorf("ring of %d: %+v", members, res)
			}
			n.Tick(t0)
			n.Stats(t0)
		}
	})
	run(6, func(g int) {
		results := make([]Result, 3)
		for i := range 2000 {
			req := ask(mine, 500, time.Hour, 1)
			reqs := []Request{req, ask(i%90, 5, time.Second, 1), withDegraded(ask(theirs, 10, time.Hour, 1), policy.FailClosed)}
			n.DecideAll(t0, g == 0, reqs[:1+i%3], results)
			if g > 0 && results[0].Kind == Decided && results[0].Authority == Full && !results[0].Over {
				admitted.Add(1)
			}
			n.Degrade(t0, &reqs[2])
			n.Observe(t0, &reqs[2], &results[0])
			n.Serve(t0, g == 1, reqs[1:], results)
		}
	})
	close(stop)
	wg.Wait()
	if admitted.Load() > 500 {
		t.Errorf("admitted %d of 500", admitted.Load())
	}
}

func run(goroutines int, f func(g int)) {
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() { f(g) })
	}
	wg.Wait()
}
