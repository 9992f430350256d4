// Package fair divides what is left of a limit between tenants: max-min fairness by weight, for the keys of one shard.
//
// A request of a tenant is admitted if the rest of the limit could then bring every other tenant to the same level, or
// to all that it still wants in this window. The level of a tenant is its usage divided by its weight. So the tenant
// with the lowest level is never refused while there is room, and hits that no other tenant wants go to the one that
// asks.
//
// What a tenant still wants is not known, but expected: as much as it has asked for in this window or in the last one,
// less what it has used, and at most twice its rate for the rest of the window. After a change of demand, one window
// may be divided differently. The package never admits more than there is room for.
//
// Times and counters belong to the caller. Nothing here allocates while tenants and keys stay the same.
package fair

import (
	"math"
	"math/bits"

	"github.com/keyward/keyward/owner/internal/counter"
)

// Sizes of a Divider.
const (
	MaxTenants = 63   // tenants of a key with a row of their own; others share one row
	maxRows    = 4096 // rows for which a Divider has memory, 24 bytes each
)

// Whole is the complete window in Demand.Left.
const Whole = 1 << 16

// Demand is a request of a tenant.
type Demand struct {
	Key    counter.Key
	Tenant uint64 // digest of its name, not 0
	Weight uint32 // at least 1
	Hits   uint64
	Room   uint64 // hits for which the limit has room
	Window int64  // index of the window
	Width  int64  // its length in nanoseconds
	Left   uint32 // the part of the window that is left, from 0 to Whole
	Rolls  bool   // what is not used in the window can be used in the next one, so tenants also want hits of that
}

// LeftOf returns the part of a window that is left at now, if it ends at end and has that width.
func LeftOf(now, end, width int64) uint32 {
	left := min(max(0, end-now), width)
	hi, lo := bits.Mul64(uint64(left), Whole)
	part, _ := bits.Div64(hi, lo, uint64(max(1, width)))
	return uint32(part)
}

// Counts are what a Divider has counted. They only increase.
type Counts struct {
	Refused   uint64 // hits that the limit had room for, refused to leave them to other tenants
	Shared    uint64 // requests of tenants that share a row
	Untracked uint64 // requests decided by the limit alone, because there was no memory for a row
}

// Add adds o to c.
func (c *Counts) Add(o Counts) {
	c.Refused += o.Refused
	c.Shared += o.Shared
	c.Untracked += o.Untracked
}

// Divider holds the tenants of the keys of one shard. The zero value is empty. Its owner guards it with a lock.
type Divider struct {
	index  map[counter.Key]int32 // of groups
	groups []*group
	rows   int // for which groups have memory
	swept  int // index of the group that is swept next
	counts Counts
}

// group holds the tenants of one key.
type group struct {
	key    counter.Key
	window int64
	width  int64
	rows   []row
	seen   uint64    // a bit for each tenant, or for several, whose weight the shared row has
	weight [2]uint32 // of the shared row: in this window and in the last one
}

// row holds the demand and the usage of one tenant. The shared row has tenant 0.
type row struct {
	tenant  uint64
	weight  uint32
	used    uint32 // in this window
	offered uint32 // in this window, at least used unless hits were refunded
	last    uint32 // offered in the last window
}

// Admit decides d and records it. left is how many more hits the tenant would be admitted now.
func (t *Divider) Admit(d *Demand) (ok bool, left uint64) {
	g, self := t.rowOf(d)
	if self < 0 {
		t.counts.Untracked++
		return d.Hits <= d.Room, d.Room - min(d.Room, d.Hits)
	}
	r := &g.rows[self]
	if r.tenant == 0 {
		t.counts.Shared++
		g.addWeight(d)
	} else {
		r.weight = max(1, d.Weight)
	}
	r.offered = saturated(uint64(r.offered), d.Hits)
	if ok = g.fits(self, g.demandOf(self, d), d.Hits); ok {
		left = g.most(self, d) - d.Hits
		r.used = saturated(uint64(r.used), d.Hits)
		return true, left
	}
	if d.Hits <= d.Room {
		t.counts.Refused += d.Hits
	}
	return false, 0
}

// Peek decides d without recording it. left is how many hits the tenant would be admitted after those of d.
func (t *Divider) Peek(d *Demand) (ok bool, left uint64) {
	g := t.find(d)
	if g == nil {
		return d.Hits <= d.Room, d.Room - min(d.Room, d.Hits)
	}
	self := g.place(d.Tenant)
	if !g.fits(self, g.demandOf(self, d), d.Hits) {
		return false, 0
	}
	return true, g.most(self, d) - d.Hits
}

// Refund records that hits of d's tenant were refunded, or could not be charged.
func (t *Divider) Refund(d *Demand) {
	g := t.find(d)
	if g == nil {
		return
	}
	if i := g.place(d.Tenant); i >= 0 {
		r := &g.rows[i]
		r.used -= uint32(min(uint64(r.used), d.Hits))
	}
}

// asking is the tenant of a Demand, with what fits needs of it.
type asking struct {
	used   uint64
	weight uint64
	room   uint64
	left   uint64 // twice the part of the window that is left, at most Whole
	rolls  bool
}

// demandOf returns d for fits. self is the tenant's row, or -1.
func (g *group) demandOf(self int, d *Demand) asking {
	a := asking{weight: uint64(max(1, d.Weight)), room: d.Room, left: min(Whole, 2*uint64(d.Left)), rolls: d.Rolls}
	if d.Rolls {
		a.left = max(a.left, Whole/ahead)
	}
	if self >= 0 {
		a.used, a.weight = uint64(g.rows[self].used), g.weightOf(self)
	}
	return a
}

// fits reports whether a, whose row is self or -1, may have that many hits: whether the rest of the room could bring
// all other tenants to the level that a is at before the last of its hits.
func (g *group) fits(self int, a asking, hits uint64) bool {
	if hits == 0 || hits > a.room {
		return hits == 0
	}
	rest := a.room - hits
	level := a.used + hits - 1
	for i := range g.rows {
		if i == self {
			continue
		}
		r := &g.rows[i]
		want := r.wanted(&a)
		if want == 0 {
			continue
		}
		used := uint64(r.used)
		same := mulDiv(level, g.weightOf(i), a.weight)
		need := min(want, same-min(same, used))
		if need > rest {
			return false
		}
		rest -= need
	}
	return true
}

// steps is how often most halves the range of its result.
const steps = 12

// most returns how many hits d's tenant would be admitted now, up to 1/4096 of the room too few. d's own hits fit.
func (g *group) most(self int, d *Demand) uint64 {
	a := g.demandOf(self, d)
	if g.fits(self, a, a.room) {
		return a.room
	}
	low, high := d.Hits, a.room // low fits, high does not
	for range steps {
		middle := low + (high-low)/2
		if middle == low {
			break
		}
		if g.fits(self, a, middle) {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

// ahead divides the demand of a window, for what a tenant wants at the beginning of the next one.
const ahead = 8

// wanted returns how many hits the tenant is expected to want in the rest of the window, and, if the limit does not
// start again, at the beginning of the next one.
func (r *row) wanted(a *asking) uint64 {
	p := uint64(max(r.last, r.offered))
	all := p
	if a.rolls {
		all += (p + ahead - 1) / ahead
	}
	return min(all-min(all, uint64(r.used)), (p*a.left+Whole-1)/Whole)
}

// saturated returns a + b, at most the largest uint32.
func saturated(a, b uint64) uint32 {
	if sum := a + b; sum >= a {
		return uint32(min(sum, math.MaxUint32))
	}
	return math.MaxUint32
}

// mulDiv returns a * b / c, saturating. c is not 0.
func mulDiv(a, b, c uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	if hi >= c {
		return math.MaxUint64
	}
	q, _ := bits.Div64(hi, lo, c)
	return q
}
