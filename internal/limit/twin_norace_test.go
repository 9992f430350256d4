//go:build !race

package limit

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// TestStateAgainstEveryHit compares the counter of one member with one that keeps every hit, with few enough hits for a
// log to be exact.
func TestStateAgainstEveryHit(t *testing.T) {
	for seed := range uint64(400) {
		for _, a := range all {
			rnd := rand.New(rand.NewPCG(seed, uint64(a)))
			r := anyRule(rnd, a)
			w := &every{rule: r}
			var s State
			now := t0 + rnd.Int64N(1e12)
			for i := range 120 {
				now += rnd.Int64N(int64(r.Window) / 16)
				if rnd.IntN(12) == 0 {
					now += rnd.Int64N(3 * int64(r.Window))
				}
				n := rnd.Uint64N(7)
				where := fmt.Sprintf("seed %d, %v %+v, step %d", seed, a, r, i)
				switch rnd.IntN(6) {
				case 0:
					before := w.used(now)
					w.refund(now, n)
					if d := r.Refund(&s, now, me, n); d.Over || d.Before != before || d.After != w.used(now) {
						t.Fatalf("%s: refund of %d: %+v, want %d -> %d", where, n, d, before, w.used(now))
					}
				case 1:
					if d, want := r.Peek(&s, now, n), w.used(now)+n; d.After != want || d.Over != (want > uint64(r.Depth())) {
						t.Fatalf("%s: peek %d: %+v, want after %d", where, n, d, want)
					}
				default:
					want := w.take(now, n)
					d := r.Take(&s, now, me, n)
					if d.Reset < time.Second {
						t.Fatalf("%s: reset %v", where, d.Reset)
					}
					if want.Reset = d.Reset; d != want {
						t.Fatalf("%s: take %d: %+v, want %+v", where, n, d, want)
					}
				}
				if rnd.IntN(4) == 0 {
					r.Trim(&s, now)
				}
				if got := r.Used(&s, now); got != w.used(now) {
					t.Fatalf("%s: used %d, want %d", where, got, w.used(now))
				}
				if end := r.Expires(&s); len(s.Slots) > 0 && r.Used(&s, max(now, end)) != 0 {
					t.Fatalf("%s: %d used at expiry", where, r.Used(&s, max(now, end)))
				}
				check(t, &s)
			}
		}
	}
}

// TestLongLog requires that a log of many hits never counts too few, and no hit that is more than a segment too old.
func TestLongLog(t *testing.T) {
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 99))
		r := Rule{Window: time.Minute, Limit: 500, Algorithm: SlidingLog}
		w := &every{rule: r}
		var s State
		now := t0
		for range 2500 {
			now += rnd.Int64N(int64(r.Window) / 300)
			w.take(now, 1)
			r.Take(&s, now, 3+2*uint64(now/int64(20*time.Second)%3), 1)
			got, least, most := r.Used(&s, now), w.used(now), w.since(now-int64(r.Window)-r.segmentWidth())
			if got < least || got > most {
				t.Fatalf("seed %d: used %d, want %d to %d", seed, got, least, most)
			}
			if len(s.Slots) > 3*(logSlots+3) {
				t.Fatalf("seed %d: %d slots", seed, len(s.Slots))
			}
			check(t, &s)
		}
		r.Trim(&s, now+int64(r.Window)+r.segmentWidth())
		if len(s.Slots) != 0 {
			t.Fatalf("%d slots after a window", len(s.Slots))
		}
	}
}
