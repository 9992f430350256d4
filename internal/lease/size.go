package lease

import (
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/ring"
)

// Fractions of a limit, as 1/n.
const (
	lendableFraction = 20 // 5% may be lent and unspent
	reserveFraction  = 50 // nothing is lent from the last 2%
)

// Lendable returns how many hits of r may be lent and unspent at a time, over all holders: for windows 5% of the limit;
// for buckets half the depth and at most the refill of a Slice. 0 means that r is never lent.
func Lendable(r limit.Rule) (most uint64) {
	switch {
	case r.Algorithm.Log():
		return 0
	case !r.Algorithm.Bucket():
		return uint64(r.Depth()) / lendableFraction
	}
	refill := float64(r.Limit) * float64(Slice) / float64(max(1, r.Window))
	return uint64(min(float64(r.Depth()/2), refill))
}

// Usage is the state of a counter from which hits are lent.
type Usage struct {
	Used  uint64 // count, including everything that is lent
	Depth uint32 // count up to which hits fit
}

// Size returns how many hits to lend for the holder's newest request. Holders with a recent request share what may be
// lent by weighted max-min fairness over Weight x demand. last reports that the limit is nearly used up: nothing is lent
// any more.
func (b *Book) Size(now int64, holder ring.ID, r *GrantRequest, u Usage) (n uint64, last bool) {
	i, found := b.find(holder)
	if !found {
		return 0, false
	}
	lines, me := b.recentRecords(now, i)
	holders, depth := uint64(len(lines)), uint64(u.Depth)
	left := depth - min(u.Used, depth)
	reserve := max((depth+reserveFraction-1)/reserveFraction, holders)
	if left <= reserve {
		return 0, true
	}
	most := Lendable(r.Rule)
	if out := b.Unspent(now); r.Want && holders <= most && out < most {
		left = min(left-left/reserveFraction, left-reserve)
		n = share(lines, me, min(most, limit.SaturatingAdd(out, left)), r.Terms)
		n = min(n-min(n, lines[me].Unspent), most-out, left, uint64(r.Terms.most()))
	}
	b.records[i].allowed = n
	return n, false
}

// recentRecords returns the records of holders with a recent request, and the index of record i among them.
func (b *Book) recentRecords(now int64, i int) (lines []HolderRecord, me int) {
	lines = make([]HolderRecord, 0, len(b.records))
	for j, l := range b.records {
		if j == i {
			me = len(lines)
		} else if now-l.AskedAt >= int64(recentlyAsked) {
			continue
		}
		lines = append(lines, l)
	}
	return lines, me
}

// share returns the part of line me of the budget for all unspent hits.
func share(lines []HolderRecord, me int, budget uint64, k Terms) uint64 {
	need, weight, parts := make([]uint64, len(lines)), make([]float64, len(lines)), make([]uint64, len(lines))
	for i, l := range lines {
		need[i] = k.want(l.Demand)
		weight[i] = l.Weight * max(l.Demand, 1)
	}
	maxMinFair(budget, need, weight, parts)
	return parts[me]
}

// want returns how many hits a holder with this demand should have.
func (k Terms) want(perSecond float64) uint64 {
	n := perSecond * k.ttl().Seconds()
	return uint64(max(float64(k.least()), min(n, float64(k.most()))))
}

// maxMinFair computes each holder's weighted max-min fair part of budget: no part exceeds the need, and no part can
// grow without reducing one that is smaller for its weight. Parts are rounded down. ("Water-filling": Bertsekas and
// Gallager, Data Networks, 6.5.2.)
func maxMinFair(budget uint64, need []uint64, weight []float64, parts []uint64) {
	for i := range parts {
		parts[i] = unfilled
	}
	rest, level := budget, 0.0
	for again := true; again; {
		again, level = false, float64(rest)/unfilledWeight(weight, parts)
		for i, n := range need {
			if parts[i] == unfilled && n <= rest && float64(n) <= level*weight[i] {
				parts[i], again = n, true
				rest -= n
			}
		}
	}
	for i := range parts {
		if parts[i] == unfilled {
			parts[i] = min(rest, uint64(level*weight[i]+1e-6)) // rounding errors must not cost a complete hit
			rest -= parts[i]
		}
	}
}

// unfilledWeight returns the total weight of the parts that are still unfilled.
func unfilledWeight(weight []float64, parts []uint64) (sum float64) {
	for i, w := range weight {
		if parts[i] == unfilled {
			sum += w
		}
	}
	return sum
}

// unfilled marks a part that is not computed yet.
const unfilled = 1<<64 - 1

func (k Terms) least() uint32 {
	if k.Min == 0 {
		return 10
	}
	return k.Min
}

func (k Terms) most() uint32 {
	if k.Max == 0 {
		return max(10_000, k.least())
	}
	return max(k.Max, 1)
}

func (k Terms) ttl() time.Duration {
	if k.TTL <= 0 {
		return 10 * time.Second
	}
	return k.TTL
}
