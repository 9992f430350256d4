package app

import (
	"errors"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/owner"
)

// reset gives the hits that stand against a descriptor's limit back at their owner: what is counted meanwhile stands, and
// so does what members hold of a lease.
func (m *sidecar) reset(domain string, entries []config.Entry) (api.ResetResult, error) {
	rules := m.service.Rules()
	if rules == nil {
		return api.ResetResult{}, api.ErrNoCounter
	}
	var found config.Match
	rules.Match(domain, entries, nil, &found)
	if found.Kind != config.Limited {
		return api.ResetResult{}, api.ErrNoCounter
	}
	r := api.ResetResult{Owner: string(m.ownerOf(found.Owner))}
	before := m.query(domain, rules, &found, owner.Read, 0)
	if before.Authority != owner.Full {
		return r, errors.New("the key's owner cannot be reached: nothing was given back")
	}
	r.Before = before.After
	if r.Before > 0 {
		m.query(domain, rules, &found, owner.Refund, r.Before)
	}
	after := m.query(domain, rules, &found, owner.Read, 0)
	if r.After = after.After; r.After >= r.Before && r.Before > 0 {
		return r, errors.New("the owner gave nothing back")
	}
	m.log.Info("reset by hand", "rule", found.Rule.FullKey, "before", r.Before, "after", r.After)
	return r, nil
}
