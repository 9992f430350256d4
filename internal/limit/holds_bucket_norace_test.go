//go:build !race

package limit

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestBucketGivesBackWhatHasNotDrained compares a bucket with a queue whose oldest hits drain first.
func TestBucketGivesBackWhatHasNotDrained(t *testing.T) {
	exact := 0
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		r := historyRule(rnd, TokenBucket)
		q := &queue{interval: r.interval()}
		var s State
		given, now := int64(0), t0
		for range 60 {
			d := rnd.Int64N(int64(r.Window) / 10)
			now += d
			q.drain(d)
			open := slices.DeleteFunc(slices.Clone(q.all), func(x *queued) bool { return x.done })
			if len(open) > 0 && rnd.IntN(3) == 0 {
				k := rnd.IntN(len(open))
				x, hits := open[k], rnd.Uint64N(5)
				hits = min(hits, x.hits)
				back, most := r.GiveBack(&s, now, me, x.at-(given-x.given), hits), min(hits, uint64(x.left/r.interval()))
				if back > most || x.younger == 0 && back < most {
					t.Fatalf("seed %d, %+v: %d of %d came back, want %d (%d younger)", seed, r, back, hits, most, x.younger)
				}
				if x.younger == 0 && back > 0 {
					exact++
				}
				given += r.spanOf(back)
				q.giveBack(x, r.spanOf(back))
			} else if n := 1 + rnd.Uint64N(5); !r.Take(&s, now, me, n).Over {
				q.all = append(q.all, &queued{at: r.ChargedAt(&s, now, me), hits: n, left: r.spanOf(n), given: given})
			} else {
				q.all = append(q.all, &queued{left: s.level(now) - q.level(), done: true}) // refused, but perhaps charged
			}
			if got, want := s.level(now), q.level(); got != want {
				t.Fatalf("seed %d, %+v: level %d, want %d", seed, r, got, want)
			}
		}
	}
	if exact < 1000 {
		t.Errorf("only %d holds were given back exactly", exact)
	}
}

// queue is a bucket as a list of charges, the oldest first.
type queue struct {
	interval int64
	all      []*queued
}

type queued struct {
	at      int64
	hits    uint64
	left    int64 // nanoseconds that have not drained
	given   int64 // given back, of all charges, before this one
	younger int64 // given back of younger charges since
	done    bool
}

func (q *queue) level() (sum int64) {
	for _, x := range q.all {
		sum += x.left
	}
	return sum
}

func (q *queue) drain(d int64) {
	for _, x := range q.all {
		gone := min(d, x.left)
		x.left, d = x.left-gone, d-gone
	}
}

func (q *queue) giveBack(x *queued, ns int64) {
	x.left, x.done = x.left-ns, true
	for _, y := range q.all {
		if y == x {
			return
		}
		y.younger += ns
	}
}
