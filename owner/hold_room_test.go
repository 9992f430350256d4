package owner

import (
	"math"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
)

// TestSettledHoldsTakeNoRoom lets one key of a domain have as many settled holds as fit, and requires that other keys of
// the domain, whose claims other shards store, can still be reserved.
func TestSettledHoldsTakeNoRoom(t *testing.T) {
	const room = 1000
	r := limit.Rule{Window: time.Hour, Limit: math.MaxUint32}
	n := alone(Options{MaxHolds: room})
	do := func(k int, id uint64, op Op) Result {
		q := hold(k, id, op, r, 1)
		return n.Decide(t0+second, &q)
	}
	for id := range uint64(room) {
		do(0, id+1, Reserve)
		do(0, id+1, Release)
	}
	for k := 1; k <= 64; k++ {
		if res := do(k, 1, Reserve); res.Over {
			t.Errorf("the hold of key %d is refused", k)
		}
	}
}

// TestSettlementsOfNoHoldTakeNoRoom does the same with settlements of holds that no member knows.
func TestSettlementsOfNoHoldTakeNoRoom(t *testing.T) {
	const room = 1000
	r := limit.Rule{Window: time.Hour, Limit: math.MaxUint32}
	n := alone(Options{MaxHolds: room})
	do := func(k int, id uint64, op Op) Result {
		q := hold(k, id, op, r, 1)
		return n.Decide(t0+second, &q)
	}
	for id := range uint64(4 * room) {
		do(0, id+1, Release)
	}
	for k := 1; k <= 64; k++ {
		if res := do(k, 1, Reserve); res.Over {
			t.Errorf("the hold of key %d is refused", k)
		}
	}
}

func TestEnormousCommits(t *testing.T) {
	for _, a := range append(algorithms, limit.InFlight) {
		r := limit.Rule{Algorithm: a, Window: time.Hour, Limit: 100}
		t.Run(a.String(), func(t *testing.T) {
			n := alone(Options{})
			do := func(id uint64, op Op, hits uint64) Result {
				q := hold(1, id, op, r, hits)
				return n.Decide(t0+second, &q)
			}
			do(1, Reserve, 60)
			do(1, Commit, math.MaxUint64)
			for id := uint64(2); id < 6; id++ {
				if res := do(id, Reserve, 1); !res.Over {
					t.Errorf("admitted after a commit of all hits: %+v", res)
				}
				do(id+100, Commit, math.MaxUint64)
			}
			if res := do(50, Reserve, math.MaxUint64); !res.Over {
				t.Errorf("admitted: %+v", res)
			}
		})
	}
}

// BenchmarkHoldsOfOneKey reserves and settles on a key with many settled holds.
func BenchmarkHoldsOfOneKey(b *testing.B) {
	r := limit.Rule{Window: time.Hour, Limit: math.MaxUint32}
	n := alone(Options{})
	do := func(id uint64, op Op) {
		q := hold(0, id, op, r, 1)
		q.Hold.ID = claim.Ident{id * 0x9E3779B97F4A7C15, id}
		n.Decide(t0+second, &q)
	}
	id := uint64(0)
	for ; id < 50_000; id++ {
		do(id+1, Reserve)
		do(id+1, Release)
	}
	b.ResetTimer()
	for range b.N {
		id++
		do(id, Reserve)
		do(id, Release)
	}
}
