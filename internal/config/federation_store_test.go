package config

import (
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/federation"
)

// sidecars are the options of sidecars that are holders of their own, with a Redis, one that shares its counts with
// envoyproxy/ratelimit, and a coordinator.
func sidecars() *FederationOptions {
	return &FederationOptions{
		Name: "shop", Coordinator: "redis", Authorities: []string{"redis", "shared", "remote"}, Reclaims: []string{"redis", "shared"},
		Counts: []string{"redis"}, Holders: 20,
	}
}

func TestStoreTerms(t *testing.T) {
	for text, want := range map[string]federation.StoreTerms{
		"{}": {},
		"{mechanism: lease, lease_min: 5, lease_max: 50}": {LotMin: 5, LotMax: 50},
		"{reclaim: ttl}":                         {Reclaim: 10 * time.Second},
		"{reclaim: ttl, ttl: 30s}":               {Reclaim: 30 * time.Second},
		"{authority: shared, reclaim: crash}":    {Reclaim: 3 * time.Second},
		"{reclaim: none}":                        {},
		"{mechanism: approximate, epsilon: 29%}": {Approximate: true, Slack: 29},
		"{mechanism: approximate, epsilon: 0.2, low_watermark: 10%, sync_interval: 100ms, outage: fail_open}": {Approximate: true, Slack: 20, Watermark: 10, Sync: 100 * time.Millisecond},
	} {
		r, err := federated(t, "federation: "+text, sidecars())
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		f := r.Rules()[0].Extension.Federation
		if f.Terms.Store != want || f.Terms.Floor != 0 {
			t.Errorf("%s: %+v, not %+v", text, *f.Terms, want)
		}
		if dump := r.Dump()[0]; want.Approximate && !strings.Contains(dump, "approximate, epsilon") || want.LotMin > 0 && !strings.Contains(dump, "lease_min 5, lease_max 50") {
			t.Errorf("%s: %s", text, dump)
		}
	}
	regions := sidecars()
	regions.Holders, regions.Regions = 0, 3
	r, err := federated(t, "federation: {mechanism: approximate, epsilon: 3%}", regions)
	if err != nil || r.Rules()[0].Extension.Federation.Terms.Floor != 0 {
		t.Errorf("approximate has no floor: %v", err)
	}
}

func TestStoreFaults(t *testing.T) {
	for text, want := range map[string]string{
		"{mechanism: approximate}":                                  "needs an epsilon",
		"{mechanism: approximate, epsilon: 10%}":                    "is 10, less than one for each of 20 holders",
		"{mechanism: approximate, epsilon: 50%, floor: 5%}":         "federation.floor contradicts mechanism: approximate",
		"{mechanism: approximate, epsilon: 50%, fair_by: k}":        "federation.fair_by contradicts mechanism: approximate",
		"{mechanism: approximate, epsilon: 50%, batch: 1s}":         "federation.batch contradicts mechanism: approximate",
		"{mechanism: approximate, epsilon: 50%, reclaim: ttl}":      "federation.reclaim needs mechanism: lease, not approximate",
		"{mechanism: approximate, epsilon: 500%}":                   "federation.epsilon must be above 0",
		"{mechanism: approximate, epsilon: 50%, authority: shared}": "without layout=envoyproxy, which 'shared' is not",
		"{mechanism: approximate, epsilon: 50%, authority: remote}": "needs an authority at redis://",
		"{epsilon: 1%}":                     "federation.epsilon needs mechanism: approximate, not lease",
		"{mechanism: static, lease_min: 3}": "federation.lease_min needs mechanism: lease, not static",
		"{mechanism: static}":               "needs a layout with regions",
		"{floor: 5%}":                       "federation.floor needs a layout with regions",
		"{lease_min: 50, lease_max: 5}":     "lease_min 50 is above lease_max 5",
		"{lease_max: 0}":                    "federation.lease_max must be a whole number",
		"{ttl: 20s}":                        "federation.ttl needs reclaim: ttl",
		"{reclaim: ttl, ttl: 10ms}":         "federation.ttl must be a duration from 1s",
		"{reclaim: always}":                 "federation.reclaim must be one of",
		"{reclaim: ttl, authority: remote}": "federation.reclaim needs an authority at redis://",
		"{sync_interval: 1ms, mechanism: approximate, epsilon: 50%}": "federation.sync_interval must be a duration",
		"{low_watermark: 0%, mechanism: approximate, epsilon: 50%}":  "federation.low_watermark must be",
	} {
		if _, err := federated(t, "federation: "+text, sidecars()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, not %q", text, err, want)
		}
	}
	for _, algorithm := range []string{"token_bucket", "leaky_bucket", "sliding_log"} {
		_, err := federated(t, "algorithm: "+algorithm+", federation: {mechanism: approximate, epsilon: 50%}", sidecars())
		if err == nil || !strings.Contains(err.Error(), "use fixed_window or sliding_window") {
			t.Errorf("%s: %v", algorithm, err)
		}
	}
}

// A counter that is shared with envoyproxy/ratelimit has the name that its cache_key.go writes, apart from the start of the
// window.
func TestSharedName(t *testing.T) {
	r, err := Load([]File{{Name: "f.yaml", Content: []byte(`domain: edge
descriptors:
  - key: path
    value: /api/*
    share_threshold: true
    descriptors:
      - key: user
        rate_limit: {unit: hour, requests_per_unit: 100}
        metadata: {keyward: {federation: {authority: shared}}}
`)}}, Options{KeyPrefix: "pre:", Federation: sidecars()})
	if err != nil {
		t.Fatal(err)
	}
	entries, m := []Entry{{Key: "path", Value: "/api/a_b"}, {Key: "user", Value: "bob"}}, Match{}
	r.Match("edge", entries, nil, &m)
	if name := string(r.AppendSharedName(nil, "edge", entries, &m)); name != "pre:edge_path_/api/*_user_bob_" {
		t.Error(name)
	}
}

func TestSharedFaults(t *testing.T) {
	shared := sidecars()
	shared.Shared, shared.Holders, shared.Regions = []string{"shared"}, 0, 2
	for text, want := range map[string]string{
		"window: 10m, federation: {authority: shared}":               "which has no window: use a unit",
		"algorithm: sliding_window, federation: {authority: shared}": "which has no sliding_window",
		"federation: {authority: shared, floor: 10%}":                "which has no floor",
	} {
		if _, err := federated(t, text, shared); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, not %q", text, err, want)
		}
	}
	r, err := federated(t, "federation: {authority: shared, floor: 0%}", shared)
	if err != nil {
		t.Fatal(err)
	}
	if terms := r.Rules()[0].Extension.Federation.Terms; terms.Floor != 0 || !terms.Named {
		t.Errorf("%+v", terms)
	}
}
