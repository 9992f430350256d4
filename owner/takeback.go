package owner

import (
	"slices"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner/internal/writeback"
)

// ChargesTwice reports whether a late reply of the owner to req may be passed to TakeBack.
func ChargesTwice(req *Request) bool {
	return req.Op == Take && req.Hits > 0 && req.Degraded == policy.LocalShare && req.Mechanism != policy.Static &&
		req.Rule.Algorithm == limit.FixedWindow && req.Hold == nil && req.Federation == nil && req.Tenant == 0
}

// TakeBack gives back the hits of req, which this member has decided at time at from its local share because the owner was
// silent, and which the owner has charged and admitted after all. The hits are taken from what this boot has charged
// from its share in the same window: at most that, and nothing if the window has ended. So the limit is never exceeded,
// whatever the owner has lost since. ChargesTwice must have reported true.
func (n *Node) TakeBack(now, at int64, req *Request) {
	s, hash := n.shard(req.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	now = s.clock(now)
	w, e := req.Rule.Index(at), s.counters.Owned.Find(hash, req.Key)
	if e == nil || req.Rule.Index(now) != w {
		return
	}
	st := &s.state
	s.counters.Load(e, req.Rule, st)
	i := slices.IndexFunc(st.Slots, func(f limit.Slot) bool { return f.At == w && f.Writer == s.share() })
	if i < 0 {
		return
	}
	back := st.RefundAt(w, s.share(), min(req.Hits, saturatingSub(st.Slots[i].Charged, st.Slots[i].Refunded)))
	if back == 0 {
		return
	}
	req.Rule.Trim(st, now)
	if !s.counters.Store(e, req.Rule, st) {
		return
	}
	s.counts.ShareTakenBack += back
	n.trackUnreplicated(s, e, req.Rule, 0)
	if n.journals(req) {
		n.trackUnwritten(s, e, req.Rule, &writeback.Hits{Now: now})
	}
}
