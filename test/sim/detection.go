package sim

import (
	"math/rand/v2"
	"time"

	"github.com/keyward/keyward/internal/membership"
)

// expandDetection returns the options of a seed whose members have other detection times than the default: all the
// same one, or each its own.
func expandDetection(seed uint64) options {
	o := expandBase(seed)
	r := rand.New(rand.NewPCG(seed, 0xde7ec7))
	choice := []membership.Detection{
		0, membership.MinDetection, membership.Detection(2 * time.Second), membership.Detection(5 * time.Second),
		membership.Detection(9 * time.Second),
	}
	same := choice[1+r.IntN(len(choice)-1)]
	mixed := r.IntN(3) > 0
	for i := range o.Detection {
		if o.Detection[i] = same; mixed {
			o.Detection[i] = choice[r.IntN(len(choice))]
		}
	}
	return o
}

// detectionOf returns the detection time of the member in slot i.
func (o *options) detectionOf(i int) membership.Detection { return o.Detection[i%len(o.Detection)] }

// slowed returns d, which is meant for the default detection time, for the longest one of the members if that is longer.
func (o *options) slowed(d time.Duration) time.Duration {
	longest := membership.DefaultDetection
	for _, x := range o.Detection {
		longest = max(longest, x)
	}
	return scaled(d, longest)
}

// hastened returns d for the shortest detection time of the members if that is shorter than the default.
func (o *options) hastened(d time.Duration) time.Duration {
	shortest := membership.DefaultDetection
	for _, x := range o.Detection {
		shortest = min(shortest, x.OrDefault())
	}
	return scaled(d, shortest)
}

// scaled returns d times the ratio of a detection time to the default.
func scaled(d time.Duration, to membership.Detection) time.Duration {
	if to == membership.DefaultDetection {
		return d
	}
	return time.Duration(int64(d) / 1000 * int64(to/1000) / int64(membership.DefaultDetection/1e6))
}
