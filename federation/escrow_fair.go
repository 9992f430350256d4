package federation

import (
	"math"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

// OfferTenant counts hits that a tenant offers, in addition to Offer. From then on, the window is divided between tenants
// by weighted max-min fairness, and the region's requests have notes for the other regions. The weight of a tenant is that
// of its newest request. With room, the tenant gets a row of its own if there are fewer than 32. Others share one row.
func (e *Escrow) OfferTenant(now int64, tenant uint64, weight uint32, hits uint64, room bool) {
	if e.tenants == nil {
		e.tenants = &tenants{}
	}
	f := e.rolled(now)
	x := f.row(tenant, weight, room)
	if x.asked < f.window {
		f.changedAt = now
	}
	x.asked = f.window
	x.demand.count(now, hits, e.span())
	x.offered = limit.SaturatingAdd(x.offered, hits)
}

// TenantRows returns the number of rows for which there is memory, 112 bytes each.
func (e *Escrow) TenantRows() int {
	if e.tenants == nil {
		return 0
	}
	return cap(e.tenants.rows)
}

// span is the time over which the demand of tenants is averaged.
func (e *Escrow) span() time.Duration { return max(time.Second, e.rule.Window/windowParts) }

// rolled returns the tenants, in the present window.
func (e *Escrow) rolled(now int64) *tenants {
	e.roll(now)
	w := e.rule.Index(now)
	if !e.ended {
		w = max(w, e.window)
	}
	e.tenants.roll(w)
	return e.tenants
}

// SetFloorLeft records what is left of the region's floor, and whether the coordinator is away: then the region divides
// only what it has. Call it when DealDue returns true, and when a hit of the floor was spent.
func (e *Escrow) SetFloorLeft(left uint64, alone bool) {
	if f := e.tenants; f != nil {
		if f.alone != alone {
			f.alone, f.dealtAt = alone, 0
		}
		f.floorLeft = left
	}
}

// DealDue reports whether TenantMay will divide what the region has again.
func (e *Escrow) DealDue(now int64) bool {
	f := e.rolled(now)
	return f.dealtAt == 0 || now-f.dealtAt >= int64(min(dealEvery, e.rule.Window/100))
}

// TenantMay reports whether a tenant may spend hits of the floor or the escrow now: Admitted, if they have any; Wait, if
// more of the window is its due; or Refused, if the rest is left to other tenants. A tenant may exceed its part with one
// request, which counts against it from then on.
func (e *Escrow) TenantMay(now int64, tenant uint64) Verdict {
	if e.tenants == nil {
		return Admitted
	}
	if e.DealDue(now) {
		e.deal(now)
	}
	x := e.tenants.find(tenant)
	switch {
	case x == nil || float64(x.got)+dust < x.dealt:
		return Admitted
	case float64(x.got)+dust < x.due && !e.dry:
		return Wait
	}
	return Refused
}

// dust is a part of a hit that is the result of rounding.
const dust = 1e-6

// deal divides the window, and what the region has.
func (e *Escrow) deal(now int64) {
	w := e.windowState(now, e.tenants.rtt)
	e.tenants.deal(&w)
}

func (e *Escrow) windowState(now int64, rtt time.Duration) windowState {
	pool := e.set.Pool
	if !e.ended {
		pool = e.usable
	}
	return windowState{
		now: now, span: e.span(), left: time.Duration(max(0, e.windowEnd(now)-now)).Seconds(),
		horizon: e.horizon(now, rtt).Seconds(), pool: float64(pool), floor: float64(e.set.Floor), escrow: e.left + e.moved.left,
	}
}

// TenantSpent records that hits of a tenant were admitted, from the floor or the escrow.
func (e *Escrow) TenantSpent(now int64, tenant uint64, hits uint64) {
	if e.tenants == nil {
		return
	}
	f := e.rolled(now)
	if x := f.find(tenant); x != nil {
		x.got += min(hits, maxNoteHits)
		f.entitled -= float64(hits)
	}
}

// TenantRefunded records that hits of a tenant were refunded.
func (e *Escrow) TenantRefunded(now int64, tenant uint64, hits uint64) {
	if e.tenants == nil {
		return
	}
	f := e.rolled(now)
	if x := f.find(tenant); x != nil {
		hits = min(hits, x.got)
		x.got -= hits
		f.entitled += float64(hits)
	}
}

// AddTenantWaiting is AddWaiting for a tenant's request.
func (e *Escrow) AddTenantWaiting(tenant uint64, hits uint64) {
	e.AddWaiting(hits)
	if e.tenants == nil {
		return
	}
	if x := e.tenants.find(tenant); x != nil {
		x.waiting += min(hits, maxNoteHits)
		x.largest = max(x.largest, min(hits, maxNoteHits))
	}
}

// TenantsWait reports whether requests of tenants wait.
func (e *Escrow) TenantsWait() bool { return e.tenants != nil && e.waiting > 0 }

// RemoveTenantWaiting is RemoveWaiting for a tenant's request.
func (e *Escrow) RemoveTenantWaiting(tenant uint64, hits uint64) {
	e.RemoveWaiting(hits)
	if e.tenants == nil {
		return
	}
	if x := e.tenants.find(tenant); x != nil {
		x.waiting -= min(x.waiting, hits)
	}
}

// fairLot is lot for a limit that is divided between tenants: no more than is their due. rest is the part of the pool that is not lent.
func (e *Escrow) fairLot(now int64, rtt time.Duration, rest uint64) uint64 {
	if e.DealDue(now) {
		e.deal(now)
	}
	f := e.tenants
	w := e.windowState(now, rtt)
	n := max(min(f.claims(&w), e.mostLot(rest)), float64(e.leastLot(rest)))
	return uint64(math.Ceil(min(n, max(0, f.entitled))))
}

// giveBackExcess gives up what is left above what is due to the region: it was lent before other tenants came.
func (e *Escrow) giveBackExcess() {
	f := e.tenants
	keep := max(uint64(math.Ceil(max(0, f.entitled-float64(f.floorLeft)))), f.largest())
	excess := e.left - min(e.left, keep-min(keep, e.moved.left))
	e.left -= excess
	e.have -= excess
}

// informsRivals reports whether it is time to inform the other regions of the demand of this one, and to learn theirs: at once
// after a tenant has come, because the others do not know it, and then less and less often.
func (e *Escrow) informsRivals(now int64, rtt time.Duration) bool {
	most := max(4*rtt, min(refreshLongest, e.rule.Window/(2*windowParts)))
	every := min(int64(most), max(int64(rtt), e.sentAt-e.tenants.changedAt))
	return now-e.sentAt >= every
}

// note returns the note of the next request, or nil if the limit is not divided.
func (e *Escrow) note(now int64) []byte {
	if e.tenants == nil {
		return nil
	}
	return e.rolled(now).note(now, e.span(), e.set.Floor)
}

// learn takes over what a reply says about the other regions' tenants.
func (e *Escrow) learn(now int64, g *PoolGrant, rtt time.Duration) {
	if e.tenants == nil {
		return
	}
	f := e.rolled(now)
	f.rtt = rtt
	f.learn(g, uint64(e.rule.Limit)-min(e.set.Pool, uint64(e.rule.Limit)), e.span())
	if g.Window != f.window {
		f.forget() // the window has ended here
	}
}

// TenantLine describes a tenant in a region.
type TenantLine struct {
	Tenant  uint64 // digest of its name; 0 for all tenants that share a row
	Weight  uint32
	Got     uint64 // hits admitted in the present window
	Offered uint64 // hits offered in the present window
	Last    uint64 // hits offered in the window before
	Left    uint64 // further hits of the window that it may have
}

// Tenants describes the tenants of the region, in the order in which they came.
func (e *Escrow) Tenants(now int64) (all []TenantLine) {
	if e.tenants == nil {
		return nil
	}
	f := e.rolled(now)
	for i := range f.rows {
		x := &f.rows[i]
		all = append(all, TenantLine{x.tenant, x.weight, x.got, x.offered, x.last, x.dueLeft()})
	}
	return all
}

// TenantLeft returns how many further hits of the window a tenant may have.
func (e *Escrow) TenantLeft(tenant uint64) uint64 {
	if e.tenants != nil {
		if x := e.tenants.find(tenant); x != nil {
			return x.dueLeft()
		}
	}
	return math.MaxUint64
}

// dueLeft returns how many further hits of the window are due to the tenant.
func (x *tenantRow) dueLeft() uint64 {
	return uint64(math.Ceil(max(0, min(x.due-float64(x.got)-dust, maxNoteHits))))
}
