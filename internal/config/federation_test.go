package config

import (
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/federation"
)

// federated returns rules with one rule, whose metadata.keyward has the given text.
func federated(t *testing.T, text string, o *FederationOptions) (*Rules, error) {
	t.Helper()
	return Load([]File{{Name: "f.yaml", Content: []byte(`domain: d
descriptors:
  - key: k
    rate_limit: {unit: minute, requests_per_unit: 100}
    metadata: {keyward: {` + text + `}}
`)}}, Options{Cluster: "eu", Federation: o})
}

func TestFederation(t *testing.T) {
	known := &FederationOptions{Name: "shop", Coordinator: "home", Authorities: []string{"home", "other"}}
	for text, want := range map[string]federation.RuleTerms{
		"federation: {}": {Authority: federation.DefaultAuthority, Floor: 5},
		"federation: {authority: other, floor: 0.5}":  {Authority: federation.AuthorityID("other"), Floor: 50},
		"federation: {outage: snapshot, batch: 2s}":   {Authority: federation.DefaultAuthority, Floor: 5, Outage: federation.Snapshot, Batch: 2 * time.Second},
		"federation: {mechanism: static, floor: 10%}": {Floor: 100},
	} {
		r, err := federated(t, text, known)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if got := *r.Rules()[0].Extension.Federation.Terms; got != want {
			t.Errorf("%s: %+v, not %+v", text, got, want)
		}
	}
}

// The counter of a federated rule has the same digest in all regions, and another one than without the federation.
func TestFederatedDigest(t *testing.T) {
	digest := func(cluster, text, name string) [2]uint64 {
		r, err := Load([]File{{Name: "f.yaml", Content: []byte("domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: minute, requests_per_unit: 100}\n" +
			"    metadata: {keyward: {" + text + "}}\n")}},
			Options{Cluster: cluster, Federation: &FederationOptions{Name: name, Coordinator: "home", Authorities: []string{"home"}}})
		if err != nil {
			t.Fatal(err)
		}
		var m Match
		r.Match("d", []Entry{{Key: "k", Value: "v"}}, nil, &m)
		return m.Digest
	}
	eu := digest("eu", "federation: {}", "shop")
	for what, other := range map[string][2]uint64{
		"without a federation": digest("eu", "degraded: fail_open", "shop"),
		"another federation":   digest("eu", "federation: {}", "bank"),
	} {
		if other == eu {
			t.Errorf("%s has the same digest", what)
		}
	}
	if us := digest("us", "federation: {}", "shop"); us != eu {
		t.Errorf("the regions have digests %x and %x", eu, us)
	}
}

func TestFederationFaults(t *testing.T) {
	known := &FederationOptions{Name: "shop", Coordinator: "home", Authorities: []string{"home"}}
	for text, want := range map[string]string{
		"algorithm: token_bucket, federation: {}":         "token_bucket has no boundary at which unspent leases end; use fixed_window or sliding_window, or federation: {mechanism: static}",
		"algorithm: leaky_bucket, federation: {}":         "leaky_bucket has no boundary",
		"algorithm: sliding_log, federation: {}":          "sliding_log has no boundary",
		"mechanism: lease, federation: {}":                "federation needs mechanism: owner",
		"fair: {entry: k}, federation: {}":                "federation contradicts fair",
		"federation: yes":                                 "federation must be a map with the keys authority, batch, epsilon, fair_by, floor, lease_max, lease_min",
		"federation: {authority: 'redis://u:secret@h:1'}": "belong in --authority",
		"federation: {authority: nowhere}":                "add --authority nowhere=URL",
		"federation: {floor: 120%}":                       "federation.floor must be",
		"federation: {outage: open}":                      "federation.outage must be one of",
		"federation: {mechanism: escrow}":                 "federation.mechanism must be one of",
		"federation: {batch: 1ms}":                        "federation.batch must be a duration",
		"federation: {weigth: 1}":                         "not 'weigth'",
		"federation: {fair_by: nothing}":                  "federation.fair_by must be an entry key of the descriptor, not 'nothing'",
		"federation: {fair_by: 3}":                        "federation.fair_by must be an entry key of the descriptor, not '3'",
		"federation: {weight: 2}":                         "federation.weight needs federation.fair_by",
		"federation: {weights: {a: 2}}":                   "federation.weights needs federation.fair_by",
		"federation: {fair_by: k, weight: 0}":             "federation.weight must be",
		"federation: {fair_by: k, weights: {a: 10001}}":   "the weight of 'a' in federation.weights must be",
		"federation: {fair_by: k, weights: [a]}":          "federation.weights must be a map of tenants to weights, not '[a]'",
		"federation: {fair_by: k}, shard_by: k":           "federation.fair_by contradicts shard_by",
		"fair: {entry: k}, federation: {fair_by: k}":      "federation contradicts fair",
	} {
		_, err := federated(t, text, known)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "f.yaml") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, not %q", text, err, want)
		}
	}
	if _, err := federated(t, "federation: {}", &FederationOptions{}); err == nil || !strings.Contains(err.Error(), "--federation FILE and --region NAME") {
		t.Errorf("a member without a region: %v", err)
	}
	if _, err := federated(t, "federation: {}", nil); err != nil {
		t.Errorf("only the text is checked: %v", err)
	}
}

// local_cap limits what each member admits by outage: fail_open. Without it, a warning says so.
func TestFederationLocalCap(t *testing.T) {
	for text, want := range map[string]bool{
		"federation: {outage: fail_open}":                   false,
		"federation: {}":                                    true,
		"federation: {outage: fail_open,mechanism: static}": true,
	} {
		yaml, warned := settingYAML(50, "local_cap: 7, "+text), false
		for _, w := range Warnings(filesOf(yaml), load(t, Options{}, yaml)) {
			warned = warned || strings.Contains(w.Text, "local_cap")
		}
		if warned != want {
			t.Errorf("%s: a warning: %v", text, warned)
		}
	}
}

// Tenants of a rule have one counter and one digest in all regions, and the weights that the rule names.
func TestFederatedTenants(t *testing.T) {
	match := func(cluster, tenant string) (m Match) {
		r, err := Load([]File{{Name: "f.yaml", Content: []byte(`domain: d
descriptors:
  - key: backend
    descriptors:
      - key: tenant
        rate_limit: {unit: minute, requests_per_unit: 100}
        metadata: {keyward: {federation: {fair_by: tenant, weight: 2, weights: {gold: 4}}}}
`)}}, Options{Cluster: cluster, Federation: &FederationOptions{Name: "shop", Coordinator: "home", Authorities: []string{"home"}}})
		if err != nil {
			t.Fatal(err)
		}
		if line := r.Dump()[0]; !strings.Contains(line, "fair: tenant (gold 4, others 2)") {
			t.Errorf("the rule is printed as %s", line)
		}
		entries := []Entry{{"backend", "db"}, {"tenant", tenant}}
		r.Match("d", entries, nil, &m)
		if names := r.TenantNames(&m, entries); names[m.Tenant] != tenant {
			t.Errorf("the tenants are %v", names)
		}
		return m
	}
	gold, silver, there := match("eu", "gold"), match("eu", "silver"), match("us", "gold")
	if gold.Tenant == 0 || gold.Tenant == silver.Tenant || gold.Weight != 4 || silver.Weight != 2 || gold.Digest != silver.Digest {
		t.Errorf("two tenants: %+v\n%+v", gold, silver)
	}
	if there.Tenant != gold.Tenant || there.Digest != gold.Digest || there.Weight != 4 {
		t.Errorf("another region: %+v\n%+v", there, gold)
	}
}
