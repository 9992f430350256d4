//go:build !race

package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
)

// The short way for fixed windows decides as the general one does, which knows every writer's slots.
func TestFixedWindowsTheShortWay(t *testing.T) {
	for seed := range uint64(200) {
		rnd := random(seed)
		short, general := alone(Options{}), alone(Options{})
		window := []time.Duration{time.Second, time.Minute, counter.Unit + 7, 50 * time.Microsecond}[rnd.IntN(4)]
		q := ask(1, uint32(rnd.IntN(6)), window, 0)
		now := t0
		for step := range 300 {
			q.Op, q.Hits = Op(rnd.IntN(4)), uint64(rnd.IntN(4))
			if rnd.IntN(50) == 0 {
				q.Hits = rnd.Uint64()
			}
			now += rnd.Int64N(int64(window)/20 + 1)
			var a, b limit.Decision
			short.countKey(&q, now, (*shard).countFixed, &a)
			general.countKey(&q, now, (*shard).countState, &b)
			if a != b {
				t.Fatalf("seed %d, step %d, window %v, op %d of %d: %+v, in general %+v", seed, step, window, q.Op, q.Hits, a, b)
			}
		}
	}
}

// countKey answers q in the way of f, from the entry of its key, which is made if there is none.
func (n *Node) countKey(q *Request, now int64, f func(*shard, *shardOp, *counter.Owned, *limit.Decision) bool, d *limit.Decision) {
	s, h := n.shard(q.Key)
	x := shardOp{Request: q, now: now, hash: h, table: counter.TableOwned, rule: q.Rule}
	e := s.counters.Owned.Find(h, q.Key)
	if e == nil {
		e = s.insert(&x, false)
	}
	f(s, &x, e, d)
}

func (s *shard) countFixed(h *shardOp, e *counter.Owned, d *limit.Decision) bool {
	_, overflow := s.count(h, e, d)
	return !overflow
}
