package app

import (
	"errors"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/admin"
	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/settings"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// ownerTimeout is how long a request of an operator waits for a key's owner.
const ownerTimeout = time.Second

// limitedKey is a descriptor that a rule limits.
type limitedKey struct {
	domain  string
	version uint64 // of the rules
	match   config.Match
	tenants map[uint64]string // names of tenants by digest; nil if the limit is not divided
}

// findKey returns the key of a descriptor, or ErrNoCounter if no rule limits it.
func (m *sidecar) findKey(domain string, entries []config.Entry) (*limitedKey, error) {
	rules := m.service.Rules()
	if rules == nil {
		return nil, api.ErrNoCounter
	}
	k := &limitedKey{domain: domain, version: rules.Hash()}
	rules.Match(domain, entries, nil, &k.match)
	if k.match.Kind != config.Limited {
		return nil, api.ErrNoCounter
	}
	k.tenants = rules.TenantNames(&k.match, entries)
	return k, nil
}

// request returns a request for k, without its operation and hits.
func (k *limitedKey) request() owner.Request {
	return rls.NewRequest(xxhash.Sum64String(k.domain), k.version, &k.match)
}

// query sends a request for k to its owner. It does not change the rule's statistics.
func (m *sidecar) query(k *limitedKey, op owner.Op, hits uint64) owner.Result {
	q := k.request()
	q.Op, q.Hits = op, hits
	var a [1]owner.Result
	m.peer.Decide(policy.Deadline{Silent: time.Now().Add(ownerTimeout)}, false, []owner.Request{q}, a[:])
	return a[0]
}

// counterStatus reads the counter of a descriptor's key at its owner. It charges nothing.
func (m *sidecar) counterStatus(domain string, entries []config.Entry) (api.CounterStatus, error) {
	k, err := m.findKey(domain, entries)
	if err != nil {
		return api.CounterStatus{}, err
	}
	begun, before := m.usage.begin(), m.ownerMember(k.match.Owner)
	a := m.query(k, owner.Read, 0)
	c := m.newCounterStatus(k, &a)
	c.Remaining = uint64(a.Remaining)
	if a.Authority == owner.Static {
		c.Source = fromMember // newCounterStatus has set Count
		return c, nil
	}
	at := m.ownerMember(k.match.Owner)
	c.Owner = string(at.ID)
	q := k.request()
	r := &usageRead{
		key: q.Key, rule: q.Rule, now: time.Now().UnixNano(), begun: begun, end: a.Reset, count: a.After,
		isOwner: a.Authority == owner.Full || a.Authority == owner.Overflow,
	}
	if before.ID == at.ID && before.BootID == at.BootID {
		r.owner = ownerRef{string(at.ID), at.BootID}
	}
	if !r.isOwner { // a degraded policy's count includes the part of the limit that it withholds
		r.count = m.node.RecordedUsage(r.now, &q)
	}
	c.Count, c.Source = m.usage.merge(r)
	if c.Source == fromOwner {
		c.Holds = heldHits(k, c.Count, &a)
	}
	return c, nil
}

// newCounterStatus returns what a result reports about k's counter, without Count, Remaining and Owner. Count is set for
// static rules, to what this member has counted.
func (m *sidecar) newCounterStatus(k *limitedKey, a *owner.Result) api.CounterStatus {
	c := api.CounterStatus{
		Tenants: m.tenantsOf(k), Lent: m.lent(owner.Key(k.match.Digest)), Limit: uint64(k.match.Limit.Limit), Reset: a.Reset.Seconds(),
		Authority: admin.AuthorityName(a.Authority), Window: k.match.Limit.Window.String(),
	}
	if a.Authority == owner.Static {
		q := k.request()
		c.Count = m.node.RecordedUsage(time.Now().UnixNano(), &q)
	}
	return c
}

// tenantsOf returns the tenants of k, or nil unless this member owns k and its rule is fair.
func (m *sidecar) tenantsOf(k *limitedKey) (all []api.TenantStatus) {
	if k.tenants == nil || m.ownerOf(k.match.Owner) != ring.ID(m.Flags.Node) && m.cluster.Load() != nil {
		return nil
	}
	q := k.request()
	for _, t := range m.node.Tenants(time.Now().UnixNano(), &q) {
		name := k.tenants[t.Digest]
		switch {
		case t.Digest == 0:
			name = "*"
		case name == "":
			name = fmt.Sprintf("%016x", t.Digest)
		}
		all = append(all, api.TenantStatus{
			Tenant: name, Weight: t.Weight, Used: t.Used, Asked: t.Offered, AskedBefore: t.Last, Remaining: t.Left,
		})
	}
	return all
}

// explanation explains what happens to the next hit on a descriptor's key. It charges nothing.
func (m *sidecar) explanation(domain string, entries []config.Entry) (api.Explanation, error) {
	rules := m.service.Rules()
	if rules == nil {
		rules = new(config.Rules)
	}
	e, match := admin.NewExplanation(rules, domain, entries)
	if match.Kind != config.Limited {
		return e, nil
	}
	if c := m.cluster.Load(); c != nil && match.Extension().Mechanism != policy.Static {
		r := c.View().Ring
		if i := r.Owner(match.Owner); i >= 0 {
			e.Owner = string(r.At(i).ID)
		}
		if i := r.Successor(match.Owner); i >= 0 {
			e.Successor = string(r.At(i).ID)
		}
	}
	k := &limitedKey{domain, rules.Hash(), match, rules.TenantNames(&match, entries)}
	a := m.query(k, owner.DryRun, 1)
	c := m.newCounterStatus(k, &a)
	if c.Owner = e.Owner; a.Authority != owner.Static {
		c.Count = a.Before
	}
	if a.Authority == owner.Full {
		c.Holds = heldHits(k, c.Count, &a)
	}
	if !a.Over {
		c.Remaining = uint64(a.Remaining) + 1 // a.Remaining excludes the hit
	}
	sw, _ := settings.ReadReloadable(m.Getenv) // applyRules logs a fault
	admin.SetDecision(&e, &match, admin.KeyDecision{Counter: c, Over: a.Over, FairShare: a.FairShare, Lenient: sw.Shadow || sw.Quota})
	return e, nil
}

// reset refunds the hits of a descriptor's key at its owner. Hits that are counted meanwhile and hits that members
// hold by a lease remain.
func (m *sidecar) reset(domain string, entries []config.Entry) (api.ResetResult, error) {
	k, err := m.findKey(domain, entries)
	if err != nil {
		return api.ResetResult{}, err
	}
	r := api.ResetResult{Owner: string(m.ownerOf(k.match.Owner))}
	before := m.query(k, owner.Read, 0)
	switch before.Authority {
	case owner.Full:
	case owner.Static:
		return r, errors.New("mechanism static: each member counts for itself, so nothing was refunded")
	default:
		return r, errors.New("the key's owner is unreachable: nothing was refunded")
	}
	r.Before = before.After
	if r.Before > 0 {
		m.query(k, owner.Refund, r.Before)
		m.usage.forget(owner.Key(k.match.Digest))
	}
	after := m.query(k, owner.Read, 0)
	if r.After = after.After; r.After >= r.Before && r.Before > 0 {
		return r, errors.New("the owner refunded nothing")
	}
	m.auditReset(k, entries, &r)
	m.Log.Info("key reset by an operator", "rule", k.match.Rule.FullKey, "before", r.Before, "after", r.After)
	return r, nil
}

// lent returns how many hits of k's count holders of leases may not have spent, or nil unless this member owns and
// leases k.
func (m *sidecar) lent(k owner.Key) *uint64 {
	for _, h := range m.node.HotKeys(time.Now().UnixNano()) {
		if h.Key == k {
			return &h.Lent
		}
	}
	return nil
}

// ownerOf returns the owner of the keys at ring position h, or "" while there is no ring.
func (m *sidecar) ownerOf(h uint64) ring.ID { return m.ownerMember(h).ID }

// ownerMember returns the owner of the keys at ring position h. It is empty while there is no ring.
func (m *sidecar) ownerMember(h uint64) ring.Member {
	c := m.cluster.Load()
	if c == nil {
		return ring.Member{}
	}
	r := c.View().Ring
	if i := r.Owner(h); i >= 0 {
		return r.At(i)
	}
	return ring.Member{}
}
