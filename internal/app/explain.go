package app

import (
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/keyward/keyward/internal/admin"
	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/settings"
	"github.com/keyward/keyward/owner"
)

// explanation says what becomes of one more hit on a descriptor's key, and why. It charges nothing.
func (m *sidecar) explanation(domain string, entries []config.Entry) (api.Explanation, error) {
	rules := m.service.Rules()
	if rules == nil {
		rules = new(config.Rules)
	}
	e, found := admin.NewExplanation(rules, domain, entries)
	if found.Kind != config.Limited {
		return e, nil
	}
	if c := m.cluster.Load(); c != nil {
		r := c.View().Ring
		if i := r.Owner(found.Owner); i >= 0 {
			e.Owner = string(r.At(i).ID)
		}
		if i := r.Successor(found.Owner); i >= 0 {
			e.Successor = string(r.At(i).ID)
		}
	}
	a := m.query(domain, rules, &found, owner.DryRun, 1)
	left := uint64(0)
	if !a.Over {
		left = uint64(a.Remaining) + 1 // the answer is about what is left after the hit
	}
	sw, _ := settings.ReadReloadable(m.getenv) // a fault was said when the rules came into force
	admin.SetDecision(&e, &found, api.CounterStatus{
		Count: a.Before, Lent: m.lent(owner.Key(found.Digest)), Limit: uint64(found.Limit.Limit), Remaining: left, Reset: a.Reset.Seconds(),
		Owner: e.Owner, Authority: admin.AuthorityName(a.Authority), Window: found.Limit.Window.String(),
	}, a.Over, sw.Shadow || sw.Quota)
	return e, nil
}

// query asks the owner of what found is about; nothing happens to the rule's statistics.
func (m *sidecar) query(domain string, rules *config.Rules, found *config.Match, op owner.Op, hits uint64) owner.Result {
	x := found.Extension()
	q := owner.Request{
		Key: owner.Key(found.Digest), RingPos: found.Owner, Domain: xxhash.Sum64String(domain), Rules: rules.Hash(), Rule: found.Limit,
		Op: op, Hits: hits, Degraded: x.Degraded, LocalCap: x.LocalCap,
	}
	var a [1]owner.Result
	m.peer.Decide(owner.Deadline{Silent: time.Now().Add(ownerTimeout)}, false, []owner.Request{q}, a[:])
	return a[0]
}
