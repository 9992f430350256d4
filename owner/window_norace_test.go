//go:build !race

package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
)

// TestFixedWindowsTheShortWay compares the path for fixed windows with the general one, which stores every writer's
// slots.
func TestFixedWindowsTheShortWay(t *testing.T) {
	for seed := range uint64(200) {
		rnd := random(seed)
		short, general := alone(Options{}), alone(Options{})
		window := []time.Duration{time.Second, time.Minute, counter.Unit + 7, 50 * time.Microsecond}[rnd.IntN(4)]
		req := ask(1, uint32(rnd.IntN(6)), window, 0)
		now := t0
		for step := range 300 {
			req.Op, req.Hits = Op(rnd.IntN(4)), uint64(rnd.IntN(4))
			if rnd.IntN(50) == 0 {
				req.Hits = rnd.Uint64()
			}
			now += rnd.Int64N(int64(window)/20 + 1)
			a := countKey(short, &req, now, countFixed)
			b := countKey(general, &req, now, (*shard).countState)
			if a != b {
				t.Fatalf("seed %d, step %d, window %v, op %d of %d: %+v, in general %+v", seed, step, window, req.Op, req.Hits, a, b)
			}
		}
	}
}

// countKey decides req by f and its counter, which it adds if there is none.
func countKey(n *Node, req *Request, now int64, f func(*shard, *shardOp, *counter.Owned, *limit.Decision) bool) (d limit.Decision) {
	s, hash := n.shard(req.Key)
	op := shardOp{Request: req, now: now, hash: hash, table: counter.TableOwned, rule: req.Rule}
	e := s.counters.Owned.Find(hash, req.Key)
	if e == nil {
		e = s.insert(&op, false)
	}
	f(s, &op, e, &d)
	return d
}

func countFixed(s *shard, op *shardOp, e *counter.Owned, d *limit.Decision) bool {
	_, overflow := s.count(op, e, d)
	return !overflow
}
