package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestLevelKeysAreThoseDecoded compares the table of levels with the types that a file is decoded into.
func TestLevelKeysAreThoseDecoded(t *testing.T) {
	for at, decoded := range map[level]any{inFile: yamlRoot{}, inDescriptor: yamlDescriptor{}, inLimit: yamlRateLimit{}, inReplaces: yamlReplaces{}} {
		var want, got []string
		for _, f := range reflect.VisibleFields(reflect.TypeOf(decoded)) {
			name := f.Tag.Get("yaml")
			if name == "" {
				name = strings.ToLower(f.Name)
			}
			want = append(want, name)
		}
		for _, k := range levelKeys() {
			if k.at == at {
				got = append(got, k.key)
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: the table has %q, the decoder reads %q", at.here(), got, want)
		}
	}
}

// keyWarnings returns the positions and texts of the warnings about keys of a file.
func keyWarnings(t *testing.T, yaml string) (got []string) {
	t.Helper()
	files := filesOf(yaml)
	for _, s := range Warnings(files, Check(files, Options{}).Rules) {
		if s.Kind == "misplaced-key" || s.Kind == "duplicate-key" {
			got = append(got, fmt.Sprintf("%d:%d %s", s.Line, s.Column, s.Text))
		}
	}
	return got
}

// TestMisplacedKeys checks that a key which the decoder ignores at its level is found, with the consequence.
func TestMisplacedKeys(t *testing.T) {
	const head = "domain: d\ndescriptors:\n- key: k\n"
	for _, row := range []struct{ name, yaml, want string }{
		{"shadow", head + "  rate_limit: {unit: day, shadow_mode: true}\n",
			"4:27 'shadow_mode' has no effect inside 'rate_limit', so the rule is enforced: write it next to 'rate_limit', in the descriptor"},
		{"quota", head + "  rate_limit:\n    unit: day\n    quota_mode: true\n",
			"6:5 'quota_mode' has no effect inside 'rate_limit', so the rule is enforced: write it next to 'rate_limit', in the descriptor"},
		{"shadow at both", head + "  shadow_mode: true\n  rate_limit: {unit: day, shadow_mode: true}\n",
			"5:27 'shadow_mode' has no effect inside 'rate_limit': write it next to 'rate_limit', in the descriptor"},
		{"descriptors", head + "  rate_limit: {unit: day, descriptors: [{key: l, unit: 5}]}\n",
			"4:27 'descriptors' has no effect inside 'rate_limit', so the descriptors in it are not loaded: write it next to 'rate_limit', in the descriptor"},
		{"unit", head + "  unit: day\n",
			"4:3 'unit' has no effect in a descriptor, so the descriptor has no limit: write it inside 'rate_limit'"},
		{"unit, a fault too", head + "  unit: day\n  rate_limit: {requests_per_unit: 5}\n",
			"4:3 'unit' has no effect in a descriptor: write it inside 'rate_limit'"},
		{"name", head + "  name: n\n",
			"4:3 'name' has no effect in a descriptor: write it inside 'rate_limit'"},
		{"replaces", head + "  rate_limit: {unit: day}\n  replaces: [{name: n}]\n",
			"5:3 'replaces' has no effect in a descriptor, so nothing is replaced: write it inside 'rate_limit'"},
		{"in replaces", head + "  rate_limit: {unit: day, replaces: [{name: n, unlimited: true}]}\n",
			"4:48 'unlimited' has no effect in an entry of 'replaces': write it inside 'rate_limit'"},
		{"rate_limit at the top", head + "rate_limit: {unit: day}\n",
			"4:1 'rate_limit' has no effect at the top of the file, so it applies to no rule: write it in a descriptor"},
		{"domain in a descriptor", head + "  domain: e\n",
			"4:3 'domain' has no effect in a descriptor: write it at the top of the file"},
		{"below", head + "  descriptors:\n  - key: l\n    rate_limit: {unit: day, detailed_metric: true}\n",
			"6:29 'detailed_metric' has no effect inside 'rate_limit': write it next to 'rate_limit', in the descriptor"},
		{"merged", "domain: d\nmetadata: {a: &a {unit: day, share_threshold: true}}\ndescriptors:\n- {key: k, rate_limit: {<<: *a}}\n- {key: l, rate_limit: *a}\n",
			"2:30 'share_threshold' has no effect inside 'rate_limit', so every value is counted separately: write it next to 'rate_limit', in the descriptor"},
		{"all in place", head + "  value: v*\n  shadow_mode: true\n  quota_mode: true\n  detailed_metric: true\n  value_to_metric: true\n  share_threshold: true\n  metadata: {unit: day, shadow_mode: x}\n" +
			"  rate_limit: {unit: day, requests_per_unit: 5, unlimited: false, name: n, replaces: [{name: m}]}\n  descriptors: [{key: l}]\n", ""},
		{"kept for aliases", "domain: d\nrate_limit: &r {unit: day}\ndescriptors: [{key: k, rate_limit: *r}]\n", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := strings.Join(keyWarnings(t, row.yaml), "\n"); got != row.want {
				t.Errorf("\n got %s\nwant %s", got, row.want)
			}
		})
	}
}

// TestMisplacedKeysLoad checks that files with misplaced or repeated keys load, as in envoyproxy/ratelimit.
func TestMisplacedKeysLoad(t *testing.T) {
	for _, k := range levelKeys() {
		value := "[]"
		if k.below == inLimit || k.key == "metadata" {
			value = "{}"
		}
		yaml := "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, replaces: [{name: n, " + k.key + ": " + value + "}]}\n"
		if k.at == inReplaces || k.key == "name" {
			continue
		}
		if got := keyWarnings(t, yaml); len(got) != 1 || Check(filesOf(yaml), Options{}).Rules == nil {
			t.Errorf("%s: %q", k.key, got)
		}
	}
}

// TestDuplicateKeys checks that the second of two equal keys in a mapping is found, with the effect on the first.
func TestDuplicateKeys(t *testing.T) {
	const head = "domain: d\ndescriptors:\n- key: k\n"
	for _, row := range []struct{ name, yaml, want string }{
		{"rate_limit", head + "  rate_limit: {unit: day, requests_per_unit: 5}\n  rate_limit: {unit: hour}\n",
			"5:3 'rate_limit' already occurs in line 4: the later one is merged into it and replaces the keys that both have"},
		{"rate_limit of nothing", head + "  rate_limit: {unit: day, requests_per_unit: 5}\n  rate_limit:\n",
			"5:3 'rate_limit' already occurs in line 4: the later one replaces it"},
		{"unit", head + "  rate_limit: {unit: day, unit: hour, unit: day}\n",
			"4:27 'unit' already occurs in line 4: the later one replaces it\n4:39 'unit' already occurs in line 4: the later one replaces it"},
		{"descriptors", head + "descriptors:\n- key: l\n", "4:1 'descriptors' already occurs in line 2: the later one replaces it"},
		{"metadata", head + "  metadata: {a: {b: 1, b: 2}}\n", "4:24 'b' already occurs in line 4: the later one replaces it"},
		{"of different mappings", head + "- key: l\n", ""},
		{"merges", "domain: d\nmetadata: {a: &a {unit: day}, b: &b {requests_per_unit: 5}}\ndescriptors:\n- {key: k, rate_limit: {<<: *a, <<: *b, unit: hour}}\n", ""},
		{"texts and numbers", head + "  metadata: {1: a, '1': b}\n", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := strings.Join(keyWarnings(t, row.yaml), "\n"); got != row.want {
				t.Errorf("\n got %s\nwant %s", got, row.want)
			}
		})
	}
}

// TestDuplicatesAreMerged compares the texts of TestDuplicateKeys with the decoder.
func TestDuplicatesAreMerged(t *testing.T) {
	const head = "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 5}\n"
	for second, want := range map[string]string{"{unit: hour}": "unit=HOUR requests_per_unit=5", "": ""} {
		if got := load(t, Options{}, head+"  rate_limit: "+second+"\n").String(); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("rate_limit: %s: %q, want %q", second, got, want)
		}
	}
}

// TestAliasesOfKeysEnd checks that a mapping is visited once, even if aliases refer to it many times or recursively.
func TestAliasesOfKeysEnd(t *testing.T) {
	yaml := "domain: d\ndescriptors: &a\n- {key: k, unit: day, descriptors: *a}\n"
	if got := keyWarnings(t, yaml); len(got) != 1 {
		t.Error(got)
	}
}
