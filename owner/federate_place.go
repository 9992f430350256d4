package owner

import (
	"maps"
	"math"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
)

// FederationPlace is the place of this cluster in a federation.
type FederationPlace struct {
	Schedule    *federation.LayoutSchedule // nil: it is in none
	Authorities []string                   // names of the coordinators that this member can reach
}

// place is a FederationPlace in use. It is immutable.
type place struct {
	schedule *federation.LayoutSchedule
	links    map[uint32]*authorityLink // by federation.AuthorityID
}

// SetFederation replaces the place of this cluster in a federation, whose layouts have changed. Coordinators that it has known
// before remain known, since windows that have begun use them until they end.
func (n *Node) SetFederation(x FederationPlace) {
	n.serial.Lock()
	defer n.serial.Unlock()
	n.federation.set(x)
}

func (f *federated) set(x FederationPlace) {
	p := &place{x.Schedule, map[uint32]*authorityLink{}}
	if was := f.place.Load(); was != nil {
		maps.Copy(p.links, was.links)
	}
	for _, name := range x.Authorities {
		id := federation.AuthorityID(name)
		if p.links[id] == nil {
			l := &authorityLink{}
			l.rtt.Store(int64(l.link.RTT()))
			p.links[id] = l
		}
	}
	f.place.Store(p)
}

// link returns the way to a coordinator, or nil.
func (f *federated) link(authority uint32) *authorityLink { return f.place.Load().links[authority] }

// phase returns the layout of windows that begin at that time, or nil if this member knows none.
func (p *place) phase(begin int64) *federation.LayoutPhase {
	if p.schedule == nil {
		return nil
	}
	return p.schedule.At(begin)
}

// divide sets the layout of q's window, and what that divides. A window that began before the first known layout has
// nothing.
func (q *poolOp) divide() {
	t, r := q.Federation, &q.Request.Rule
	q.store = t.Store
	begin := r.End(r.Index(q.now) - 1)
	if q.phase = q.place.phase(begin); q.phase == nil {
		if q.place.schedule == nil {
			q.budget.Pool = r.Limit // this member does not know its region
		}
		return
	}
	q.store.Slack /= uint32(q.phase.Parts())
	if q.budget = q.phase.Budget(r.Limit, t.Floor); !q.phase.Opened(begin) {
		q.budget.Pool = 0
	}
}

// floor returns the region's floor. Shortly before the first window of another layout, it is the smaller one of both, because
// a member with another clock may have begun that window.
func (q *poolOp) floor() uint32 {
	r := &q.Request.Rule
	next := r.End(r.Index(q.now))
	if q.phase == nil || next-q.now > int64(limit.ClockTolerance) {
		return q.budget.Floor
	}
	p := q.place.phase(next)
	if p == nil || p.Layout.Epoch == q.phase.Layout.Epoch {
		return q.budget.Floor
	}
	return min(q.budget.Floor, p.Budget(r.Limit, q.Federation.Floor).Floor)
}

// pastCoordinator describes the coordinator of the window before the first one of a layout.
type pastCoordinator struct {
	epoch uint32 // of the layout of that window
	other bool   // it is not that of the escrow
}

// deductPast takes from the pool what the window before weighs on q's, if that is a sliding one and another coordinator
// lent the pool of the window before: as much as if it had lent all. With a margin for clocks, since the weight falls.
func (q *poolOp) deductPast() {
	r := &q.Request.Rule
	if r.Algorithm != limit.SlidingWindow || q.phase == nil {
		return
	}
	end := r.End(r.Index(q.now))
	begin := end - int64(r.Window)
	if begin-int64(r.Window) >= q.phase.Term.Opens {
		return
	}
	before, pool := q.place.phase(begin-int64(r.Window)), r.Limit
	if before != nil && before.Opened(begin-int64(r.Window)) { // otherwise, a former layout may have been used
		past := &q.escrow.past
		if e := before.Layout.Epoch; past.epoch != e {
			*past = pastCoordinator{e, before.AuthorityOf(q.Federation.Authority, q.Key) != q.escrow.authority}
		}
		if !past.other {
			return
		}
		pool = before.Budget(r.Limit, q.Federation.Floor).Pool
	}
	left := min(end-q.now+int64(limit.ClockTolerance), int64(r.Window))
	weight := uint32(math.Ceil(float64(pool) * float64(left) / float64(r.Window)))
	q.budget.Pool -= min(q.budget.Pool, weight)
}

// outdated reports whether x is not of the layout of its present window.
func (p *place) outdated(x *escrow, now int64) bool {
	return epochOf(p.phase(x.rule.End(x.rule.Index(now)-1))) != x.epoch
}

// lends reports whether this cluster lends pools of the window that begins at that time, for requests with the epoch of r.
func (p *place) lends(r *federation.PoolRequest, begin int64) bool {
	x := p.phase(begin)
	return x != nil && x.Lends && x.Layout.Epoch == r.Epoch && x.Opened(begin)
}

// epochOf returns the epoch of a layout, or 0 for none.
func epochOf(p *federation.LayoutPhase) uint32 {
	if p == nil {
		return 0
	}
	return p.Layout.Epoch
}

// authorityOf returns the authority that lends key by layout p, or 0.
func authorityOf(p *federation.LayoutPhase, t *federation.RuleTerms, key Key) uint32 {
	if p == nil {
		return t.Authority
	}
	return p.AuthorityOf(t.Authority, key)
}
