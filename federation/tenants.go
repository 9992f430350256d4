package federation

import (
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

const (
	// dealEvery is the time after which what a region has is divided between its tenants again.
	dealEvery = 100 * time.Millisecond
	// refreshLongest is the time after which a region with demand informs the others at the latest.
	refreshLongest = 2 * time.Second
	// forgotten is how many spans of its average a demand that has ended counts.
	forgotten = 3
	// maxOthers is the most tenants without a row of their own whose weights count.
	maxOthers = 64
)

// tenants divides a key's window between tenants: the window of all regions, by the newest notes of the others, and
// what the region has now of its floor and its escrow. It never admits more than there is. The caller of the Escrow
// guards it.
type tenants struct {
	window int64 // of got
	rows   []tenantRow
	seen   uint64    // bits of the tenants of the shared row in this window
	weight [2]uint32 // of the shared row: in this window and in the last one
	rivals []rival   // other regions, by the newest reply
	taken  float64   // hits of the pool that are lent to regions which take no part, or to none

	floorLeft uint64 // of the region's floor
	alone     bool   // the coordinator is away, so that the region divides only what it has
	dealtAt   int64
	changedAt int64   // when a tenant came
	entitled  float64 // hits of the window that the region may have in addition to those that its tenants got
	rtt       time.Duration
}

// tenantRow is a tenant of this region. The shared row, with tenant 0, is that of all tenants without a row.
type tenantRow struct {
	tenant  uint64
	weight  uint32
	got     uint64 // hits admitted in the window
	offered uint64 // hits offered in the window
	last    uint64 // hits offered in the window before
	waiting uint64 // hits of the requests that wait
	largest uint64 // the most hits of one of them
	asked   int64  // the window of its newest request
	demand  demandMeter
	rate    float64 // of demand, at the newest deal
	due     float64 // hits of the window that it may have, by the demand of all regions
	dealt   float64 // hits of the window that it may have by now, by what the region has
}

// rival is another region.
type rival struct {
	floor   float64
	tenants []noteTenant
}

// demandMeter measures a rate as an exponentially weighted moving average. It is right from the beginning of a steady
// demand on.
type demandMeter struct {
	perSecond float64
	at, since int64
}

// count adds hits at now. span is the time constant.
func (m *demandMeter) count(now int64, hits uint64, span time.Duration) {
	if now-m.at > forgotten*int64(span) {
		*m = demandMeter{since: now, at: now}
	}
	m.perSecond, m.at = m.decayed(now, span)+float64(hits)/span.Seconds(), max(m.at, now)
}

func (m *demandMeter) decayed(now int64, span time.Duration) float64 {
	return m.perSecond * math.Exp(-float64(max(0, now-m.at))/float64(span))
}

// rate returns the hits per second at now.
func (m *demandMeter) rate(now int64, span time.Duration) float64 {
	age := max(float64(now-m.since)/float64(span), 0.1)
	return m.decayed(now, span) / (1 - math.Exp(-age))
}

// find returns the row of a tenant, or nil.
func (f *tenants) find(tenant uint64) *tenantRow {
	shared := (*tenantRow)(nil)
	for i := range f.rows {
		switch f.rows[i].tenant {
		case tenant:
			return &f.rows[i]
		case 0:
			shared = &f.rows[i]
		}
	}
	return shared
}

// row returns the row of a tenant, which it adds if there is none: one of its own, if there is room.
func (f *tenants) row(tenant uint64, weight uint32, room bool) *tenantRow {
	weight = min(max(1, weight), maxTenantWeight)
	x := f.find(tenant)
	if x == nil || x.tenant == 0 && room && len(f.rows) < noteTenants {
		own := tenantRow{}
		if room && len(f.rows) < noteTenants {
			own.tenant = tenant
		}
		f.rows = append(f.rows, own)
		f.dealtAt = 0
		x = &f.rows[len(f.rows)-1]
	}
	if x.tenant != 0 {
		x.weight = weight
		return x
	}
	if bit := uint64(1) << (bits.RotateLeft64(tenant, 6) & (maxOthers - 1)); f.seen&bit == 0 {
		f.seen |= bit
		f.weight[0] += weight
	}
	x.weight = max(1, f.weight[0], f.weight[1])
	return x
}

// roll begins window w, if it is a later one. Tenants that asked for nothing in the window before lose their rows.
func (f *tenants) roll(w int64) {
	if w <= f.window {
		return
	}
	f.rows = slices.DeleteFunc(f.rows, func(x tenantRow) bool { return x.asked < w-1 && x.waiting == 0 })
	for i := range f.rows {
		x := &f.rows[i]
		x.got, x.offered, x.last = 0, 0, x.offered
		if w > f.window+1 {
			x.last = 0
		}
	}
	f.window, f.seen, f.weight = w, 0, [2]uint32{0, f.weight[0]}
	f.forget()
}

// forget begins a window in which the other regions have nothing yet. Their demand is expected to go on.
func (f *tenants) forget() {
	for i := range f.rivals {
		for j := range f.rivals[i].tenants {
			f.rivals[i].tenants[j].got = 0
		}
	}
	f.taken, f.dealtAt = 0, 0
}

// learn takes over what a reply says about the other regions, whose demand is averaged over span. slack is how many hits a
// region may have admitted beyond those that it was lent.
func (f *tenants) learn(g *PoolGrant, slack uint64, span time.Duration) {
	f.rivals, f.dealtAt = f.rivals[:0], 0
	known := g.Total
	f.taken = 0
	for i := range g.Others {
		l := &g.Others[i]
		known = limit.SaturatingAdd(known, l.Granted)
		n, ok := decodeNote(l.Note)
		if !ok || n.window != g.Window || l.Age >= active+forgotten*span {
			f.taken += float64(l.Granted)
			continue
		}
		r := newRival(&n, limit.SaturatingAdd(l.Granted, slack), slack)
		r.fade(l.Age-active, span)
		f.rivals = append(f.rivals, r)
	}
	f.taken += float64(g.Used - min(g.Used, known))
}

// newRival returns the region of a note. It cannot have admitted more than most hits, whatever it says.
func newRival(n *note, most, slack uint64) rival {
	r := rival{floor: float64(min(uint64(n.floor), slack)), tenants: n.tenants}
	if n.others.weight > 0 {
		r.tenants = append(r.tenants, n.others)
	}
	sum := uint64(0)
	for i := range r.tenants {
		sum += r.tenants[i].got
	}
	if sum > most {
		for i := range r.tenants {
			hi, lo := bits.Mul64(r.tenants[i].got, most)
			r.tenants[i].got, _ = bits.Div64(hi, lo, sum)
		}
	}
	return r
}

// fade reduces the demand of a region that has been silent for too long by that time, as its own average falls.
func (r *rival) fade(silent, span time.Duration) {
	if silent <= 0 {
		return
	}
	for i := range r.tenants {
		r.tenants[i].rate *= math.Exp(-float64(silent) / float64(span))
	}
}

// note returns the note of the region's next request.
func (f *tenants) note(now int64, span time.Duration, floor uint64) []byte {
	n := note{window: f.window, floor: uint32(min(floor, math.MaxUint32))}
	for i := range f.rows {
		x := &f.rows[i]
		t := noteTenant{x.tenant, x.weight, x.demand.rate(now, span), x.got}
		if x.tenant == 0 {
			n.others = t
		} else {
			n.tenants = append(n.tenants, t)
		}
	}
	return n.encode()
}

// pairs returns the pairs of the region's own tenants, in the order of the rows.
func (f *tenants) pairs(now int64, span time.Duration, left float64) []pair {
	ps := make([]pair, len(f.rows))
	for i := range f.rows {
		x := &f.rows[i]
		p := pair{tenant: x.tenant, weight: float64(x.weight), rate: x.demand.rate(now, span), got: float64(x.got)}
		p.need = p.got + max(expected(p.rate, left), float64(x.waiting))
		ps[i] = p
	}
	return ps
}

// expected returns how many hits a demand is expected to have in so many seconds: what a random one does not exceed, by two
// standard deviations. What is kept for a demand that does not come is given out before the window ends, but what another
// tenant has spent cannot be taken back.
func expected(rate, seconds float64) float64 {
	n := rate * seconds
	return n + 2*math.Sqrt(n)
}

// areas returns all regions, this one first, whose pairs are own. left is the rest of the window in seconds.
func (f *tenants) areas(own []pair, floor, left float64) []area {
	as := append(make([]area, 0, 1+len(f.rivals)), area{floor: floor})
	weights := map[uint64]float64{}
	all := make([]*pair, 0, len(own))
	for i := range own {
		weights[own[i].tenant] = own[i].weight
		all = append(all, &own[i])
	}
	as[0].pairs = all
	for i := range f.rivals {
		a := area{floor: f.rivals[i].floor}
		for _, t := range f.rivals[i].tenants {
			p := &pair{tenant: t.tenant, weight: float64(t.weight), rate: t.rate, got: float64(t.got)}
			if w := weights[t.tenant]; w > 0 && t.tenant != 0 { // the rule is the same in all regions
				p.weight = w
			}
			p.need = p.got + expected(p.rate, left)
			a.pairs = append(a.pairs, p)
		}
		all = append(all, a.pairs...)
		as = append(as, a)
	}
	splitWeights(all)
	return as
}

// windowState describes the present window of an escrow, for a division.
type windowState struct {
	now     int64
	span    time.Duration // over which demand is averaged
	left    float64       // seconds until it ends
	horizon float64       // seconds for which a region should have hits
	pool    float64       // hits that can be lent in the window
	floor   float64       // of the region
	escrow  uint64        // hits that the region has unspent
}

// deal divides the window between all tenants, and what the region has between its own.
func (f *tenants) deal(w *windowState) {
	f.dealtAt = w.now
	has := float64(limit.SaturatingAdd(f.floorLeft, w.escrow))
	own := f.pairs(w.now, w.span, w.left)
	as := f.areas(own, w.floor, w.left)
	surplus := 0.0
	if f.alone {
		sum := has
		for i := range own {
			sum += own[i].got
		}
		surplus = fill(sum, as[0].pairs)
	} else {
		surplus = divide(max(0, w.pool-f.taken), as)
	}
	f.entitled = surplus
	for i := range own {
		f.entitled += own[i].share - own[i].got
		f.rows[i].rate, f.rows[i].due = own[i].rate, own[i].share+surplus
	}
	f.dealHits(w, own, has)
}

// dealHits divides what the region has: to each tenant what it is expected to want until more comes, and the rest by
// fill, as long as each is below what it may have of the window.
func (f *tenants) dealHits(w *windowState, own []pair, has float64) {
	sum := 0.0
	for i := range f.rows {
		own[i].need = f.rows[i].claim(w)
		sum += own[i].need
	}
	part := min(1, has/max(sum, 1e-9))
	ps := make([]*pair, len(own))
	for i := range own {
		p := &own[i]
		has -= p.need * part
		p.got += p.need * part
		p.need = max(p.got, f.rows[i].due)
		ps[i] = p
		has += p.got
	}
	fill(has, ps)
	for i := range own {
		f.rows[i].dealt = own[i].share
	}
}

// claim returns how many hits a tenant should have now, in addition to those that it got.
func (x *tenantRow) claim(w *windowState) float64 {
	want := max(x.rate*w.horizon, float64(x.waiting))
	return min(want, max(0, x.due-float64(x.got)))
}

// claims returns the sum of the tenants' claims.
func (f *tenants) claims(w *windowState) (sum float64) {
	for i := range f.rows {
		sum += f.rows[i].claim(w)
	}
	return sum
}

// largest returns the most hits of a waiting request whose tenant may have more.
func (f *tenants) largest() (hits uint64) {
	for i := range f.rows {
		if x := &f.rows[i]; x.waiting > 0 && float64(x.got) < x.due {
			hits = max(hits, x.largest)
		}
	}
	return hits
}

// takeWaiting records that no request waits any more.
func (f *tenants) takeWaiting() {
	if f == nil {
		return
	}
	for i := range f.rows {
		f.rows[i].waiting, f.rows[i].largest = 0, 0
	}
}
