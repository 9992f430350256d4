package hotkey

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

const second = int64(time.Second)

// testKey returns the digest of the i-th key.
func testKey(i uint64) Digest { return Digest{mix(i + 1), mix(i ^ 0xABCDEF)} }

// stream draws keys.
type stream func() uint64

func zipf(r *rand.Rand) stream { return rand.NewZipf(r, 1.1, 1, 1<<20-1).Uint64 }

// attack gives each of 5 keys 0.2% of all requests and uses every other key once.
func attack(r *rand.Rand) stream {
	fresh := uint64(1000)
	return func() uint64 {
		if r.IntN(100) == 0 {
			return r.Uint64N(5)
		}
		fresh++
		return fresh
	}
}

// exactly returns what a sketch with unlimited cells would return. Periods count from the first request.
func exactly(events []int64, born, now int64) float64 {
	turn := (now - born) / sketchPeriod
	sum, rest := 0.0, 1-float64((now-born)%sketchPeriod)/float64(sketchPeriod)
	for _, at := range events {
		switch (at - born) / sketchPeriod {
		case turn:
			sum++
		case turn - 1:
			sum += rest
		}
	}
	return sum / min(max(float64(now-born)/1e9, 1), 5)
}

func TestSketchFollowsTheLastSeconds(t *testing.T) {
	r, s := rand.New(rand.NewPCG(3, 4)), NewSketch(1)
	const born = 1_700_000_000 * second
	now, events, all := born, map[uint64][]int64{}, []int64(nil)
	for range 3000 {
		k := r.Uint64N(3)
		events[k], all = append(events[k], now), append(all, now)
		got, want := s.Add(now, testKey(k)), exactly(events[k], born, now)
		if math.Abs(got-want) > 1e-6*want {
			t.Fatalf("%v after birth key %d has %v per second, want %v", time.Duration(now-born), k, got, want)
		}
		if got, want := s.Total(now), exactly(all, born, now); math.Abs(got-want) > 1e-6*want {
			t.Fatalf("%v after birth all have %v per second, want %v", time.Duration(now-born), got, want)
		}
		now += r.Int64N(second / 50)
		if r.IntN(500) == 0 {
			now += r.Int64N(15 * second)
		}
	}
}

func TestSketchIsClearedWhenTheClockGoesBack(t *testing.T) {
	s := NewSketch(1)
	for i := range int64(1000) {
		s.Add(100*second+i*second/1000, testKey(1))
	}
	if got := s.Add(50*second, testKey(1)); got != 1 {
		t.Errorf("%v per second after the step, want 1", got)
	}
}

func TestSketchIsDeterministic(t *testing.T) {
	a, b, other := NewSketch(1), NewSketch(1), NewSketch(2)
	next, same := attack(rand.New(rand.NewPCG(5, 6))), true
	for i := range int64(300_000) {
		k, now := testKey(next()), i*20_000
		x, y := a.Add(now, k), b.Add(now, k)
		if x != y {
			t.Fatalf("%v and %v from the same seed", x, y)
		}
		same = same && x == other.Add(now, k)
	}
	if same {
		t.Error("another seed gives the same estimates")
	}
}

func TestSketchAllocatesNothing(t *testing.T) {
	s, i := NewSketch(1), uint64(0)
	if n := testing.AllocsPerRun(10_000, func() { i++; s.Add(int64(i)*second/100, testKey(i)) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkSketchAdd(b *testing.B) {
	for name, law := range map[string]func(*rand.Rand) stream{"zipf": zipf, "random": attack} {
		b.Run(name, func(b *testing.B) {
			next, keys := law(rand.New(rand.NewPCG(1, 2))), make([]Digest, 1<<16)
			for i := range keys {
				keys[i] = testKey(next())
			}
			s, now := NewSketch(1), int64(0)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				now += 1000
				s.Add(now, keys[i&(1<<16-1)])
			}
		})
	}
}
