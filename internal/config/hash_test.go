package config

import (
	"strings"
	"testing"
)

func TestHash(t *testing.T) {
	const one = "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: day, requests_per_unit: 5}, metadata: {x: {y: 1, z: [true, ~]}}}\n- {key: b, value: 'x*'}\n- {key: b, value: '*'}\n"
	const two = "domain: e\ndescriptors:\n- {key: a, rate_limit: {unlimited: true}}\n"
	merge := Options{MergeDomains: true}
	want := load(t, merge, one, two).Hash()
	for name, r := range map[string]*Rules{
		"again":          load(t, merge, one, two),
		"file order":     load(t, merge, two, one),
		"no merge":       load(t, Options{}, one, two),
		"comment":        load(t, merge, "# x\n"+one, two),
		"spelling":       load(t, merge, strings.Replace(one, "{unit: day, requests_per_unit: 5}", "{requests_per_unit: 005, unit: DAY}", 1), two),
		"exact siblings": load(t, merge, "domain: d\ndescriptors:\n- {key: b, value: 'x*'}\n- {key: b, value: '*'}\n", strings.SplitAfter(one, "]}}}\n")[0], two),
		"cluster":        load(t, Options{Cluster: "c"}, one, two),
	} {
		if r.Hash() != want {
			t.Errorf("%s changes the hash", name)
		}
	}
	for name, r := range map[string]*Rules{
		"fewer files":    load(t, merge, one),
		"wildcard order": load(t, merge, strings.NewReplacer("'x*'", "'*'", "'*'", "'x*'").Replace(one), two),
		"amount":         load(t, merge, strings.Replace(one, "unit: 5", "unit: 6", 1), two),
		"unit":           load(t, merge, strings.Replace(one, "day", "week", 1), two),
		"metadata":       load(t, merge, strings.Replace(one, "true", "false", 1), two),
		"flag":           load(t, merge, strings.Replace(one, "{key: a", "{shadow_mode: true, key: a", 1), two),
		"name":           load(t, merge, strings.Replace(one, "{unit", "{name: n, unit", 1), two),
		"replaces":       load(t, merge, strings.Replace(one, "{unit", "{replaces: [{name: n}], unit", 1), two),
		"split":          load(t, merge, strings.Replace(one, "value: '*'", "value: '*', descriptors: [{key: z}]", 1), two),
		"glued":          load(t, merge, strings.Replace(one, "key: b, value: 'x*'", "key: 'b_x*'", 1), two),
		"prefix":         load(t, Options{MergeDomains: true, KeyPrefix: "p"}, one, two),
		"extension":      load(t, merge, strings.Replace(one, "{x:", "{keyward: {degraded: fail_open}, x:", 1), two),
	} {
		if r.Hash() == want {
			t.Errorf("%s does not change the hash", name)
		}
	}
	if want != 0xc9145f75d9e00fe5 {
		t.Errorf("hash %#x: members of two versions would disagree", want)
	}
}
