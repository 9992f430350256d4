package app

import (
	"context"
	"slices"
	"time"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// planInterval is the time between two plans of hot keys' routes, as hotkey.Planner requires it.
const planInterval = time.Second

// plan updates the routes of this member's hot keys by their rates and the members' loads, until ctx ends.
func (m *sidecar) plan(ctx context.Context) {
	c, planner := m.cluster.Load(), hotkey.NewPlanner(ring.ID(m.Flags.Node), 0)
	tick := time.NewTicker(planInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := m.peer.Now()
		c.SetLoad(m.peer.Load())
		to := hotkey.Targets{Ring: c.View().Ring, Load: c.Loads()}
		rules := m.service.Rules()
		routes := planner.Plan(now, to, routable(m.node.HotKeys(now), rules), m.manual.routes())
		c.SetRoutes(withoutQuotas(routes, rules))
	}
}

// withoutQuotas removes the routes that switch keys whose rule has no such step any more.
func withoutQuotas(routes []hotkey.Route, rules *config.Rules) []hotkey.Route {
	return slices.DeleteFunc(routes, func(r hotkey.Route) bool {
		var found config.Match
		return r.Mode == hotkey.Quota && (rules == nil || whyNoQuota(r.Domain, r.Owner, r.Entries, rules, &found) != "")
	})
}

// routable returns the keys that may have routes: those that have a name and were measured as hot. Since is zero for
// a key that is hot only because a rule or a route declares it. A route must not be its own reason, or it would never
// end. A rule that others replace does not apply to all requests with its descriptor, so it has no cap.
func routable(keys []owner.HotKey, rules *config.Rules) (hot []hotkey.HotCounter) {
	for i := range keys {
		k := &keys[i]
		if k.Since == 0 || !k.Hot || k.Owner == "" {
			continue
		}
		h := hotkey.HotCounter{
			Domain: k.Domain, Name: k.Name, Owner: k.Owner, Hash: k.RingPos, Rate: k.Rate, Limit: capLimit(k.Rule), Window: int64(k.Rule.Window),
			SubKeys: k.LeaseTerms.SubKeys, Dedicated: k.LeaseTerms.Dedicated, Uncapped: k.LeaseTerms.Uncapped || k.Rule.Algorithm == limit.InFlight,
			Splittable: k.Splittable, Since: k.Since,
		}
		var m config.Match
		if rules != nil {
			h.Entries = routeEntries(rules.EntriesOf(k.Domain, k.Name, k.Key, &m))
		}
		if h.Entries != nil && m.Rule.Name != "" && rules.Replaced()[m.Rule.Name] {
			h.Uncapped = true
		}
		if found := (config.Match{}); h.Entries != nil && whyNoQuota(h.Domain, h.Owner, h.Entries, rules, &found) == "" {
			h.Quota, h.Allow = true, found.Rule.Extension.Quota.First == config.FirstAllow
		}
		hot = append(hot, h)
	}
	return hot
}

// routeEntries returns a descriptor as routes contain it.
func routeEntries(entries []config.Entry) (all []hotkey.RouteEntry) {
	for _, e := range entries {
		all = append(all, hotkey.RouteEntry(e))
	}
	return all
}
