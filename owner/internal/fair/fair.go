// Package fair divides what is left of a limit between tenants: max-min fairness by weight, for the keys of one shard.
//
// A request of a tenant is admitted if the rest of the limit could then bring every other tenant to the same
// level, or to all that it still wants in this window. The level of a tenant is its usage divided by its
// weight. So the tenant with the lowest level is never refused while there is room, and hits that no other tenant wants
// go to the one that asks.
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

// wanted returns how many hits the tenant is expected to want in the rest of the window, and, if the limit does not start
// again, at the beginning of the next one.
func (r *row) wanted(a *asking) uint64 {
	p := uint64(max(r.last, r.offered))
	all := p
	if a.rolls {
		all += (p + ahead - 1) / ahead
	}
	return min(all-min(all, uint64(r.used)), (p*a.left+Whole-1)/Whole)
}

// rowOf returns the group of d's key and the row of its tenant, which it adds if necessary. The row is -1 if there is no
// memory for it.
func (t *Divider) rowOf(d *Demand) (*group, int) {
	g := t.find(d)
	if g == nil {
		if g = t.add(d); g == nil {
			return nil, -1
		}
	}
	if i := g.place(d.Tenant); i >= 0 {
		return g, i
	}
	tenant := d.Tenant
	if len(g.rows) >= MaxTenants {
		tenant = 0
	}
	if !t.grow(g) {
		return g, -1
	}
	g.rows = append(g.rows, row{tenant: tenant, weight: max(1, d.Weight)})
	return g, len(g.rows) - 1
}

// find returns the group of d's key, in d's window, or nil.
func (t *Divider) find(d *Demand) *group {
	i, ok := t.index[d.Key]
	if !ok {
		return nil
	}
	g := t.groups[i]
	g.advance(d)
	return g
}

// place returns the row of a tenant: its own, or the shared one if g has no place for more. The result is -1 if there is
// none yet.
func (g *group) place(tenant uint64) int {
	shared := -1
	for i := range g.rows {
		switch g.rows[i].tenant {
		case tenant:
			return i
		case 0:
			shared = i
		}
	}
	if len(g.rows) < MaxTenants {
		return -1
	}
	return shared
}

// advance makes g's window that of d. Tenants that asked for nothing in the window before it lose their rows.
func (g *group) advance(d *Demand) {
	if d.Width == g.width && d.Window <= g.window {
		return
	}
	next := d.Width == g.width && d.Window == g.window+1
	g.window, g.width = d.Window, d.Width
	if g.seen, g.weight = 0, [2]uint32{0, g.weight[0]}; !next {
		g.weight[1] = 0
	}
	kept := g.rows[:0]
	for _, r := range g.rows {
		if r.offered > 0 && next {
			r.last, r.used, r.offered = r.offered, 0, 0
			kept = append(kept, r)
		}
	}
	g.rows = kept
}

// weightOf returns the weight of a row. That of the shared row is the sum of its tenants' weights. Tenants with the same
// bit of seen count once.
func (g *group) weightOf(i int) uint64 {
	if r := &g.rows[i]; r.tenant != 0 {
		return uint64(r.weight)
	}
	return uint64(max(1, g.weight[0], g.weight[1]))
}

// addWeight adds the weight of d's tenant to the shared row, once in a window.
func (g *group) addWeight(d *Demand) {
	bit := uint64(1) << (d.Tenant >> 58)
	if g.seen&bit == 0 {
		g.seen |= bit
		g.weight[0] = saturated(uint64(g.weight[0]), uint64(max(1, d.Weight)))
	}
}

// firstRows is the number of rows that a group begins with. It grows to four times as many, up to MaxTenants + 1.
const firstRows = 4

// add adds a group for d's key. It returns nil if there is no memory for it.
func (t *Divider) add(d *Demand) *group {
	if t.rows+firstRows > maxRows {
		return nil
	}
	if t.index == nil {
		t.index = map[counter.Key]int32{}
	}
	g := &group{key: d.Key, window: d.Window, width: d.Width, rows: make([]row, 0, firstRows)}
	t.rows += firstRows
	t.index[d.Key] = int32(len(t.groups))
	t.groups = append(t.groups, g)
	return g
}

// grow makes room for one more row in g. It returns false if there is no memory for it, or if g has all its rows.
func (t *Divider) grow(g *group) bool {
	have := cap(g.rows)
	if len(g.rows) < have {
		return true
	}
	size := min(4*have, MaxTenants+1)
	if size == have || t.rows+size-have > maxRows {
		return false
	}
	rows := make([]row, len(g.rows), size)
	copy(rows, g.rows)
	g.rows = rows
	t.rows += size - have
	return true
}

// sweepStep is the number of groups that Sweep visits.
const sweepStep = 64

// Sweep drops groups that no request has used in the last two windows. It visits a part of them.
func (t *Divider) Sweep(now int64) {
	for range min(sweepStep, len(t.groups)) {
		if t.swept >= len(t.groups) {
			t.swept = 0
		}
		if g := t.groups[t.swept]; now/max(1, g.width) > g.window+1 {
			t.drop(t.swept)
		} else {
			t.swept++
		}
	}
}

func (t *Divider) drop(i int) {
	g, last := t.groups[i], len(t.groups)-1
	t.rows -= cap(g.rows)
	delete(t.index, g.key)
	if t.groups[i] = t.groups[last]; i != last {
		t.index[t.groups[i].key] = int32(i)
	}
	t.groups[last] = nil
	t.groups = t.groups[:last]
}

// Tenant describes a tenant of a key.
type Tenant struct {
	Digest  uint64 // of its name; 0 for the tenants that share a row
	Weight  uint32
	Used    uint64 // hits admitted in this window
	Offered uint64 // hits asked for in this window
	Last    uint64 // hits asked for in the last window
	Left    uint64 // hits that it would be admitted now
}

// Tenants returns the tenants of d's key, in the order in which they came. Only the key, the window and the room of d
// matter.
func (t *Divider) Tenants(d *Demand) (all []Tenant) {
	g := t.find(d)
	if g == nil {
		return nil
	}
	for i := range g.rows {
		r := &g.rows[i]
		of := Demand{Weight: r.weight, Room: d.Room, Left: d.Left, Rolls: d.Rolls}
		all = append(all, Tenant{
			Digest: r.tenant, Weight: uint32(g.weightOf(i)), Used: uint64(r.used), Offered: uint64(r.offered),
			Last: uint64(r.last), Left: g.most(i, &of),
		})
	}
	return all
}

// Tracked returns the number of rows for which there is memory.
func (t *Divider) Tracked() int { return t.rows }

// Counts returns what t has counted.
func (t *Divider) Counts() Counts { return t.counts }

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
