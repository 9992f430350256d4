package rulecheck

import (
	"strings"
	"testing"

	"github.com/keyward/keyward/internal/config"
)

// TestQuotaBounds compares the bounds of Envoys that spend a limit with numbers computed by hand.
func TestQuotaBounds(t *testing.T) {
	bounds := func(keyward string, c Conditions) map[string][2]uint64 {
		t.Helper()
		files := []config.File{{Name: "r.yaml", Content: []byte("domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: minute, requests_per_unit: 1200}\n" +
			"  metadata: {keyward: {mechanism: quota, " + keyward + "}}\n")}}
		rules, err := config.Load(files, config.Options{})
		if err != nil {
			t.Fatal(err)
		}
		all := map[string][2]uint64{}
		for _, b := range BoundsOf(rules.Rules()[0], c).Bounds {
			event, _, _ := strings.Cut(b.Event, " (")
			all[event] = [2]uint64{b.Over, b.Under}
		}
		return all
	}
	c := Conditions{Members: 3, Rate: 100, Quota: QuotaConditions{Envoys: 4, Connections: 10}}
	for keyward, want := range map[string]map[string][2]uint64{
		"degraded: fail_closed": {
			"Envoys spend the limit, and nothing fails": {0, 60},
			"the load moves between Envoys":             {0, 168}, // 1200 x 8.4/60
			"one sidecar suddenly gets all requests":    {0, 808}, // 1200 - 1176/3
			"a new key":                                 {0, 120}, // 4 x 3 x 10
			"a sidecar is cut off from the owner":       {0, 1200},
			"an Envoy fails, or its stream breaks":      {0, 1200},
			"a sidecar fails":                           {0, 1200},
			"each window of Envoys without a sidecar":   {0, 1200},
			"an Envoy is stopped over the end of a window that the next one was not charged for": {40, 0},
		},
		"degraded: local_share, envoys: 5, first: allow": {
			"a new key": {80, 0}, // 4 x 2 x 10
			"each window of Envoys without a sidecar": {1920, 720}, // 4 x 480, 1200 - 480
		},
		"degraded: local_share":                  {"each window of Envoys without a sidecar": {0, 1200}},
		"degraded: fail_open, first: allow":      {"each window of Envoys without a sidecar": {6000, 0}}, // 100 x 60
		"window: 10s, degraded: fail_closed":     {"the load moves between Envoys": {0, 1008}},           // 1200 x 8.4/10
		"algorithm: sliding_window, envoys: 100": {"an Envoy is stopped over the end of a window": {40, 0}},
	} {
		got := bounds(keyward, c)
		for event, w := range want {
			if g, found := got[event]; !found || g != w {
				t.Errorf("%s: %s: %v, want %v", keyward, event, g, w)
			}
		}
	}
	few := bounds("envoys: 7", Conditions{Members: 1, Quota: QuotaConditions{Connections: 1}})
	if _, found := few["a sidecar is cut off from the owner"]; found || few["a new key"] != [2]uint64{0, 21} {
		t.Errorf("one member, the rule's envoys: %v", few)
	}
}
