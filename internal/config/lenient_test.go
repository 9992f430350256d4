package config

import "testing"

// Envoy must not refuse on its own what a rule admits.
func TestRulesThatAreNotEnforcedAreNotCapped(t *testing.T) {
	for _, c := range []struct {
		name, line string
		options    Options
		want       bool
	}{
		{"plain", "", Options{}, false},
		{"shadow", "shadow_mode: true", Options{}, true},
		{"quota", "quota_mode: true", Options{}, true},
		{"all in shadow", "", Options{Lenient: true}, true},
	} {
		text := "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: second, requests_per_unit: 5}\n"
		if c.line != "" {
			text += "  " + c.line + "\n"
		}
		rules, err := Load([]File{{Name: "a.yaml", Content: []byte(text)}}, c.options)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		k := rules.rules[0].Extension.Lease
		if got := k != nil && k.Uncapped; got != c.want {
			t.Errorf("%s: uncapped %v, want %v", c.name, got, c.want)
		}
	}
}
