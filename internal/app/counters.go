package app

import (
	"time"

	"github.com/keyward/keyward/internal/admin"
	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// ownerTimeout is how long /v1/counters waits for a key's owner.
const ownerTimeout = time.Second

// counterStatus asks the owner of a descriptor's key how it stands, and charges nothing.
func (m *sidecar) counterStatus(domain string, entries []config.Entry) (api.CounterStatus, error) {
	rules := m.service.Rules()
	if rules == nil {
		return api.CounterStatus{}, api.ErrNoCounter
	}
	var found config.Match
	rules.Match(domain, entries, nil, &found)
	if found.Kind != config.Limited {
		return api.CounterStatus{}, api.ErrNoCounter
	}
	a := m.query(domain, rules, &found, owner.Read, 0)
	return api.CounterStatus{
		Count: a.After, Lent: m.lent(owner.Key(found.Digest)), Limit: uint64(found.Limit.Limit), Remaining: uint64(a.Remaining), Reset: a.Reset.Seconds(),
		Owner: string(m.ownerOf(found.Owner)), Authority: admin.AuthorityName(a.Authority), Window: found.Limit.Window.String(),
	}, nil
}

// lent is how many hits of k's count others hold; nil unless this member lends them.
func (m *sidecar) lent(k owner.Key) *uint64 {
	for _, h := range m.node.HotKeys(time.Now().UnixNano()) {
		if h.Key == k {
			return &h.Lent
		}
	}
	return nil
}

// ownerOf is who owns the keys at h; empty while there is no ring.
func (m *sidecar) ownerOf(h uint64) ring.ID {
	c := m.cluster.Load()
	if c == nil {
		return ""
	}
	r := c.View().Ring
	if i := r.Owner(h); i >= 0 {
		return r.At(i).ID
	}
	return ""
}
