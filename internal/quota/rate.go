package quota

import (
	"math"
	"time"
)

// rate estimates the hits per second of a line, admitted and refused ones.
type rate struct {
	perSecond float64
	known     bool
}

// smoothing is the weight of a new measurement.
const smoothing = 0.2

// measure adds a measurement. One that is off by four standard deviations replaces the estimate.
func (r *rate) measure(hits uint64, over time.Duration) {
	seconds := over.Seconds()
	if seconds < 0.5 {
		return
	}
	x := float64(hits) / seconds
	deviation := math.Sqrt(r.perSecond*seconds+1) / seconds
	if !r.known || math.Abs(x-r.perSecond) > 4*deviation {
		r.perSecond = x
	} else {
		r.perSecond += smoothing * (x - r.perSecond)
	}
	r.known = true
}

// over returns the hits expected in nanoseconds.
func (r *rate) over(nanoseconds int64) float64 {
	return r.perSecond * time.Duration(nanoseconds).Seconds()
}

// need returns how many hits are enough for that time, with a margin in standard deviations.
func (r *rate) need(seconds, margin float64) float64 {
	n := r.perSecond * max(0, seconds)
	return n + margin*math.Sqrt(n) + 1
}

// fill divides a budget among needs by max-min fairness with weights, and writes the parts over the needs. The weights
// are positive. It overwrites them.
func fill(budget float64, needs, weights []float64) {
	open := sum(weights)
	for again := true; again && open > 0; open = sum(weights) {
		again = false
		level := max(0, budget) / open
		for i, w := range weights {
			if w > 0 && needs[i] <= level*w {
				budget -= needs[i]
				weights[i] = 0
				again = true
			}
		}
	}
	if open <= 0 {
		return
	}
	level := max(0, budget) / open
	for i, w := range weights {
		if w > 0 {
			needs[i] = level * w
		}
	}
}

func sum(values []float64) (total float64) {
	for _, v := range values {
		total += v
	}
	return total
}
