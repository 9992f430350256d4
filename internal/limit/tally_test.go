package limit

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

const year = 365 * 24 * time.Hour

var t0 = time.Date(2026, 11, 21, 12, 34, 56, 789, time.UTC).UnixNano()

// TestTakeAnswersAsTheOriginal uses the rows of envoyproxy/ratelimit's near-limit tests: count before, addend, and the
// response of the service.
func TestTakeAnswersAsTheOriginal(t *testing.T) {
	for _, c := range []struct {
		limit         uint32
		window        time.Duration
		before, hits  uint64
		after         uint64
		over          bool
		wantRemaining uint32
	}{
		{15, time.Hour, 10, 1, 11, false, 4},
		{15, time.Hour, 12, 1, 13, false, 2},
		{15, time.Hour, 14, 1, 15, false, 0},
		{15, time.Hour, 15, 1, 16, true, 0},
		{20, time.Second, 2, 3, 5, false, 15},
		{8, time.Second, 5, 2, 7, false, 1},
		{20, time.Second, 16, 3, 19, false, 1},
		{20, time.Second, 19, 3, 22, true, 0},
		{20, time.Second, 15, 7, 22, true, 0},
		{10, time.Second, 27, 3, 30, true, 0},
		{0, time.Second, 0, 1, 1, true, 0},
		{0, time.Second, 0, 0, 0, false, 0},
		{3, time.Second, 3, 0, 3, false, 0},
		{3, time.Second, 4, 0, 4, true, 0},
		{1, time.Second, 0, 1 << 63, 1 << 63, true, 0},
		{1, time.Second, 1 << 63, 1 << 63, math.MaxUint64, true, 0},
		{math.MaxUint32, time.Second, 0, math.MaxUint32, math.MaxUint32, false, 0},
		{math.MaxUint32, time.Second, 1, math.MaxUint32, 1 << 32, true, 0},
		{math.MaxUint32, time.Second, 0, math.MaxUint64, math.MaxUint64, true, 0},
	} {
		r := Rule{Window: c.window, Limit: c.limit}
		s, _ := r.TakeTally(Tally{}, t0, c.before)
		if p := r.PeekTally(s, t0, c.hits); p.Before != c.before || p.After != c.after || p.Over != c.over || p.Remaining != c.wantRemaining {
			t.Errorf("%+v: peek returns %+v", c, p)
		}
		s, d := r.TakeTally(s, t0, c.hits)
		if d.Before != c.before || d.After != c.after || d.Over != c.over || d.Remaining != c.wantRemaining {
			t.Errorf("%+v: take returns %+v", c, d)
		}
		if s.Count() != c.after {
			t.Errorf("%+v: count %d afterwards", c, s.Count())
		}
	}
}

func TestHitsAreChargedPastTheLimit(t *testing.T) {
	r := Rule{Window: time.Minute, Limit: 3}
	s, d := r.TakeTally(Tally{}, t0, 2)
	if d.Over || d.Remaining != 1 {
		t.Fatalf("first 2 of 3: %+v", d)
	}
	s, d = r.TakeTally(s, t0, 2)
	if !d.Over || d.After != 4 {
		t.Fatalf("2 more: %+v", d)
	}
	if d := r.PeekTally(s, t0, 0); !d.Over || d.After != 4 {
		t.Fatalf("check afterwards: %+v", d)
	}
}

func TestRefund(t *testing.T) {
	r := Rule{Window: time.Minute, Limit: 10}
	s, _ := r.TakeTally(Tally{}, t0, 7)
	for _, c := range []struct {
		hits, before, after uint64
		remaining           uint32
	}{
		{3, 7, 4, 6},
		{0, 4, 4, 6},
		{5, 4, 0, 10},
		{math.MaxUint64, 0, 0, 10},
	} {
		var d Decision
		s, d = r.RefundTally(s, t0, c.hits)
		if d.Before != c.before || d.After != c.after || d.Remaining != c.remaining || d.Over {
			t.Errorf("refund of %d: %+v", c.hits, d)
		}
	}
	s, _ = r.TakeTally(s, t0, 12)
	if _, d := r.RefundTally(s, t0, 1); d.Over || d.After != 11 {
		t.Errorf("a refund that leaves the key over: %+v", d)
	}
	if _, d := r.RefundTally(s, t0+int64(time.Minute), 5); d.Before != 0 || d.After != 0 {
		t.Errorf("a refund in the next window: %+v", d)
	}
}

// TestSaturation requires that nothing is refunded after saturation, because charges beyond it were not counted.
func TestSaturation(t *testing.T) {
	r := Rule{Window: time.Hour, Limit: math.MaxUint32}
	s, _ := r.TakeTally(Tally{}, t0, math.MaxUint64-2)
	s, _ = r.RefundTally(s, t0, math.MaxUint64-3)
	if s.Count() != 1 {
		t.Fatalf("count %d, want 1", s.Count())
	}
	s, d := r.TakeTally(s, t0, 10)
	if d.After != 11 || d.Over {
		t.Fatalf("take 10: %+v", d)
	}
	if s.Count() < 11 {
		t.Fatalf("count %d, below the truth", s.Count())
	}
	refunded := s.Refunded
	s, d = r.RefundTally(s, t0, math.MaxUint64)
	if s.Count() < 11 || s.Refunded != refunded || d.Over {
		t.Fatalf("refund at the ceiling: %+v, %+v", s, d)
	}
	if _, d = r.TakeTally(s, t0, 1); !d.Over || d.After != math.MaxUint64 {
		t.Fatalf("take at the ceiling: %+v", d)
	}
	if s, d = r.TakeTally(s, t0+int64(time.Hour), 1); d.Over || s.Count() != 1 {
		t.Fatalf("the next window: %+v", d)
	}
}

func TestWindows(t *testing.T) {
	second := int64(time.Second)
	for _, c := range []struct {
		window    time.Duration
		now       int64
		index     int64
		wantReset time.Duration
	}{
		{time.Second, 0, 0, time.Second},
		{time.Second, second - 1, 0, time.Second},
		{time.Second, second, 1, time.Second},
		{time.Minute, 2222 * second, 37, 58 * time.Second},
		{time.Minute, -1, -1, time.Second},
		{time.Minute, -60 * second, -1, time.Minute},
		{time.Minute, -60*second - 1, -2, time.Second},
		{7 * 24 * time.Hour, 0, 0, 7 * 24 * time.Hour},
		{year, int64(year) - 1, 0, time.Second},
		{year, -int64(year), -1, year},
		{year, math.MaxInt64, math.MaxInt64 / int64(year), 0},
		{year, math.MinInt64, math.MinInt64/int64(year) - 1, 0},
		{10 * time.Millisecond, 5 * 1e6, 0, time.Second},
		{0, 3 * second, 3, time.Second},
		{-time.Hour, 3 * second, 3, time.Second},
	} {
		r := Rule{Window: c.window, Limit: 5}
		if i := r.Index(c.now); i != c.index {
			t.Errorf("window %v at %d: index %d, want %d", c.window, c.now, i, c.index)
		}
		s, d := r.TakeTally(Tally{}, c.now, 3)
		if s.Window != c.index || d.After != 3 || d.Over {
			t.Errorf("window %v at %d: %+v, %+v", c.window, c.now, s, d)
		}
		if c.wantReset > 0 && d.Reset != c.wantReset || d.Reset < time.Second || d.Reset > c.window.Abs()+time.Second {
			t.Errorf("window %v at %d: reset %v, want %v", c.window, c.now, d.Reset, c.wantReset)
		}
	}
}

func TestClockStepsBack(t *testing.T) {
	r := Rule{Window: time.Second, Limit: 2}
	s, _ := r.TakeTally(Tally{}, t0, 2)
	s, d := r.TakeTally(s, t0-int64(time.Second), 1)
	if !d.Over || s.Window != r.Index(t0) {
		t.Fatalf("a second earlier: %+v, %+v", s, d)
	}
	if d.Reset < time.Second || d.Reset > 2*time.Second {
		t.Fatalf("reset %v", d.Reset)
	}
}

// twin keeps every hit and counts all of them each time.
type twin struct {
	rule Rule
	hits []struct {
		window int64
		n      uint64
	}
}

func (w *twin) count(now int64) (n uint64) {
	for _, h := range w.hits {
		if h.window == w.rule.Index(now) {
			n += h.n
		}
	}
	return n
}

func (w *twin) take(now int64, n uint64) bool {
	w.hits = append(w.hits, struct {
		window int64
		n      uint64
	}{w.rule.Index(now), n})
	return w.count(now) > uint64(w.rule.Limit)
}

func (w *twin) refund(now int64, n uint64) {
	for i := len(w.hits) - 1; i >= 0; i-- {
		if h := &w.hits[i]; h.window == w.rule.Index(now) {
			back := min(n, h.n)
			h.n -= back
			n -= back
		}
	}
}

func TestAgainstEveryHit(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		r := Rule{Window: []time.Duration{time.Second, time.Minute, year, 250 * time.Millisecond}[rnd.IntN(4)], Limit: rnd.Uint32N(60)}
		w := &twin{rule: r}
		var s Tally
		now := rnd.Int64N(4e18) - 2e18
		admitted := map[int64]uint64{}
		for range 200 {
			now += rnd.Int64N(int64(r.Window) / 8)
			n := rnd.Uint64N(9)
			var d Decision
			switch rnd.IntN(5) {
			case 0:
				w.refund(now, n)
				s, d = r.RefundTally(s, now, n)
				if d.Over {
					t.Fatalf("seed %d: a refund is over", seed)
				}
			case 1:
				if d, want := r.PeekTally(s, now, n), w.count(now)+n; d.After != want || d.Over != (want > uint64(r.Limit)) {
					t.Fatalf("seed %d: peek %d: %+v, want after %d", seed, n, d, want)
				}
			default:
				over := w.take(now, n)
				s, d = r.TakeTally(s, now, n)
				if d.Over != over {
					t.Fatalf("seed %d: over %v, want %v", seed, d.Over, over)
				}
				if !over {
					admitted[r.Index(now)] = w.count(now)
				}
			}
			if got := r.TallyAt(s, now).Count(); got != w.count(now) {
				t.Fatalf("seed %d: count %d, want %d", seed, got, w.count(now))
			}
		}
		for i, n := range admitted {
			if n > uint64(r.Limit) {
				t.Fatalf("seed %d: window %d had %d of %d after an admission", seed, i, n, r.Limit)
			}
		}
	}
}

func FuzzTally(f *testing.F) {
	f.Add(int64(time.Second), uint32(10), t0, t0+1, uint64(3), uint64(4), uint64(1))
	f.Add(int64(year), uint32(0), int64(-1), int64(math.MaxInt64), uint64(1<<63), uint64(1<<63), uint64(math.MaxUint64))
	f.Add(int64(0), uint32(math.MaxUint32), int64(math.MinInt64), int64(math.MaxInt64), uint64(math.MaxUint64), uint64(1), uint64(2))
	f.Add(int64(math.MaxInt64), uint32(1), int64(math.MaxInt64), int64(math.MinInt64), uint64(0), uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, window int64, limit uint32, t1, t2 int64, n1, n2, back uint64) {
		r := Rule{Window: time.Duration(window), Limit: limit}
		s, d := r.TakeTally(Tally{}, t1, n1)
		check := func(d Decision, refund bool) {
			if d.Reset < time.Second {
				t.Fatalf("reset %v", d.Reset)
			}
			if !refund && !d.Over && (d.After > uint64(limit) || uint64(d.Remaining) != uint64(limit)-d.After) || d.Over && d.Remaining != 0 {
				t.Fatalf("inconsistent: %+v", d)
			}
			if s.Refunded > s.Charged {
				t.Fatalf("refunded too much: %+v", s)
			}
		}
		check(d, false)
		if d.Before != 0 || d.After != n1 {
			t.Fatalf("first take: %+v", d)
		}
		if p, q := r.PeekTally(s, t2, n2), s; p.After < p.Before || q != s {
			t.Fatalf("peek: %+v", p)
		}
		s, d = r.TakeTally(s, t2, n2)
		check(d, false)
		if s.Count() < d.After {
			t.Fatalf("under-charged: %+v after %+v", s, d)
		}
		before := s
		s, d = r.RefundTally(s, t2, back)
		check(d, true)
		if d.After > d.Before || before.Charged != s.Charged {
			t.Fatalf("refund charges: %+v", d)
		}
	})
}

func TestNothingIsAllocated(t *testing.T) {
	r := Rule{Window: time.Second, Limit: 100}
	var s Tally
	if n := testing.AllocsPerRun(100, func() { s, _ = r.TakeTally(s, t0, 1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkTakeTally(b *testing.B) {
	r := Rule{Window: time.Second, Limit: 100}
	var s Tally
	for i := int64(0); b.Loop(); i++ {
		s, _ = r.TakeTally(s, t0+i, 1)
	}
}
