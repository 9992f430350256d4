package config

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/policy"
)

// Federation is how a rule's limit is divided between regions.
type Federation struct {
	Authority string // name of the coordinator; empty means that of the layout
	Static    bool   // mechanism: static. Each region has its slice, and nothing is lent
	Fair      *Fair  // how the limit is divided between tenants; nil: it is not
	Terms     *federation.RuleTerms
	Epsilon   float64 // mechanism: approximate; the fraction of the limit that may be admitted above it

	ttl        time.Duration
	reclaim    string // as the rule has it
	floorGiven bool
}

// failsOpen reports whether local_cap has an effect: while the coordinator is away.
func (f *Federation) failsOpen() bool {
	return f != nil && !f.Static && f.Terms.Outage == federation.FailOpen
}

// FederationOptions are the federation of which the members are a region.
type FederationOptions struct {
	Name        string   // of the federation; empty: the members are in none
	Coordinator string   // the authority of rules that name none
	Authorities []string // names of the coordinators that the members can reach
	Reclaims    []string // those of them that support reclaim
	Counts      []string // those of them that support mechanism: approximate
	Shared      []string // those of them that share their counters with envoyproxy/ratelimit
	Regions     int      // in the layout
	Holders     int      // in the layout; 0: its regions are the holders
}

var federationKeys = slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(storeKeys)),
	"authority", "batch", "fair_by", "floor", "mechanism", "outage", "weight", "weights")))

// parseFederation reads the map of metadata.keyward.federation.
func parseFederation(v any, path []*node) (*Federation, string) {
	m, isMap := v.(map[string]any)
	if !isMap {
		return nil, fmt.Sprintf("federation must be a map with the keys %s, not '%v'", strings.Join(federationKeys, ", "), v)
	}
	f := &Federation{Terms: &federation.RuleTerms{Floor: federation.DefaultFloor}}
	if by, given := m["fair_by"]; given {
		f.Fair = &Fair{Default: 1}
		f.Fair.Entry, _ = by.(string)
		if fault := f.Fair.place("federation.fair_by", by, path); fault != "" {
			return nil, fault
		}
	}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if fault := f.set(key, m[key]); fault != "" {
			return nil, fault
		}
	}
	if fault := f.complete(m); fault != "" {
		return nil, fault
	}
	return f, ""
}

// set sets one key of f.
func (f *Federation) set(key string, v any) (fault string) {
	switch key {
	case "authority":
		name, isText := v.(string)
		switch {
		case strings.Contains(name, "://"), strings.Contains(name, "@"):
			return "federation.authority must be the name of an authority; its address and credentials belong in --authority"
		case !isText || name == "":
			return fmt.Sprintf("federation.authority must be the name of an authority, not '%v'", v)
		}
		f.Authority = name
	case "mechanism":
		if v != "lease" && v != "approximate" && v != "static" {
			return fmt.Sprintf("federation.mechanism must be one of lease, approximate, static, not '%v'", v)
		}
		f.Static, f.Terms.Store.Approximate = v == "static", v == "approximate"
	case "floor":
		f.Terms.Floor, fault = parseFloor(v)
	case "batch":
		f.Terms.Batch, fault = duration("federation.batch", 100*time.Millisecond, time.Minute)(v)
	case "outage":
		name, _ := v.(string)
		o, known := federation.ParseOutage(name)
		if !known {
			return fmt.Sprintf("federation.outage must be one of fail_closed, regional_only, snapshot, fail_open, not '%v'", v)
		}
		f.Terms.Outage = o
	case "fair_by":
	case "weight", "weights":
		return f.setWeights(key, v)
	default:
		if storeKeys[key] != "" {
			return f.setStore(key, v)
		}
		return fmt.Sprintf("federation must be a map with the keys %s, not '%s'", strings.Join(federationKeys, ", "), key)
	}
	return fault
}

// setWeights sets the weights of tenants.
func (f *Federation) setWeights(key string, v any) (fault string) {
	switch {
	case f.Fair == nil:
		return fmt.Sprintf("federation.%s needs federation.fair_by, the entry key whose values are the tenants", key)
	case key == "weights":
		f.Fair.Weights, fault = parseWeights("federation.weights", v)
	default:
		f.Fair.Default, fault = parseWhole("federation.weight", v, maxWeight)
	}
	return fault
}

func parseFloor(v any) (uint8, string) {
	f, ok := fraction(v)
	percent := math.Round(100 * f)
	if !ok || !(percent >= 0 && percent <= 100) || math.Abs(100*f-percent) > 1e-9 {
		return 0, fmt.Sprintf("federation.floor must be a whole percentage from 0%% to 100%%, like 0.05 or 5%%, not '%v'", v)
	}
	return uint8(percent), ""
}

// federationConflict returns why x cannot be divided between regions, or "".
func (x *Extension) federationConflict() string {
	switch {
	case x.Federation == nil:
	case !federation.Federates(x.Algorithm) && !x.Federation.Static:
		return fmt.Sprintf("%s has no boundary at which unspent leases end; use fixed_window or sliding_window, or "+
			"federation: {mechanism: static}", x.Algorithm)
	case x.Mechanism != policy.ByOwner:
		return fmt.Sprintf("federation needs mechanism: owner: the key's owner alone has what its region was lent, and "+
			"mechanism: %s would lend it again", x.Mechanism)
	case x.Fair != nil && !x.dividesRegions():
		return "federation contradicts fair: use federation: {fair_by: KEY, weights: {...}}, which divides the limit of all regions"
	case x.Fair != nil && slices.Contains(x.ShardBy, x.Fair.Entry):
		return fmt.Sprintf("federation.fair_by contradicts shard_by: all values of '%s' have one counter, and so one owner", x.Fair.Entry)
	case !federation.Federates(x.Algorithm):
		return fmt.Sprintf("federation: {mechanism: static} supports fixed_window and sliding_window, not %s", x.Algorithm)
	}
	return ""
}

// bind completes the federation of a rule by that of the members. It returns a fault if they are in none, or do not know
// the rule's coordinator. Without o, as when rules are only checked, it returns none.
func (f *Federation) bind(o *FederationOptions, x *Extension, limit uint32) (fault string) {
	if o == nil {
		return ""
	}
	switch {
	case o.Name == "":
		return "federation needs a member that knows its region: start it with --federation FILE and --region NAME"
	case f.Static && o.Holders > 0:
		return "federation: {mechanism: static} needs a layout with regions: with holders, no sidecar has a part of the limit of its own"
	case f.Static:
		return ""
	}
	f.Terms.Authority = federation.DefaultAuthority
	if f.Authority != "" {
		f.Terms.Authority = federation.AuthorityID(f.Authority)
	} else {
		f.Authority = o.Coordinator // by the newest layout
	}
	if !slices.Contains(o.Authorities, f.Authority) {
		return fmt.Sprintf("federation.authority '%s' is not known to this member: add --authority %s=URL", f.Authority, f.Authority)
	}
	if fault := f.bindShared(o, x); fault != "" {
		return fault
	}
	return f.bindStore(o, limit)
}

// String returns f as /rlconfig prints it: "home (floor 5%, outage fail_closed)".
func (f *Federation) String() string {
	if f.Static {
		return "static"
	}
	name := f.Authority
	if name == "" {
		name = "the layout's coordinator"
	}
	return fmt.Sprintf("%s (floor %d%%, outage %s%s)", name, f.Terms.Floor, f.Terms.Outage, f.storeText())
}
