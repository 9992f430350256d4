package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/internal/lab"
)

// hit is one request for a key, verdict the decision that its client got.
type (
	hit struct {
		key   string
		hits  uint64
		limit uint64
	}
	verdict struct {
		unknown bool // no answer came
		allowed bool
		left    uint64 // how much remains, when allowed
	}
)

// fixedWindow is the law of a fixed window in one of its windows: the state is the count; a request of c hits is allowed
// if and only if they still fit, and is counted in either case.
func fixedWindow() porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			parts := map[string][]porcupine.Operation{}
			for _, op := range history {
				k := op.Input.(hit).key
				parts[k] = append(parts[k], op)
			}
			var all [][]porcupine.Operation
			for _, p := range parts {
				all = append(all, p)
			}
			return all
		},
		Init: func() any { return uint64(0) },
		Step: func(state, input, output any) (bool, any) {
			in, out, after := input.(hit), output.(verdict), state.(uint64)+input.(hit).hits
			if out.unknown { // it is counted at some time, perhaps after all others
				return true, after
			}
			fits := after <= in.limit
			return out.allowed == fits && (!fits || out.left == in.limit-after), after
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
	}
}

// scribe records what a cluster's clients saw.
type scribe struct {
	f     *fleet
	start time.Time
	mu    sync.Mutex
	ops   []porcupine.Operation // guarded by mu
}

// ask asks a random member and records request and answer.
func (s *scribe) ask(client int, in hit, rule string) error {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	d := s.f.pick()
	call := time.Since(s.start)
	res, err := d.client.ShouldRateLimit(ctx, request("app", uint32(in.hits), rule, in.key))
	op := porcupine.Operation{ClientId: client, Input: in, Call: int64(call), Return: int64(time.Since(s.start))}
	if err != nil {
		op.Output, op.Return = verdict{unknown: true}, int64(time.Hour)
	} else {
		op.Output = verdict{allowed: res.OverallCode == rlsv3.RateLimitResponse_OK, left: uint64(res.Statuses[0].LimitRemaining)}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ops = append(s.ops, op)
	return err
}

// linearizable records a history of ten keys while something is done to the cluster, and has it checked.
func linearizable(t *testing.T, f *fleet, name string, meanwhile func()) {
	t.Helper()
	const clients, keys, limit = 10, 10, 1000
	s := &scribe{f: f, start: time.Now()}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var load sync.WaitGroup
	for c := range clients {
		load.Go(func() {
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for ctx.Err() == nil {
				<-tick.C
				in := hit{key: fmt.Sprintf("%s-%d", name, rand.IntN(keys)), hits: 1 + rand.Uint64N(4), limit: limit}
				if err := s.ask(c, in, "y1000"); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	enough := func(n int) func(context.Context) error {
		return func(context.Context) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.ops) < n {
				return fmt.Errorf("%d answers of %d", len(s.ops), n)
			}
			return nil
		}
	}
	wait, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	if err := lab.Await(wait, "a history", enough(500)); err != nil {
		t.Error(err)
	}
	meanwhile()
	if err := lab.Await(wait, "a history", enough(6000)); err != nil {
		t.Error(err)
	}
	cancel()
	load.Wait()
	judge(t, s.ops)
}

// judge checks a history and shows the first answers that fit no order.
func judge(t *testing.T, ops []porcupine.Operation) {
	t.Helper()
	begin := time.Now()
	allowed := 0
	for _, op := range ops {
		if op.Output.(verdict).allowed {
			allowed++
		}
	}
	res, info := porcupine.CheckOperationsVerbose(fixedWindow(), ops, time.Minute)
	t.Logf("%d requests, %d allowed: %v in %s", len(ops), allowed, res, time.Since(begin).Round(time.Millisecond))
	if res == porcupine.Ok {
		return
	}
	t.Errorf("the history is not linearizable: %v", res)
	for _, partition := range info.PartialLinearizationsOperations() {
		longest := slices.MaxFunc(append(partition, nil), func(a, b []porcupine.Operation) int { return len(a) - len(b) })
		if n := len(longest); n > 0 {
			last := longest[n-1]
			t.Logf("one key: %d answers can be ordered, the last of them %s", n, fixedWindow().DescribeOperation(last.Input, last.Output))
		}
	}
}

// TestLinearizable asks any member of a real cluster about single keys from many clients: the answers are those of one
// counter, as long as nothing happens and while members join, leave and restart.
func TestLinearizable(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": handoffRules}, Expect: 3, Args: []string{"--decision-timeout", "1s"}})
	f := newFleet(t, l, names(3)...)
	t.Run("nothing happens", func(t *testing.T) { linearizable(t, f, "quiet", func() {}) })
	t.Run("a member joins", func(t *testing.T) { linearizable(t, f, "join", func() { f.add("pod-d") }) })
	t.Run("a member leaves", func(t *testing.T) { linearizable(t, f, "leave", func() { f.retire(f.live[0]) }) })
	t.Run("a member restarts", func(t *testing.T) { linearizable(t, f, "restart", func() { f.restart(f.live[0]) }) })
}

// TestFixedWindowModel gives the checker histories that no counter can have made.
func TestFixedWindowModel(t *testing.T) {
	op := func(call, ret int64, hits uint64, out verdict) porcupine.Operation {
		return porcupine.Operation{Input: hit{key: "k", hits: hits, limit: 4}, Call: call, Return: ret, Output: out}
	}
	yes := func(left uint64) verdict { return verdict{allowed: true, left: left} }
	for name, c := range map[string]struct {
		ops  []porcupine.Operation
		want bool
	}{
		"in order":                       {[]porcupine.Operation{op(0, 1, 3, yes(1)), op(2, 3, 1, yes(0)), op(4, 5, 1, verdict{})}, true},
		"a denied request counts":        {[]porcupine.Operation{op(0, 1, 3, yes(1)), op(2, 3, 2, verdict{}), op(4, 5, 1, verdict{})}, true},
		"concurrent, either order":       {[]porcupine.Operation{op(0, 9, 3, yes(0)), op(1, 8, 1, yes(3))}, true},
		"unanswered, perhaps never made": {[]porcupine.Operation{op(0, 1, 3, yes(1)), op(2, 100, 3, verdict{unknown: true}), op(3, 4, 1, yes(0))}, true},
		"one too many":                   {[]porcupine.Operation{op(0, 1, 3, yes(1)), op(2, 3, 2, yes(0))}, false},
		"a count is forgotten":           {[]porcupine.Operation{op(0, 1, 3, yes(1)), op(2, 3, 1, yes(3))}, false},
		"refused too early":              {[]porcupine.Operation{op(0, 1, 3, yes(1)), op(2, 3, 1, verdict{})}, false},
		"after it was denied it counts":  {[]porcupine.Operation{op(0, 1, 3, yes(1)), op(2, 3, 2, verdict{}), op(4, 5, 1, yes(0))}, false},
	} {
		if got := porcupine.CheckOperations(fixedWindow(), c.ops); got != c.want {
			t.Errorf("%s: linearizable %v, want %v", name, got, c.want)
		}
	}
}
