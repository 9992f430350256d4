package hotkey

import (
	"math"
	"time"
)

const (
	sketchRows    = 2
	sketchColumns = 4096
	sketchBase    = 1.08
	sketchPeriod  = int64(5 * time.Second)
)

// Sketch estimates how often any of a large number of keys is added, in 128 KiB. It is a HeavyKeeper (Yang et al.,
// "HeavyKeeper: An Accurate Algorithm for Finding Top-k Elephant Flows", USENIX ATC 2018) with 2 rows of 4096 cells. A
// cell belongs to one key at a time; another key decrements a count of C only with probability 1.08^-C. A frequent key
// therefore keeps its cell in any flood of rare keys. An estimate exceeds the true count only if two keys agree in 32
// bits. Two sets of cells alternate every 5 s, so that estimates cover the last 5 s.
//
// Random numbers come from the seed, so equal calls have equal results. The caller guards a Sketch.
type Sketch struct {
	seed, random      uint64
	startedAt         int64
	periodStart       int64 // start of the current period
	current, previous *sketchCounts
	decay             [256]uint32 // by count, the probability of a decrement in 2^-32; 0 for higher counts
}

// sketchCounts contains the counts of one period: 64 KiB.
type sketchCounts struct {
	total uint64
	cells [sketchRows][sketchColumns]cell
}

type cell struct{ print, count uint32 }

// NewSketch returns an empty sketch. The seed should differ between processes, so that clients cannot choose keys that
// share cells.
func NewSketch(seed uint64) *Sketch {
	s := &Sketch{seed: mix(seed), random: seed, startedAt: math.MinInt64}
	s.current, s.previous = new(sketchCounts), new(sketchCounts)
	p := float64(math.MaxUint32)
	for i := range s.decay {
		s.decay[i] = uint32(p)
		p /= sketchBase
	}
	return s
}

// Add counts k once at now, in Unix nanoseconds. It returns the estimated rate per second over the last 5 s, or over
// the sketch's lifetime of at least 1 s.
func (s *Sketch) Add(now int64, k Digest) (perSecond float64) {
	s.rotate(now)
	h := mix(mix(k[0]^s.seed) + k[1])
	at := [sketchRows]uint64{h % sketchColumns, h / sketchColumns % sketchColumns}
	print := uint32(h >> 32)
	s.current.total++
	var count, last uint32
	for row, column := range at {
		count = max(count, s.hit(&s.current.cells[row][column], print))
		if b := &s.previous.cells[row][column]; b.print == print {
			last = max(last, b.count)
		}
	}
	return s.blend(now, float64(count), float64(last))
}

// Total returns the rate per second of all keys, over the same time as Add's estimates.
func (s *Sketch) Total(now int64) (perSecond float64) {
	s.rotate(now)
	return s.blend(now, float64(s.current.total), float64(s.previous.total))
}

// hit counts print in b, or decrements the count of another key there. It returns the count of print.
func (s *Sketch) hit(b *cell, print uint32) uint32 {
	if b.count > 0 && b.print != print {
		if b.count >= uint32(len(s.decay)) || uint32(s.draw()>>32) >= s.decay[b.count] {
			return 0
		}
		if b.count--; b.count > 0 {
			return 0
		}
	}
	b.print = print
	if b.count < math.MaxUint32 {
		b.count++
	}
	return b.count
}

// blend weights the previous period's count by the part of it within the last 5 s.
func (s *Sketch) blend(now int64, count, last float64) float64 {
	rest := float64(sketchPeriod-(now-s.periodStart)) / float64(sketchPeriod)
	span := min(max(now-s.startedAt, int64(time.Second)), sketchPeriod)
	return (count + last*rest) * float64(time.Second) / float64(span)
}

// rotate starts a new period when the current one has lasted 5 s. If the clock has stepped back, it clears the sketch.
func (s *Sketch) rotate(now int64) {
	age := now - s.periodStart
	if s.startedAt != math.MinInt64 && age >= 0 && age < sketchPeriod {
		return
	}
	if s.startedAt == math.MinInt64 || age < 0 {
		s.startedAt, s.periodStart = now, now
		*s.current, *s.previous = sketchCounts{}, sketchCounts{}
		return
	}
	s.current, s.previous = s.previous, s.current
	*s.current = sketchCounts{}
	if age >= 2*sketchPeriod {
		*s.previous = sketchCounts{}
	}
	s.periodStart = now - age%sketchPeriod
}

// draw returns the next number of splitmix64.
func (s *Sketch) draw() uint64 {
	s.random += 0x9E3779B97F4A7C15
	return mix(s.random)
}

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}
