package rls

import (
	"slices"
	"strconv"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/owner"
)

// slot is the state of one descriptor while its call is being answered.
type slot struct {
	match    config.Match
	mark     holdMark
	request  int  // index in Call.requests, if counted
	replaced bool // the rule of another descriptor replaces its rule
}

// counted reports whether the descriptor has a limit of its own.
func (l *slot) counted() bool {
	return !l.replaced && (l.match.Kind == config.Limited || l.match.Kind == config.Overridden)
}

// match finds the limit of each descriptor, and drops limits that another descriptor's rule replaces.
func (s *Service) match(c *Call, v *view) {
	req := &c.Request
	c.slots = slices.Grow(c.slots[:0], len(req.Descriptors))[:len(req.Descriptors)]
	replaces := false
	var override config.Override
	for i := range req.Descriptors {
		d, l := &req.Descriptors[i], &c.slots[i]
		with := (*config.Override)(nil)
		if d.Override.Set {
			override = config.Override{Limit: d.Override.Limit, Unit: config.Unit(d.Override.Unit)}
			with = &override
		}
		l.replaced = false
		if c.isAPI {
			l.mark = c.apiMark()
		} else {
			d.Entries, l.mark = cutHold(d.Entries)
		}
		v.rules.Match(req.Domain, d.Entries, with, &l.match)
		replaces = replaces || l.match.Rule != nil && len(l.match.Rule.Replaces) > 0
	}
	if replaces {
		replace(c.slots)
	}
	if c.slots[0].match.Kind == config.NoDomain {
		s.store.DomainNotFound(req.Domain).Add(uint64(len(c.slots)))
	}
}

// replace drops each limit whose name a matched rule replaces. Rules that are unlimited or themselves replaced also
// replace others.
func replace(slots []slot) {
	for i := range slots {
		l := &slots[i]
		if l.match.Kind != config.Limited || l.match.Rule.Name == "" {
			continue
		}
		l.replaced = slices.ContainsFunc(slots, func(by slot) bool {
			return by.match.Rule != nil && slices.Contains(by.match.Rule.Replaces, l.match.Rule.Name)
		})
	}
}

// buildRequests builds the requests of the counted slots.
func (s *Service) buildRequests(c *Call, v *view) {
	c.requests, c.reserves, c.set = c.requests[:0], 0, false
	c.holds = 0
	domain := domainHash(c.Request.Domain)
	for i := range c.slots {
		l := &c.slots[i]
		if !l.counted() {
			continue
		}
		l.request = len(c.requests)
		q := v.request(domain, c.Request.Domain, c.Request.Descriptors[i].Entries, &l.match)
		q.Hits, q.Op = hits(&c.Request, &c.Request.Descriptors[i])
		t, once, all := l.match.Holds()
		c.set = c.set || all
		if c.isAPI {
			s.setAPI(c, i, &q, t, once)
		} else if t != nil || once || l.mark.marked {
			s.setHold(c, i, &q, t, once)
		}
		q.Whole = all
		c.requests = append(c.requests, q)
		if q.Op == owner.Take && l.match.Extension().Quota != nil && q.Hits <= uint64(q.Rule.Depth()) { // else it is never admitted
			s.called.add(&c.requests[l.request], q.Hits)
		}
	}
	if c.reserves > 0 || c.set {
		c.setVetoes(v)
	}
	c.results = slices.Grow(c.results[:0], len(c.requests))[:len(c.requests)]
	clear(c.results)
}

// setVetoes sets which of the requests refuse the call of which all are charged or none.
func (c *Call) setVetoes(v *view) {
	for i := range c.slots {
		l := &c.slots[i]
		if !l.counted() {
			continue
		}
		q, r := &c.requests[l.request], l.match.Rule
		switch {
		case v.switches.Shadow, r != nil && r.Shadow:
			q.Veto = owner.VetoNever
		case v.switches.Quota, r != nil && r.Quota:
			q.Veto = owner.VetoTogether
		}
	}
}

// NewRequest returns the request for a descriptor that matches m, without its operation and hits. domain is the hash of its
// domain, and version that of the rules.
func NewRequest(domain, version uint64, m *config.Match) owner.Request {
	x := m.Extension()
	var terms *federation.RuleTerms
	if x.Federation != nil && m.Rule != nil {
		terms = x.Federation.Terms
	}
	return owner.Request{
		Key: owner.Key(m.Digest), RingPos: m.Owner, Domain: domain, Rules: version, Rule: m.Limit,
		Degraded: x.Degraded, Partition: x.Partition, LocalCap: x.LocalCap, Strict: x.Strict, Volatile: x.Volatile,
		Mechanism: x.Mechanism, LeaseTerms: x.Lease, HotFactor: x.HotFactor, Audit: x.Lease != nil && x.Lease.Audit,
		Tenant: m.Tenant, TenantWeight: m.Weight, Federation: terms,
	}
}

// hits returns the descriptor's own hits if it has any, else those of the request, where 0 means 1. A descriptor with
// 0 hits charges nothing, but its operation is still Take: in stop mode, a key that is over its limit keeps the
// others from being charged, even without hits.
func hits(r *RateLimitRequest, d *Descriptor) (uint64, owner.Op) {
	n := uint64(max(1, r.HitsAddend))
	if d.HasAddend {
		n = d.Addend
	}
	if d.Refund {
		return n, owner.Refund
	}
	return n, owner.Take
}

// codeSummary collects what determines the overall code and the headers.
type codeSummary struct {
	over, quotas, quotasExceeded int
	badUnit                      bool
	header                       int // index of the status that the headers describe; -1: none
	lowestRemaining              uint32
}

// buildResponse builds the response from the slots and their results.
func (s *Service) buildResponse(c *Call, v *view) error {
	r := &c.Response
	t := codeSummary{header: -1, lowestRemaining: ^uint32(0)}
	for i := range c.slots {
		r.Statuses = append(r.Statuses, c.status(&c.slots[i]))
		t.add(i, &c.slots[i], &r.Statuses[i], v.switches.Quota)
	}
	r.Code = OK
	if t.over > 0 || (t.quotas > 0 && t.quotas == t.quotasExceeded) {
		r.Code = OverLimit
	}
	if r.Code == OverLimit && v.switches.Shadow {
		r.Code = OK
		s.counts.globalShadow.Add(1)
	}
	if t.badUnit && r.Code == OK {
		return errOverrideUnit // the other descriptors are counted and within their limits
	}
	if v.switches.Headers && t.header >= 0 {
		r.addHeaders(&r.Statuses[t.header], &v.switches)
	}
	if v.switches.DynamicMetadata {
		r.Metadata = c.metadata()
	}
	if s.additions.active() {
		s.additions.add(c, v)
	}
	return nil
}

func (c *Call) status(l *slot) descriptorStatus {
	switch {
	case l.match.Kind == config.BadUnit:
		return descriptorStatus{}
	case l.match.Kind == config.Unlimited:
		return descriptorStatus{Code: OK, Remaining: ^uint32(0)}
	case !l.counted():
		return descriptorStatus{Code: OK}
	}
	a := &c.results[l.request]
	st := descriptorStatus{
		Code: OK, HasLimit: true, Limit: l.match.Limit.Limit, Unit: l.match.Unit, Times: l.match.Times,
		Remaining: a.Remaining, Reset: int64(a.Reset.Seconds()),
	}
	if deep := l.match.Limit.Depth(); deep != st.Limit {
		st.Burst = deep
	}
	r := l.match.Rule
	if r != nil {
		st.Name = r.Name
	}
	if a.Over {
		st.Remaining = 0
		if r == nil || !r.Shadow {
			st.Code = OverLimit
		}
	}
	return st
}

func (t *codeSummary) add(i int, l *slot, st *descriptorStatus, allQuota bool) {
	if st.HasLimit && st.Remaining < t.lowestRemaining {
		t.header, t.lowestRemaining = i, st.Remaining
	}
	switch l.match.Kind {
	case config.BadUnit:
		t.badUnit = true
	case config.Unlimited:
		return
	}
	quota := allQuota || (l.match.Kind == config.Limited && !l.replaced && l.match.Rule.Quota)
	if quota {
		t.quotas++
	}
	if st.Code != OverLimit {
		return
	}
	if quota {
		t.quotasExceeded++
		return
	}
	t.over++
	t.header, t.lowestRemaining = i, 0
}

func (r *rateLimitResponse) addHeaders(st *descriptorStatus, sw *Switches) {
	r.Headers = append(r.Headers,
		responseHeader{sw.LimitHeader, string(st.appendPolicy(nil))},
		responseHeader{sw.RemainingHeader, strconv.FormatUint(uint64(st.Remaining), 10)},
		responseHeader{sw.ResetHeader, strconv.FormatInt(st.Reset, 10)},
	)
}
