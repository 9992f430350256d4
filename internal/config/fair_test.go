package config

import (
	"strings"
	"testing"
)

const fairYAML = `
domain: d
descriptors:
- key: tenant
  rate_limit: {unit: minute, requests_per_unit: 100}
  metadata: {keyward: {fair: {entry: tenant, weights: {gold: 4}, default: 2}}}
- key: partner
  descriptors:
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 100}
    metadata: {keyward: {fair: {entry: tenant}}}
  - key: tenant
    value: eu-*
    rate_limit: {unit: minute, requests_per_unit: 100}
    metadata: {keyward: {fair: {entry: tenant}}}
`

// matchOf returns the match of a descriptor, given as key=value pairs.
func matchOf(t *testing.T, r *Rules, override *Override, pairs ...string) (m Match) {
	t.Helper()
	var entries []Entry
	for _, p := range pairs {
		k, v, _ := strings.Cut(p, "=")
		entries = append(entries, Entry{k, v})
	}
	r.Match("d", entries, override, &m)
	if m.Kind != Limited && m.Kind != Overridden {
		t.Fatalf("%v: %+v", pairs, m)
	}
	return m
}

// TestFairCounter checks that all tenants of a parent have one counter and one owner, and have different digests.
func TestFairCounter(t *testing.T) {
	r := load(t, Options{}, fairYAML)
	gold, silver := matchOf(t, r, nil, "tenant=gold"), matchOf(t, r, nil, "tenant=silver")
	if gold.Digest != silver.Digest || gold.Owner != silver.Owner || gold.Tenant == silver.Tenant || gold.Tenant == 0 {
		t.Errorf("two tenants: %+v\n%+v", gold, silver)
	}
	if gold.Weight != 4 || silver.Weight != 2 {
		t.Errorf("weights %d and %d, want 4 and 2", gold.Weight, silver.Weight)
	}
	acme := matchOf(t, r, nil, "partner=acme", "tenant=gold")
	other := matchOf(t, r, nil, "partner=other", "tenant=gold")
	if acme.Digest == other.Digest || acme.Owner == other.Owner || acme.Tenant != gold.Tenant || acme.Weight != 1 {
		t.Errorf("two parents: %+v\n%+v", acme, other)
	}
	if eu := matchOf(t, r, nil, "partner=acme", "tenant=eu-1"); eu.Digest == acme.Digest || eu.Owner != acme.Owner ||
		eu.Digest != matchOf(t, r, nil, "partner=acme", "tenant=eu-2").Digest {
		t.Errorf("the tenants of a wildcard: %+v", eu)
	}
	own := matchOf(t, r, &Override{Limit: 5, Unit: Minute}, "tenant=gold")
	if own.Tenant != 0 || own.Digest == gold.Digest {
		t.Errorf("a limit of the descriptor's own: %+v", own)
	}
	entries := []Entry{{"partner", "acme"}, {"tenant", "gold"}}
	if name := string(acme.AppendName(nil, entries)); name != "partner=acme,tenant=*" {
		t.Errorf("the counter's name is %s", name)
	}
	if text := string(r.AppendOwnerString(nil, "d", entries, &acme)); text != "acme" {
		t.Errorf("the owner string is %s", text)
	}
	if names := r.TenantNames(&acme, entries); len(names) != 1 || names[acme.Tenant] != "gold" {
		t.Errorf("the tenants are %v", names)
	}
	if names := r.TenantNames(&silver, []Entry{{"tenant", "silver"}}); len(names) != 2 || names[silver.Tenant] != "silver" ||
		names[gold.Tenant] != "gold" {
		t.Errorf("the tenants are %v", names)
	}
	var m Match
	if found := r.EntriesOf("d", "partner=acme,tenant=*", acme.Digest, &m); found != nil {
		t.Errorf("a counter of many tenants has the descriptor %v", found)
	}
	if line := r.Dump()[0]; !strings.HasSuffix(line, ", fair: tenant (gold 4, others 2)") {
		t.Error(line)
	}
	if n := testing.AllocsPerRun(100, func() { r.Match("d", entries, nil, &m) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestBadFair checks what is reported of rules that cannot divide their limits.
func TestBadFair(t *testing.T) {
	for setting, want := range map[string]string{
		"fair: k":                       "fair must be a map with the keys entry, weights and default, not 'k'",
		"fair: {}":                      "fair.entry must be an entry key of the descriptor, not '<nil>'",
		"fair: {entry: user}":           "fair.entry must be an entry key of the descriptor, not 'user'",
		"fair: {entry: k,weight: 1}":    "fair must be a map with the keys entry, weights and default, not 'weight'",
		"fair: {entry: k,default: 0}":   "fair.default must be a whole number from 1 to 10000, not '0'",
		"fair: {entry: k,weights: [a]}": "fair.weights must be a map of tenants to weights, not '[a]'",
		"fair: {entry: k,weights: {gold: 0.5}}": "the weight of 'gold' in fair.weights must be a whole number from 1 to 10000, " +
			"not '0.5'",
		"fair: {entry: k}, shard_by: k": "fair contradicts shard_by: all values of 'k' have one counter, and so one owner",
		"fair: {entry: k}, mechanism: lease": "fair needs mechanism: owner: with lease, members admit hits without the owner, " +
			"which alone has the usage of all tenants",
		"fair: {entry: k}, mechanism: static": "fair needs mechanism: owner: with static, members admit hits without the owner, " +
			"which alone has the usage of all tenants",
		"fair: {entry: k}, mechanism: approximate, epsilon: 10%": "fair needs mechanism: owner: with approximate, members admit " +
			"hits without the owner, which alone has the usage of all tenants",
	} {
		want = "error in metadata.keyward of 'd.k': " + want
		report := Check(filesOf(settingYAML(50, setting)), Options{})
		if got := faultTexts(report); got != want {
			t.Errorf("%s\n got %s\nwant %s", setting, got, want)
		} else if f := report.Faults[0]; f.File != "f0.yaml" || f.Line != 7 && f.Line != 8 {
			t.Errorf("%s: reported at %s:%d", setting, f.File, f.Line)
		}
	}
	fixed := strings.ReplaceAll(settingYAML(50, "fair: {entry: k}"), "- key: k\n", "- key: k\n  value: one\n")
	want := "error in metadata.keyward of 'd.k_one': fair.entry names 'k', which has the same value in all requests of the " +
		"rule: 'one'"
	if got := faultTexts(Check(filesOf(fixed), Options{})); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// TestFairSettings checks the settings that fair does not use.
func TestFairSettings(t *testing.T) {
	yaml := settingYAML(50, "fair: {entry: k}, lease_min: 1, hot_factor: 9, sub_keys: 2, dedicated: true, degraded: fail_open")
	files := filesOf(yaml)
	var got []string
	for _, w := range Warnings(files, load(t, Options{}, yaml)) {
		got = append(got, w.Text)
	}
	if len(got) != 4 || !strings.Contains(strings.Join(got, "\n"), "'d.k' has hot_factor, which fair does not use") {
		t.Errorf("warnings: %q", got)
	}
}
