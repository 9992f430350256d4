//go:build !race

package hotkey

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// twin keeps every event of every tracked key.
type twin map[Digest]*twinKey

type twinKey struct {
	at      []int64
	n       []float64
	reports map[uint64]report
	hot     bool
}

func (k *twinKey) rate(now int64) float64 {
	sum := 0.0
	for i, at := range k.at {
		sum += k.n[i] * math.Exp(-float64(now-at)/1e9)
	}
	for _, p := range k.reports {
		if now < p.until {
			sum += p.rate
		}
	}
	return sum
}

// follow returns nil if there is no room.
func (w twin) follow(now int64, k Digest, rate float64) *twinKey {
	if w[k] == nil && len(w) == maxTracked {
		var out *Digest
		for _, other := range slices.SortedFunc(maps.Keys(w), func(a, b Digest) int { return 2*b2i(w[a].rate(now) > w[b].rate(now)) - 1 }) {
			if !w[other].hot {
				out = &other
				break
			}
		}
		if out == nil || w[*out].rate(now) >= rate {
			return nil
		}
		delete(w, *out)
	}
	if w[k] == nil {
		w[k] = &twinKey{reports: map[uint64]report{}}
	}
	return w[k]
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestRatesAgainstTwin(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var r Rates
		w, now, load := twin{}, 1_700_000_000*second, Baseline{Mean: 5, Absolute: 400}
		for range 3000 {
			now += rnd.Int64N(second / 20)
			k, rate := testKey(rnd.Uint64N(100)), 1000*rnd.Float64()
			switch rnd.IntN(8) {
			case 0:
				known := w[k] != nil
				x := w.follow(now, k, rate)
				if r.Follow(now, k, rate, 0) != (x != nil) {
					t.Fatalf("seed %d: followed: %v", seed, x == nil)
				}
				if x != nil && !known {
					x.at, x.n = append(x.at, now), append(x.n, rate)
				}
			case 1:
				if x, who := w[k], rnd.Uint64N(4); x != nil { // a key added by a report may tie with others at 0
					x.reports[who] = report{who: who, until: now + 3*second, rate: rate}
					r.Report(now, k, who, rate)
				}
			case 2:
				if rnd.IntN(10) == 0 {
					for _, c := range r.Tick(now, load) {
						w[c.Key].hot = c.Hot
					}
					maps.DeleteFunc(w, func(_ Digest, x *twinKey) bool { return !x.hot && x.rate(now) < load.Absolute/8 })
				}
			default:
				x := w[k]
				if r.Count(k, now, 3) != (x != nil) {
					t.Fatalf("seed %d: counted: %v", seed, x == nil)
				}
				if x != nil {
					x.at, x.n = append(x.at, now), append(x.n, 3)
				}
			}
			compare(t, &r, w, now)
		}
	}
}

func compare(t *testing.T, r *Rates, w twin, now int64) {
	t.Helper()
	seen := 0
	r.All(now, func(k Digest, rate float64, hot bool) {
		seen++
		x := w[k]
		if x == nil || x.hot != hot || r.Hot(k) != hot || rate != r.RateOf(now, k) || math.Abs(rate-x.rate(now)) > 1e-6*(1+rate) {
			t.Fatalf("key %x: %v per second, hot %v; twin %+v", k, rate, hot, x)
		}
	})
	if seen != len(w) || r.Len() != seen {
		t.Fatalf("%d keys, %d are tracked, the twin has %d", r.Len(), seen, len(w))
	}
}
