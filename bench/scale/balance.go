package main

import (
	"fmt"

	"github.com/keyward/keyward/internal/ringcheck"
	"github.com/keyward/keyward/ring"
)

// losses is how many of n members are lost, one at a time, to see who inherits: eight of few, one of many, for large rings
// take their time and differ little.
func losses(n int) int { return max(1, min(8, n, 800/n)) }

// keysPlaced is how many keys are placed to see how evenly they fall.
const keysPlaced = 200_000

// Balance is how evenly a ring of members of equal weight divides the keys. Parts are multiples of the mean, which is 1/N.
type Balance struct {
	Members    int
	Points     int
	Least      float64 // hash space of the member that owns least
	Most       float64 // and most
	MostKeys   float64 // keys of the one that has most, of 200,000: chance adds to Most when there are few for each
	MostBefore float64 // with Envoy's default minimum_ring_size, 1024 points for all members together
	Successors float64 // members that inherit from one that is lost, the mean of some losses
	Inherits   float64 // part of the lost member's space that goes to one successor, the most of some losses
	Second     float64 // hash space of the member that owns most after one loss, the most of some losses
	Join       float64 // part of the whole hash space that moves when one joins, times N+1: exactly 1 must move
}

// BalanceOf measures the real ring of n members.
func BalanceOf(n int) (Balance, error) {
	r := ring.New(Members(n))
	b := Balance{Members: n, Points: n * ring.PointsPerWeight}
	space := owned(r)
	b.Least, b.Most = extremes(space, n)
	_, b.MostKeys = extremes(placed(r.Owner), n)
	e, err := envoyDefault(n)
	if err != nil {
		return b, err
	}
	_, b.MostBefore = extremes(placed(e.Owner), n)
	b.lose(r, space)
	b.Join = ring.MovedShare(ring.Diff(r, ring.New(Members(n+1)))) * float64(n+1)
	return b, nil
}

// lose takes members off the ring, one at a time.
func (b *Balance) lose(r *ring.Ring, space map[ring.ID]float64) {
	n := r.Len()
	times := losses(n)
	for i := range times {
		gone := r.At(i * n / times).ID
		rest := make([]ring.Member, 0, n-1)
		for j := range n {
			if m := r.At(j); m.ID != gone {
				rest = append(rest, m)
			}
		}
		got := map[ring.ID]float64{}
		for _, m := range ring.Diff(r, ring.New(rest)) {
			got[m.To] += m.Share()
		}
		b.Successors += float64(len(got)) / float64(times)
		for id, part := range got {
			b.Inherits = max(b.Inherits, part/space[gone])
			b.Second = max(b.Second, (space[id]+part)*float64(n))
		}
	}
}

// owned is each member's part of the hash space.
func owned(r *ring.Ring) map[ring.ID]float64 {
	space := map[ring.ID]float64{}
	for _, m := range ring.Diff(ring.New(nil), r) {
		space[m.To] += m.Share()
	}
	return space
}

// placed is each owner's part of the keys.
func placed(owner func(uint64) int) map[int]float64 {
	keys := map[int]float64{}
	for i := range keysPlaced {
		keys[owner(ring.Hash(fmt.Sprintf("key-%d", i)))] += 1.0 / keysPlaced
	}
	return keys
}

// extremes are the least and the most of n parts that sum to 1, as multiples of the mean. A part that is not there is 0.
func extremes[K comparable](parts map[K]float64, n int) (least, most float64) {
	least = 1
	for _, p := range parts {
		least, most = min(least, p), max(most, p)
	}
	if len(parts) < n {
		least = 0
	}
	return least * float64(n), most * float64(n)
}

// envoyDefault is the ring that Envoy builds of n addresses with its default size.
func envoyDefault(n int) (*ringcheck.EnvoyRing, error) {
	c := ringcheck.EnvoyCluster{}
	for i := range n {
		c.Hosts = append(c.Hosts, ringcheck.Host{Address: fmt.Sprintf("10.%d.%d.%d:8081", i>>16, i>>8&255, i&255)})
	}
	return c.Build()
}
