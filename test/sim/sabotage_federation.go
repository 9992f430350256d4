package sim

import (
	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/owner"
)

// The bugs of federations.
const (
	bugCarryOver       bug = 150 + iota // credit is carried over to the next window
	bugGrantTwice                       // a grant is added twice
	bugTwoOutstanding                   // two requests are in flight
	bugReturnTwice                      // a return is credited twice
	bugFloorTwice                       // a member that is not the owner spends the floor
	bugNotRepaired                      // what a region has of a lost write is not charged again
	bugCoordinatorRoll                  // a window ends by the coordinator's clock alone
	bugOutageForgets                    // regional_only does not subtract what the region was lent
	bugLayoutEarly                      // the window in progress uses the layout that begins
	bugLayoutFloors                     // a region has its floor of the new layout at once
	bugMoveAges                         // what is left of a moved escrow is measured from its arrival
)

// federationBugs are the bugs of federations, by name.
var federationBugs = map[string]bug{
	"credit is carried over to the next window": bugCarryOver, "a grant is added twice": bugGrantTwice,
	"two requests are in flight": bugTwoOutstanding, "a return is credited twice": bugReturnTwice,
	"two members spend one floor": bugFloorTwice, "a lost write is not charged again": bugNotRepaired,
	"a window ends by the coordinator's clock alone":         bugCoordinatorRoll,
	"regional_only does not subtract what a region was lent": bugOutageForgets,
	"the window in progress uses the layout that begins":     bugLayoutEarly, "a region has its floor of the new layout at once": bugLayoutFloors,
	"the delay of a moved escrow adds to its life": bugMoveAges,
}

// storeSabotage contains what the bugs of a store remember.
type storeSabotage struct {
	have  map[lineKey]uint64   // what a region had after its newest request
	bonus map[windowKey]uint64 // hits that were credited twice, by key's first part and window
}

type lineKey struct {
	region int
	key    owner.Key
	boot   uint64
	window int64
}

func (s *storeSabotage) remember(region int, r *federation.PoolRequest, g *federation.PoolGrant) {
	if s.have == nil {
		s.have, s.bonus = map[lineKey]uint64{}, map[windowKey]uint64{}
	}
	s.have[lineKey{region, r.Key, r.Boot, g.Window}] = g.Total
}

// sabotageRequest changes a request before a store processes it. The result changes the grant.
func (s *poolStore) sabotageRequest(region int, r *federation.PoolRequest) func(*federation.PoolGrant) {
	x, b := *r, &s.sabotaged
	had, known := b.have[lineKey{region, r.Key, r.Boot, r.Window}]
	k, _ := s.h.f.ruleOf(r.Key)
	switch s.h.f.bug {
	case bugNotRepaired:
		if !known {
			had = 0
		}
		if x.Have > had {
			r.Have, r.Left = had, min(r.Left, had)
		}
	case bugReturnTwice:
		at := windowKey{k, r.Window}
		if known && r.Have < had && r.Window == r.Rule.Index(s.clock()) {
			b.bonus[at] += had - r.Have
		}
		r.Pool += b.bonus[at]
		r.Rule.Limit += uint32(b.bonus[at])
	case bugTwoOutstanding:
		return func(g *federation.PoolGrant) {
			again := *r
			again.Seq++
			if g.Window == r.Window || r.Window == 0 {
				if more, ok := s.grantor.Grant(s.clock(), regionName(region), &again); ok {
					g.Total += more.Total - min(more.Total, r.Have)
				}
			}
			b.remember(region, &x, g)
		}
	}
	return func(g *federation.PoolGrant) {
		if s.h.f.bug == bugNotRepaired && g.Window == x.Window {
			b.remember(region, &x, g)
			g.Total += x.Have - r.Have
			return
		}
		b.remember(region, &x, g)
	}
}

// sabotageGrant changes a grant before m processes it.
func (m *member) sabotageGrant(g *federation.PoolGrant) {
	b, ok := m.node.EscrowBalance(g.Key)
	switch f := m.w.federal; {
	case f.bug == bugGrantTwice && ok && b.Window == g.Window:
		g.Total += g.Total - min(g.Total, b.Have)
	case f.bug == bugCarryOver:
		if old, ok := m.federated.unspent[g.Key]; ok && old.Window < g.Window {
			g.Total += old.Left
			delete(m.federated.unspent, g.Key)
		}
	}
}

// sabotageFederated changes a decision of m about q.
func (w *world) sabotageFederated(m *member, q *request, a *owner.Result) {
	if w.bug == noBug || q.req.Federation == nil || q.req.Op != owner.Take || !a.Over || w.oracle.probing {
		return
	}
	f := w.federal
	k, x := f.ruleOf(q.req.Key)
	index := q.req.Rule.Index(m.clock())
	budget := m.budget(k, index)
	switch {
	case w.bug == bugFloorTwice && a.Authority == owner.Closed && !m.ownsByRing(q.req.RingPos):
		m.forge(q, a, index, uint64(budget.Floor))
	case w.bug == bugOutageForgets && x.terms.Outage == federation.RegionalOnly && m.federated.link(m.authority(k, index)).mayBeAway() &&
		m.ownsByRing(q.req.RingPos):
		m.forge(q, a, index, uint64(budget.Slice))
	case w.bug == bugCoordinatorRoll && a.Authority != owner.Full:
		u, ok := m.federated.unspent[q.req.Key]
		s := f.homes[f.layouts.home(k, u.Window)].store
		if ok && u.Left >= q.req.Hits && m.clock() >= u.rule.End(u.Window) && s.clock() < u.rule.End(u.Window) {
			u.Left -= q.req.Hits
			m.federated.unspent[q.req.Key] = u
			a.Over, a.Authority, q.forged = false, owner.Escrow, u.Window
		}
	}
}

// forge makes a a decision that admits q from a floor of that limit, if m has not forged that many hits.
func (m *member) forge(q *request, a *owner.Result, index int64, limit uint64) {
	m.federated.link(0)
	used := m.federated.spent[q.req.Key]
	if used == nil {
		used = map[int64]uint64{}
		m.federated.spent[q.req.Key] = used
	}
	if used[index]+q.req.Hits > limit {
		return
	}
	used[index] += q.req.Hits
	a.Over, a.Authority = false, owner.Full
	a.Reset = wholeSeconds(q.req.Rule.End(index) - m.clock())
}

// ownsByRing reports whether m owns the keys at h by its own ring.
func (m *member) ownsByRing(h uint64) bool {
	r := m.view.Ring
	return r != nil && r.Len() > 0 && r.At(r.Owner(h)).ID == slotID(m.slot)
}
