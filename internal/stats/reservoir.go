package stats

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// reservoirSize is the most durations of a timer that one flush sends.
const reservoirSize = 512

// reservoir keeps a uniform sample of the durations since it was last drained, without a lock. A duration that races
// with a flush may be counted in either interval.
type reservoir struct {
	label label
	count atomic.Uint64
	slots [reservoirSize]atomic.Int64 // nanoseconds + 1; 0 is empty
}

func (r *reservoir) observe(d time.Duration) {
	i := r.count.Add(1) - 1
	if i >= reservoirSize {
		if i = rand.Uint64N(i + 1); i >= reservoirSize {
			return
		}
	}
	r.slots[i].Store(int64(max(d, 0)) + 1)
}

// drain empties the reservoir. rate is the fraction of all durations that the sample contains.
func (r *reservoir) drain(to []time.Duration) (kept []time.Duration, rate float64) {
	n := r.count.Swap(0)
	for i := range r.slots {
		if v := r.slots[i].Swap(0); v != 0 {
			to = append(to, time.Duration(v-1))
		}
	}
	if n <= uint64(len(to)) {
		return to, 1
	}
	return to, float64(len(to)) / float64(n)
}
