package app

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/keyward/keyward/envoy/xds"
	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// shortestCap is the shortest window that Envoy's token buckets can have.
const shortestCap = 50 * time.Millisecond

// reliefOf returns which kinds of relief a hot key can have, and why not the others. The Planner decides by the same
// properties.
func reliefOf(k *owner.HotKey, rules *config.Rules) []api.HotRelief {
	lease := api.HotRelief{Kind: "lease"}
	switch {
	case k.Splittable:
	case k.Rule.Algorithm.Log():
		lease.Why = "a " + k.Rule.Algorithm.String() + " is never lent"
	default:
		lease.Why = "5 % of its limit is less than one hit for each member"
	}
	split := api.HotRelief{Kind: "split", Why: cmp.Or(lease.Why, whyUnannounced(k))}
	if split.Why == "" && (k.RingPos != ring.Hash(k.Owner) || k.Owner != strings.Trim(k.Owner, " \t")) {
		split.Why = "no header has its owner string as the value"
	}
	return append([]api.HotRelief{lease, split, capOf(k, rules)}, quotaOf(k, rules)...)
}

// quotaOf returns whether Envoys can spend the limit of a key whose rule has hot_step: quota.
func quotaOf(k *owner.HotKey, rules *config.Rules) []api.HotRelief {
	var m, found config.Match
	entries := rules.EntriesOf(k.Domain, k.Name, k.Key, &m)
	if entries == nil || m.Rule.Extension.Quota == nil || !m.Rule.Extension.Quota.OnlyHot {
		return nil
	}
	return []api.HotRelief{{Kind: "quota", Why: whyNoQuota(k.Domain, k.Owner, routeEntries(entries), rules, &found)}}
}

func capOf(k *owner.HotKey, rules *config.Rules) api.HotRelief {
	relief := api.HotRelief{Kind: "cap", Why: whyUnannounced(k)}
	if relief.Why != "" {
		return relief
	}
	var m config.Match
	entries := rules.EntriesOf(k.Domain, k.Name, k.Key, &m)
	_, value, _ := strings.Cut(k.Name, "=")
	inRoute := value == k.Owner
	replaced := entries != nil && rules.Replaced()[m.Rule.Name]
	relief.Why = whyUncapped(k.Rule, &k.LeaseTerms, replaced)
	switch {
	case relief.Why != "":
	case entries == nil && !inRoute:
		relief.Why = "its descriptor is not known exactly: several values share the counter, or the name is long"
	case !inRoute:
		relief.With = "hot-filters"
	}
	return relief
}

// whyUncapped returns why Envoy must not or cannot cap keys of a rule, or "" if it can.
func whyUncapped(r limit.Rule, terms *lease.Terms, replaced bool) string {
	switch {
	case terms != nil && terms.Uncapped:
		return "its rule refuses no request"
	case r.Algorithm == limit.InFlight:
		return "it counts requests in flight"
	case r.Limit == 0:
		return "its limit is 0"
	case r.Window < shortestCap:
		return "its window is shorter than 50ms"
	case replaced:
		return "another rule replaces its rule for some requests"
	}
	return ""
}

// whyUnannounced returns why no route can contain a key's owner string, or "" if one can.
func whyUnannounced(k *owner.HotKey) string {
	if k.Owner == "" {
		return "its owner string is empty"
	}
	r := hotkey.Route{Domain: k.Domain, Owner: k.Owner, Author: "member", Version: 1, Mode: hotkey.Never, Manual: true}
	if err := r.Validate(); err != nil {
		return "no route can contain it: " + err.Error()
	}
	return ""
}

// hotEnvoys returns what the clients of an xDS server take for hot keys.
func hotEnvoys(s xds.ServerStatus) (all []api.HotEnvoy) {
	for _, c := range s.Clients {
		e := api.HotEnvoy{Node: c.Node, Caps: []string{}}
		for _, name := range c.Hot {
			domain, caps := strings.CutPrefix(name, xds.CapsPrefix)
			switch {
			case caps:
				e.Caps = append(e.Caps, domain)
			case slices.Contains(xds.SpreadFilters(), name):
				e.Spreads = true
			default:
				e.Routes = true
			}
		}
		all = append(all, e)
	}
	return all
}
