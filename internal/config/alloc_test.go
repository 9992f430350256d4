package config

import "testing"

// Matching does not allocate for any kind of rule, and its statistics key and owner string fit into a reused buffer.
func TestNoKindOfRuleAllocates(t *testing.T) {
	rules := load(t, Options{}, `domain: d
descriptors:
- {key: flat, rate_limit: {unit: second, requests_per_unit: 1}}
- {key: value, value: v, rate_limit: {unit: second, requests_per_unit: 1}}
- {key: wild, value: "a*b*c", rate_limit: {unit: second, requests_per_unit: 1}}
- {key: shared, value: "a*", share_threshold: true, rate_limit: {unit: second, requests_per_unit: 1}}
- {key: unlimited, rate_limit: {unlimited: true}}
- {key: shadow, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 1}}
- {key: quota, quota_mode: true, rate_limit: {unit: second, requests_per_unit: 1}}
- {key: replacing, rate_limit: {unit: second, requests_per_unit: 1, name: new, replaces: [{name: old}]}}
- {key: replaced, rate_limit: {unit: second, requests_per_unit: 1, name: old}}
- {key: detailed, detailed_metric: true, rate_limit: {unit: second, requests_per_unit: 1}}
- {key: metric, value_to_metric: true, rate_limit: {unit: second, requests_per_unit: 1}}
- {key: bucket, rate_limit: {unit: second, requests_per_unit: 1}, metadata: {keyward: {algorithm: token_bucket, burst: 9, shard_by: [bucket]}}}
- key: one
  descriptors:
  - key: two
    value_to_metric: true
    descriptors:
    - {key: three, value: "x*", rate_limit: {unit: minute, requests_per_unit: 1}}
`)
	for _, text := range []string{
		"flat=1", "value=v", "wild=a1b2c", "shared=axe", "unlimited=1", "shadow=1", "quota=1", "replacing=1", "replaced=1",
		"detailed=1", "metric=1", "bucket=1", "one=1, two=2, three=xyz", "none=1", "one=1", "flat=1, none=1",
	} {
		for _, override := range []*Override{nil, {5, Minute}} {
			entries, m, buf := entriesOf(text), Match{}, make([]byte, 0, 256)
			if n := testing.AllocsPerRun(100, func() {
				rules.Match("d", entries, override, &m)
				_ = m.Extension()
				if m.Rule != nil || m.Kind == Overridden {
					buf = rules.AppendStatKey(buf[:0], "d", entries, &m)
					buf = rules.AppendOwnerString(buf[:0], "d", entries, &m)
					buf = m.AppendName(buf[:0], entries)
				}
			}); n != 0 {
				t.Errorf("%s, %v: %v allocations", text, override, n)
			}
			if found := m.Kind == Limited || m.Kind == Unlimited || m.Kind == Overridden; !found && text != "none=1" && text != "one=1" && text != "flat=1, none=1" {
				t.Errorf("%s, %v: no rule", text, override)
			}
		}
	}
}
