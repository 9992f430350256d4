package config

import (
	"fmt"
	"maps"
	"slices"

	"github.com/dchest/siphash"

	"github.com/keyward/keyward/internal/policy"
)

// Fair divides a rule's limit between the values of one entry of its descriptors, the tenants. All of them have one
// counter.
type Fair struct {
	Entry   string            // key of the entry
	Weights map[string]uint32 // of tenants
	Default uint32            // weight of other tenants, at least 1

	level int // of the entry in the rule's path
}

// maxWeight is the largest weight of a tenant.
const maxWeight = 10_000

// parseFair reads a map with an entry and weights.
func parseFair(v any, path []*node) (*Fair, string) {
	m, isMap := v.(map[string]any)
	if !isMap {
		return nil, fmt.Sprintf("fair must be a map with the keys entry, weights and default, not '%v'", v)
	}
	f, fault := &Fair{Default: 1}, ""
	for _, key := range slices.Sorted(maps.Keys(m)) {
		switch key {
		case "entry":
			f.Entry, _ = m[key].(string)
		case "weights":
			f.Weights, fault = parseWeights("fair.weights", m[key])
		case "default":
			f.Default, fault = parseWhole("fair.default", m[key], maxWeight)
		default:
			fault = fmt.Sprintf("fair must be a map with the keys entry, weights and default, not '%s'", key)
		}
		if fault != "" {
			return nil, fault
		}
	}
	if fault = f.place("fair.entry", m["entry"], path); fault != "" {
		return nil, fault
	}
	return f, ""
}

// place finds the level of f's entry, which is the value of the given setting.
func (f *Fair) place(setting string, value any, path []*node) (fault string) {
	if f.level = levelOf(path, f.Entry); f.level < 0 {
		return fmt.Sprintf("%s must be an entry key of the descriptor, not '%v'", setting, value)
	}
	if l := &path[f.level].level; !l.Variable {
		return fmt.Sprintf("%s names '%s', which has the same value in all requests of the rule: '%s'", setting, f.Entry, l.Value)
	}
	return ""
}

// parseWeights reads the weights of tenants, the value of the given setting.
func parseWeights(setting string, v any) (map[string]uint32, string) {
	m, isMap := v.(map[string]any)
	if !isMap {
		return nil, fmt.Sprintf("%s must be a map of tenants to weights, not '%v'", setting, v)
	}
	weights := make(map[string]uint32, len(m))
	for _, tenant := range slices.Sorted(maps.Keys(m)) {
		w, fault := parseWhole("the weight of '"+tenant+"' in "+setting, m[tenant], maxWeight)
		if fault != "" {
			return nil, fault
		}
		weights[tenant] = w
	}
	return weights, ""
}

// fairConflict returns why x cannot divide a limit between tenants, or "".
func (x *Extension) fairConflict() string {
	switch {
	case x.Fair == nil, x.dividesRegions(): // see federationConflict
	case x.Mechanism != policy.ByOwner:
		return fmt.Sprintf("fair needs mechanism: owner: with %s, members admit hits without the owner, which alone has the "+
			"usage of all tenants", x.Mechanism)
	case slices.Contains(x.ShardBy, x.Fair.Entry):
		return fmt.Sprintf("fair contradicts shard_by: all values of '%s' have one counter, and so one owner", x.Fair.Entry)
	}
	return ""
}

// dividesRegions reports whether the tenants of x are those of all regions.
func (x *Extension) dividesRegions() bool {
	return x.Federation != nil && x.Fair != nil && x.Fair == x.Federation.Fair
}

// String returns f as /rlconfig prints it: "tenant (gold 4, others 1)".
func (f *Fair) String() string {
	text := f.Entry + " ("
	for _, tenant := range slices.Sorted(maps.Keys(f.Weights)) {
		text += fmt.Sprintf("%s %d, ", tenant, f.Weights[tenant])
	}
	return text + fmt.Sprintf("others %d)", f.Default)
}

// weight returns the weight of a tenant.
func (f *Fair) weight(tenant string) uint32 {
	if w, ok := f.Weights[tenant]; ok {
		return w
	}
	return f.Default
}

// setTenant sets the tenant of m, whose rule is fair.
func (r *Rules) setTenant(f *Fair, entries []Entry, m *Match) {
	m.Tenant = r.tenantDigest(m.Rule, entries[f.level].Value)
	m.Weight = f.weight(entries[f.level].Value)
}

// tenantDigest returns the digest that identifies a tenant of a rule to the owner of a counter: in all regions the same, if
// they share the rule's limit. It is not 0.
func (r *Rules) tenantDigest(of *RuleSpec, tenant string) uint64 {
	var space [gluedSize]byte
	k0, k1 := r.k0, r.k1
	if of.Extension.Federation != nil {
		k0, k1 = r.f0, r.f1
	}
	return max(1, siphash.Hash(k0, k1, append(space[:0], tenant...)))
}

// TenantNames returns the names of the tenants that a fair rule and a descriptor name, by digest. m is the match of the
// descriptor. The result is nil if its limit is not divided.
func (r *Rules) TenantNames(m *Match, entries []Entry) map[uint64]string {
	if m.Tenant == 0 {
		return nil
	}
	f := m.Rule.Extension.Fair
	names := map[uint64]string{m.Tenant: entries[f.level].Value}
	for tenant := range f.Weights {
		names[r.tenantDigest(m.Rule, tenant)] = tenant
	}
	return names
}
