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
		"federation: {}": {Authority: federation.AuthorityID("home"), Floor: 5},
		"federation: {authority: other, floor: 0.5}":  {Authority: federation.AuthorityID("other"), Floor: 50},
		"federation: {outage: snapshot, batch: 2s}":   {Authority: federation.AuthorityID("home"), Floor: 5, Outage: federation.Snapshot, Batch: 2 * time.Second},
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
		"federation: yes":                                 "federation must be a map with the keys authority, batch, epsilon, floor, lease_max, lease_min",
		"federation: {authority: 'redis://u:secret@h:1'}": "belong in --authority",
		"federation: {authority: nowhere}":                "add --authority nowhere=URL",
		"federation: {floor: 120%}":                       "federation.floor must be",
		"federation: {outage: open}":                      "federation.outage must be one of",
		"federation: {mechanism: escrow}":                 "federation.mechanism must be one of",
		"federation: {batch: 1ms}":                        "federation.batch must be a duration",
		"federation: {weigth: 1}":                         "not 'weigth'",
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
