package config

import (
	"fmt"
	"strings"
	"testing"
)

// TestPlainFaults checks the position and the hint of values and lines that cannot be parsed.
func TestPlainFaults(t *testing.T) {
	const head = "domain: d\ndescriptors:\n- key: k\n"
	for _, row := range []struct{ name, yaml, want string }{
		{"negative", limitYAML("{unit: day, requests_per_unit: -5}"), "4:46 -5 is not between 0 and 4294967295"},
		{"on a line of its own", head + "  rate_limit:\n    unit: day\n    requests_per_unit: -5\n", "6:24 -5 is not between 0 and 4294967295"},
		{"too large", limitYAML("{unit: day, requests_per_unit: 4294967296}"), "4:46 4294967296 is not between 0 and 4294967295"},
		{"far too large", limitYAML("{unit: day, requests_per_unit: 9223372036854775808}"), "4:46 9223372036854775808 is not between 0 and 4294967295"},
		{"in quotes", limitYAML("{name: '5', requests_per_unit: '5', unit: day}"), "4:46 '5' in quotes is a string: write 5 without quotes"},
		{"a word", limitYAML("{unit: day, requests_per_unit: a hundred thousand}"), "4:46 want a whole number from 0 to 4294967295, not 'a hundred thousand'"},
		{"a fraction", limitYAML("{unit: day, requests_per_unit: 2.5}"), "4:46 want a whole number from 0 to 4294967295, not '2.5'"},
		{"a list of numbers", limitYAML("{unit: day, requests_per_unit: []}"), "4:46 want a whole number from 0 to 4294967295, not a list"},
		{"a number for a text", head + "  value: 1.5\n", "4:10 1.5 is a number here: put it in quotes"},
		{"a fraction for a truth", head + "  shadow_mode: 1.5\n", "4:16 want a string, a whole number, true or false"},
		{"a word for a truth", head + "  shadow_mode: perhaps\n", "4:16 want true or false, not 'perhaps'"},
		{"a mapping for a text", "domain: d\ndescriptors:\n- key: {key: v}\n", "3:8 want a string, not a mapping"},
		{"a mapping for a list", "domain: d\ndescriptors:\n  key: k\n", "3:3 want a list, with elements that begin with a dash, not a mapping"},
		{"a number for a list", "domain: d\ndescriptors: 3\n", "2:14 want a list, with elements that begin with a dash, not '3'"},
		{"a number for a mapping", head + "  rate_limit: 5\n", "4:15 want a mapping, with keys like 'unit: minute' below it, not '5'"},
		{"a list for a file", "- a\n", "1:1 want a mapping, with keys like 'unit: minute' below it, not a list"},
		{"a text in a list", "domain: d\ndescriptors: [a]\n", "2:15 want a mapping, as in: - key: api_key"},
		{"several", head + "  rate_limit: {unit: day, requests_per_unit: -5}\n  shadow_mode: x\n- key: l\n  rate_limit: {unit: day, requests_per_unit: -5}\n",
			"4:46 -5 is not between 0 and 4294967295\n5:16 want true or false, not 'x'\n7:46 -5 is not between 0 and 4294967295"},
		{"tab", "domain: d\ndescriptors:\n\t- key: k\n", "3:1 a tab cannot indent YAML: use spaces"},
		{"tab after spaces", head + "  \trate_limit: {unit: day}\n", "4:3 a tab cannot indent YAML: use spaces"},
		{"tab after a dash", "domain: d\ndescriptors:\n-\tkey: k\n", "3:2 a tab cannot indent YAML: use spaces"},
		{"star", head + "  value: *.example.com\n", "4:10 a value that begins with * or & is an alias or an anchor: put a wildcard in quotes"},
		{"name after a star", head + "  value: *foo\n", "4:10 a value that begins with * names an anchor: put a wildcard in quotes"},
		{"at", "domain: d\ndescriptors:\n- key: '日本'\n  value: @k\n", "4:10 a value that begins with this character needs quotes"},
		{"colon", head + "  value: a: b\n", "4:0 the line is indented too far or not far enough, or a value with a colon needs quotes"},
		{"dedent", "domain: d\ndescriptors:\n  - key: k\n   value: v\n", "3:0 a following line is indented less than this list and more than its parent"},
		{"brace", head + "  rate_limit: {unit: day\n- key: l\n", "4:0 the { of this line, or of one before it, is not closed"},
		{"quote", "domain: d\ndescriptors:\n- key: \"k\n", "4:0 a quote is not closed"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var got []string
			for _, f := range Check(filesOf(row.yaml), Options{}).Faults {
				got = append(got, fmt.Sprintf("%d:%d %s", f.Line, f.Column, f.Hint))
			}
			if got := strings.Join(got, "\n"); got != row.want {
				t.Errorf("\n got %s\nwant %s", got, row.want)
			}
		})
	}
}

// TestFirstFaultIsTheOriginals checks that Load reports several wrong values as envoyproxy/ratelimit does.
func TestFirstFaultIsTheOriginals(t *testing.T) {
	_, err := Load(filesOf("domain: d\ndescriptors:\n- key: k\n  shadow_mode: x\n  rate_limit: 5\n"), Options{})
	want := "f0.yaml: error loading config file: yaml: unmarshal errors:\n  line 4: cannot unmarshal !!str `x` into bool\n  line 5: cannot unmarshal !!int `5` into config.YamlRateLimit"
	if err == nil || err.Error() != want {
		t.Errorf("\n got %v\nwant %s", err, want)
	}
}
