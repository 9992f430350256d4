package hotkey

import (
	"slices"
	"testing"
)

// repeat returns n times rate.
func repeat(rate float64, n int) []float64 { return slices.Repeat([]float64{rate}, n) }

func TestHotAndNotHot(t *testing.T) {
	load := Baseline{Mean: 10, Absolute: 1000}
	for name, c := range map[string]struct {
		load   Baseline
		factor uint16
		rates  []float64 // one per tick
		want   []int     // ticks from 0 at which it becomes hot and stops being hot, alternating
	}{
		"above in one tick":           {load, 0, []float64{1500, 900, 1500, 900}, nil},
		"above in two ticks":          {load, 0, []float64{900, 1001, 1001}, []int{2}},
		"at the bound":                {load, 0, repeat(1000, 5), nil},
		"twice the bound":             {load, 0, []float64{2000, 900}, nil},
		"above twice the bound":       {load, 0, []float64{2001}, []int{0}},
		"relative: at the bound":      {Baseline{Mean: 200, Absolute: 1000}, 0, repeat(2000, 3), nil},
		"relative: above":             {Baseline{Mean: 200, Absolute: 1000}, 0, repeat(2001, 2), []int{1}},
		"relative: twice Absolute":    {Baseline{Mean: 200, Absolute: 1000}, 0, []float64{3999, 0}, nil},
		"relative: above twice":       {Baseline{Mean: 200, Absolute: 1000}, 0, []float64{4001}, []int{0}},
		"factor of the rule":          {Baseline{Mean: 200, Absolute: 1000}, 6, repeat(1201, 2), []int{1}},
		"factor below Absolute":       {Baseline{Mean: 200, Absolute: 1000}, 1, repeat(999, 3), nil},
		"half the bound keeps it":     {load, 0, append([]float64{3000}, repeat(500, 100)...), []int{0}},
		"29 s below half keep it":     {load, 0, append([]float64{3000}, repeat(499, 30)...), []int{0}},
		"30 s below half":             {load, 0, append([]float64{3000}, repeat(499, 31)...), []int{0, 31}},
		"a tick at half starts again": {load, 0, slices.Concat([]float64{3000}, repeat(499, 30), []float64{500}, repeat(499, 31)), []int{0, 62}},
		"hot again as at first":       {load, 0, slices.Concat([]float64{3000}, repeat(499, 31), []float64{1500, 1500}), []int{0, 31, 33}},
		"cools as slowly again":       {load, 0, slices.Concat([]float64{3000}, repeat(499, 31), []float64{3000}, repeat(499, 31)), []int{0, 31, 32, 63}},
		"no capacity known":           {Baseline{}, 0, repeat(1e9, 10), nil},
	} {
		t.Run(name, func(t *testing.T) {
			var r Rates
			var got []int
			k, now := testKey(1), int64(0)
			r.Follow(now, k, 0, c.factor)
			for i, rate := range c.rates {
				now += second
				r.Report(now, k, 1, rate) // sets an exact rate
				r.Follow(now, k, 0, c.factor)
				for _, ch := range r.Tick(now, c.load) {
					if ch.Key != k || ch.Rate != rate || ch.Hot != (len(got)%2 == 0) || r.Hot(k) != ch.Hot {
						t.Errorf("tick %d: %+v", i, ch)
					}
					got = append(got, i)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("changes at %v, want %v", got, c.want)
			}
		})
	}
}

// TestHotAmongFewKeys checks that a key becomes hot whenever its load begins, also if an epoch with its own requests ends before that, and
// that keys with the same load do not.
func TestHotAmongFewKeys(t *testing.T) {
	const each = second / 100 // 100 requests a second
	for name, c := range map[string]struct {
		others, otherRate int
		hot               bool
	}{
		"alone":              {0, 0, true},
		"one slow key":       {1, 5, true},
		"nine slow keys":     {9, 9, true},
		"others too near":    {9, 11, false},
		"one equal key":      {1, 100, false},
		"many equal keys":    {40, 100, false},
		"many, a tenth each": {100, 9, true},
	} {
		for begin := int64(0); begin < EpochSeconds*second; begin += second / 4 {
			var r Rates
			load, total := Baseline{Absolute: 40}, c.others*c.otherRate*EpochSeconds
			active, requests, became := c.others, total, false
			for now := int64(0); now < 4*EpochSeconds*second; now += each {
				if now%(second/2) == 0 {
					load.EpochEnd = now%(EpochSeconds*second) == 0 && now > 0
					for _, change := range r.Tick(now, load) {
						became = became || change.Hot
					}
					if load.EpochEnd {
						load.Active, load.Mean = float64(active), 0
						if active > 0 {
							load.Mean = float64(requests) / float64(active) / EpochSeconds
						}
						active, requests = c.others, total
					}
				}
				// The others are known since an epoch, and the key begins in any part of the next one.
				if now < EpochSeconds*second+begin {
					continue
				}
				if active == c.others {
					active++
				}
				requests++
				if k := testKey(1); !r.Count(k, now, 1) {
					r.Follow(now, k, 1, 0)
				}
			}
			if became != c.hot {
				t.Errorf("%s, begins %v ms into an epoch: hot %v, want %v", name, begin/(second/1000), became, c.hot)
			}
		}
	}
}

func TestColdKeysAreDropped(t *testing.T) {
	var r Rates
	r.Follow(0, testKey(1), 124, 0)
	r.Follow(0, testKey(2), 126, 0)
	r.Follow(0, testKey(3), 5000, 0)
	r.Tick(0, Baseline{Absolute: 1000})
	if r.Len() != 2 || r.RateOf(0, testKey(1)) != 0 || !r.Hot(testKey(3)) {
		t.Errorf("%d keys, the third hot: %v", r.Len(), r.Hot(testKey(3)))
	}
	for now := range int64(40) {
		r.Tick(now*second, Baseline{Absolute: 1000})
	}
	if r.Len() != 0 {
		t.Errorf("%d keys after 40 s without a request", r.Len())
	}
	if r.Count(testKey(3), 41*second, 1) {
		t.Error("counts a key that is not tracked")
	}
}

func TestHotKeysKeepTheirPlace(t *testing.T) {
	var r Rates
	r.Follow(0, testKey(0), 5000, 0)
	r.Tick(0, Baseline{Absolute: 1000})
	now := 20 * second // it has the lowest rate by now
	for i := range uint64(maxTracked - 1) {
		r.Follow(now, testKey(1+i), float64(100+i), 0)
	}
	if r.Follow(now, testKey(100), 99, 0) || !r.Follow(now, testKey(101), 101, 0) {
		t.Error("the coldest key is not replaced by a hotter one only")
	}
	if r.Len() != maxTracked || !r.Hot(testKey(0)) || r.RateOf(now, testKey(1)) != 0 {
		t.Errorf("%d keys, hot: %v, the coldest other at %v per second", r.Len(), r.Hot(testKey(0)), r.RateOf(now, testKey(1)))
	}
}

func TestReportStartsTracking(t *testing.T) {
	var r Rates
	k := testKey(1)
	r.Report(0, k, 1, 3000)
	r.Report(0, k, 2, 500)
	r.Report(second, k, 2, 400) // replaces the 500
	if got := r.RateOf(second, k); got != 3400 {
		t.Errorf("%v per second", got)
	}
	if got := r.RateOf(3*second, k); got != 400 {
		t.Errorf("%v per second when the first report is 3 s old", got)
	}
}

func TestReportsAreBounded(t *testing.T) {
	var r Rates
	k := testKey(1)
	for who := range uint64(10_000) {
		r.Report(0, k, who, 1)
	}
	if got := r.RateOf(0, k); got != maxReports {
		t.Errorf("%v per second reported, want %d", got, maxReports)
	}
}

func TestCountAllocatesNothing(t *testing.T) {
	var r Rates
	r.Follow(0, testKey(1), 100, 0)
	now := int64(0)
	if n := testing.AllocsPerRun(1000, func() { now += 1000; r.Count(testKey(1), now, 1); r.Hot(testKey(2)) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkRatesCount(b *testing.B) {
	for name, n := range map[string]uint64{"none": 0, "1": 1, "64": 64} {
		b.Run(name, func(b *testing.B) {
			var r Rates
			keys := make([]Digest, 64)
			for i := range keys {
				keys[i] = testKey(uint64(i))
				if uint64(i) < n {
					r.Follow(0, keys[i], 1e6, 0)
				}
			}
			now := int64(0)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				now += 1000
				r.Count(keys[i&63], now, 1)
			}
		})
	}
}

// TestAheadKeepsHot checks that hits which were charged ahead for Envoys keep a key hot without any request, until they
// are no longer charged.
func TestAheadKeepsHot(t *testing.T) {
	var r Rates
	k, load, window := testKey(1), Baseline{Absolute: 90}, 60*second
	r.Follow(0, k, 500, 0)
	r.Tick(0, load)
	if !r.Hot(k) {
		t.Fatal("not hot at first")
	}
	for now := second; now <= 600*second; now += second {
		if end := (now/window + 2) * window; now%window == 58*second && now < 360*second {
			r.Ahead(now, k, end, window, 3000)
			r.Ahead(now, k, end, window, 3000) // of another member
		}
		r.Tick(now, load)
		cooled := now >= (420+3+30)*second
		if now >= 100*second && r.Hot(k) == cooled {
			t.Fatalf("after %d s: hot %v, rate %.0f", now/second, r.Hot(k), r.RateOf(now, k))
		}
		if rate := r.RateOf(now, k); now >= 100*second && now < 420*second && rate != 100 {
			t.Fatalf("after %d s: rate %.0f, want 100", now/second, rate)
		}
	}
}
