package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func load(t testing.TB, o Options, texts ...string) *Rules {
	t.Helper()
	r, err := Load(filesOf(texts...), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func filesOf(texts ...string) []File {
	var files []File
	for i, text := range texts {
		files = append(files, File{fmt.Sprintf("f%d.yaml", i), []byte(text)})
	}
	return files
}

// limitYAML returns a file with one descriptor that has the given rate_limit.
func limitYAML(limit string) string {
	return "domain: d\ndescriptors:\n- key: k\n  rate_limit: " + limit + "\n"
}

// badFiles are files that no version loads, with the text in operators' logs.
var badFiles = []struct{ name, yaml, want string }{
	{"no domain", "descriptors:\n", "config file cannot have empty domain"},
	{"empty file", "", "config file cannot have empty domain"},
	{"empty key", "domain: d\ndescriptors:\n- value: v\n", "descriptor has empty key"},
	{"duplicate key", "domain: d\ndescriptors:\n- {key: k, value: v}\n- {key: k, value: v}\n", "duplicate descriptor composite key 'd.k_v'"},
	{"glued duplicate", "domain: d\ndescriptors:\n- {key: a_b}\n- {key: a, value: b}\n", "duplicate descriptor composite key 'd.a_b'"},
	{"nested duplicate", "domain: d\ndescriptors:\n- key: a\n  value: b\n  descriptors: [{key: c}, {key: c}]\n", "duplicate descriptor composite key 'd.a_b.c'"},
	{"unit", limitYAML("{unit: foo, requests_per_unit: 5}"), "invalid rate limit unit 'foo'"},
	{"no unit", limitYAML("{requests_per_unit: 5}"), "invalid rate limit unit ''"},
	{"unknown unit", limitYAML("{unit: unknown, requests_per_unit: 5}"), "invalid rate limit unit 'unknown'"},
	{"unlimited with unit", limitYAML("{unlimited: true, unit: day}"), "should not specify rate limit unit when unlimited"},
	{"replaces itself", limitYAML("{unit: day, name: n, replaces: [{name: n}]}"), "replaces should not contain name of same descriptor"},
	{"replaces nothing", limitYAML("{unit: day, name: n, replaces: [{name: }]}"), "should not have an empty replaces entry"},
	{"share_threshold", "domain: d\ndescriptors:\n- {key: k, value: v, share_threshold: true}\n", "share_threshold can only be used with wildcard values (containing '*'), but found key 'k_v'"},
	{"not YAML", "'''\n", "error loading config file: yaml: line 2: found unexpected end of stream"},
	{"list", "- a\n", "error loading config file: yaml: unmarshal errors:\n  line 1: cannot unmarshal !!seq into map[interface {}]interface {}"},
	{"map for key", "domain: d\ndescriptors:\n- key: {key: v}\n", "error loading config file: yaml: unmarshal errors:\n  line 3: cannot unmarshal !!map into string"},
	{"text for descriptors", "domain: d\ndescriptors: text\n", "error loading config file: yaml: unmarshal errors:\n  line 2: cannot unmarshal !!str `text` into []config.YamlDescriptor"},
	{"text for limit", limitYAML("text"), "error loading config file: yaml: unmarshal errors:\n  line 4: cannot unmarshal !!str `text` into config.YamlRateLimit"},
	{"negative", limitYAML("{unit: day, requests_per_unit: -1}"), "error loading config file: yaml: unmarshal errors:\n  line 4: cannot unmarshal !!int `-1` into uint32"},
	{"too large", limitYAML("{unit: day, requests_per_unit: 4294967296}"), "error loading config file: yaml: unmarshal errors:\n  line 4: cannot unmarshal !!int `4294967296` into uint32"},
	{"quoted number", limitYAML("{unit: day, requests_per_unit: '5'}"), "error loading config file: yaml: unmarshal errors:\n  line 4: cannot unmarshal !!str `5` into uint32"},
	{"unknown key", "domain: d\ndescriptors:\n- {key: k, ratelimit: {unit: day}}\n", "config error, unknown key 'ratelimit'"},
	{"nested unknown key", limitYAML("{unit: day, requestsperunit: 5}"), "config error, unknown key 'requestsperunit'"},
	{"first of two unknown keys", "domain: d\nzebra: 1\napple: 1\n", "config error, unknown key 'zebra'"},
	{"number as key", "0.25: d\ndescriptors:\n- {key: k}\n", "config error, key is not of type string: 0.25"},
	{"null as key", "~: d\n", "config error, key is not of type string: <nil>"},
	{"list of texts", "domain: d\ndescriptors: [a, b]\n", "config error, yaml file contains list of type other than map: a"},
	{"list of lists", "domain: d\ndescriptors: [[a]]\n", "config error, yaml file contains list of type other than map: [a]"},
	{"float value", "domain: d\ndescriptors:\n- {key: k, value: 1.5}\n", "error checking config"},
	{"float count", limitYAML("{unit: day, requests_per_unit: 2.0}"), "error checking config"},
	{"exponent", limitYAML("{unit: day, requests_per_unit: 1e2}"), "error checking config"},
	{"beyond int64", limitYAML("{unit: day, requests_per_unit: 9223372036854775808}"), "error checking config"},
	{"bad alias", "domain: *d\n", "error loading config file: yaml: unknown anchor 'd' referenced"},
	{"own alias", "domain: d\ndescriptors: &a\n- {key: k, descriptors: *a}\n", "error loading config file: yaml: anchor 'a' value contains itself"},
	{"merged unknown key", "domain: d\ndescriptors:\n- {key: k, metadata: &m {foo: 1}}\n- {<<: *m, key: l}\n", "config error, unknown key 'foo'"},
}

func TestBadFiles(t *testing.T) {
	for _, row := range badFiles {
		t.Run(row.name, func(t *testing.T) {
			rules, err := Load([]File{{"rules.yaml", []byte(row.yaml)}}, Options{})
			if want := "rules.yaml: " + row.want; rules != nil || err == nil || err.Error() != want {
				t.Errorf("got %v\nwant %v", err, want)
			}
		})
	}
}

func TestBadMetadata(t *testing.T) {
	_, err := Load(filesOf("domain: d\ndescriptors:\n- {key: k, metadata: {a: !!binary //8=}}\n"), Options{})
	if err == nil || !strings.HasPrefix(err.Error(), "f0.yaml: error parsing metadata: proto:") {
		t.Error(err)
	}
}

// TestFaultOrder checks which of several faults is reported first: YAML before rules.
func TestFaultOrder(t *testing.T) {
	rule, yaml := "domain: d\ndescriptors:\n- {value: v}\n", "domain: [\n"
	_, err := Load(filesOf(rule, yaml), Options{})
	if err == nil || !strings.HasPrefix(err.Error(), "f1.yaml: error loading config file: yaml: ") {
		t.Error(err)
	}
	ours := "domain: d\ndescriptors:\n- {key: k, metadata: {keyward: 5}}\n"
	_, err = Load(filesOf(ours, "domain: e\ndescriptors:\n- {value: v}\n"), Options{})
	if err == nil || err.Error() != "f1.yaml: descriptor has empty key" {
		t.Error(err)
	}
}

func TestCheckReportsAll(t *testing.T) {
	report := Check(filesOf(`domain: d
descriptors:
  - key: a
    value: 1.5
    nope: 1
  - value: x
    rate_limit: {requests_per_unit: -1}
`, `domain: e
descriptors:
  - value: x
  - key: k
    rate_limit:
      unit: fortnight
      replaces:
        - name: ''
  - key: k
    value: v
    share_threshold: true
  - key: k
    metadata:
      keyward: {algorithm: sliding_log, burst: 5, window: soon, color: red}
`, `domain: e`), Options{})
	want := []Diagnostic{
		{File: "f0.yaml", Line: 4, Column: 12, Text: "error checking config", Hint: "1.5 is a number here: put it in quotes", Kind: BadYAML},
		{File: "f0.yaml", Line: 5, Column: 5, Text: "config error, unknown key 'nope'", Hint: "", Kind: BadYAML},
		{File: "f0.yaml", Line: 7, Column: 37, Text: "error loading config file: yaml: unmarshal errors:\n  line 7: cannot unmarshal !!int `-1` into uint32", Hint: "-1 is not between 0 and 4294967295", Kind: BadYAML},
		{File: "f1.yaml", Line: 3, Column: 5, Text: "descriptor has empty key", Hint: "", Kind: BadRules},
		{File: "f1.yaml", Line: 6, Column: 13, Text: "invalid rate limit unit 'fortnight'", Hint: "want one of second, minute, hour, day, month, year, week", Kind: BadRules},
		{File: "f1.yaml", Line: 8, Column: 11, Text: "should not have an empty replaces entry", Hint: "", Kind: BadRules},
		{File: "f1.yaml", Line: 9, Column: 5, Text: "share_threshold can only be used with wildcard values (containing '*'), but found key 'k_v'", Hint: "", Kind: BadRules},
		{File: "f1.yaml", Line: 12, Column: 5, Text: "duplicate descriptor composite key 'e.k'", Hint: "", Kind: BadRules},
		{File: "f2.yaml", Line: 1, Column: 9, Text: "duplicate domain 'e' in config file", Hint: "", Kind: BadRules},
		{File: "f1.yaml", Line: 14, Column: 65, Text: "error in metadata.keyward of 'e.k': unknown key 'color'", Hint: "", Kind: BadExtension},
		{File: "f1.yaml", Line: 14, Column: 51, Text: "error in metadata.keyward of 'e.k': window must be a duration like 10s or 1h30m, above 0 and at most 8760h, not 'soon'", Hint: "", Kind: BadExtension},
	}
	if len(report.Faults) != len(want) || report.Rules != nil {
		t.Errorf("%d faults, want %d", len(report.Faults), len(want))
	}
	for i := range min(len(want), len(report.Faults)) {
		if report.Faults[i] != want[i] {
			t.Errorf("fault %d\n got %+v\nwant %+v", i, report.Faults[i], want[i])
		}
	}
}

func TestDomainsOverFiles(t *testing.T) {
	one, two := "domain: d\ndescriptors: [{key: a, value: 'x*', rate_limit: {unit: day, requests_per_unit: 1}}]\n",
		"domain: d\ndescriptors: [{key: a, value: '*', rate_limit: {unit: day, requests_per_unit: 2}}]\n"
	_, err := Load(filesOf(one, two), Options{})
	if err == nil || err.Error() != "f1.yaml: duplicate domain 'd' in config file" {
		t.Error(err)
	}
	_, err = Load(filesOf(one, one), Options{MergeDomains: true})
	if err == nil || err.Error() != "f1.yaml: duplicate descriptor composite key 'd.a_x*'" {
		t.Error(err)
	}
	for _, row := range []struct {
		files []string
		want  uint32
	}{{[]string{one, two}, 1}, {[]string{two, one}, 2}} {
		var m Match
		load(t, Options{MergeDomains: true}, row.files...).Match("d", []Entry{{"a", "xy"}}, nil, &m)
		if m.Limit.Limit != row.want {
			t.Errorf("limit %d, want %d: the wildcards of later files come later", m.Limit.Limit, row.want)
		}
	}
}

// TestLoads covers notations that load, and their meaning.
func TestLoads(t *testing.T) {
	for _, row := range []struct{ name, yaml, want string }{
		{"BOM", "\ufeff" + limitYAML("{unit: day, requests_per_unit: 5}"), "d.k: unit=DAY requests_per_unit=5"},
		{"CRLF", strings.ReplaceAll(limitYAML("{unit: day, requests_per_unit: 5}"), "\n", "\r\n"), "d.k: unit=DAY requests_per_unit=5"},
		{"JSON", `{"domain": "d", "descriptors": [{"key": "k", "rate_limit": {"unit": "WEEK", "requests_per_unit": 5}}]}`, "d.k: unit=WEEK requests_per_unit=5"},
		{"octal", limitYAML("{unit: day, requests_per_unit: 010}"), "d.k: unit=DAY requests_per_unit=8"},
		{"underscore", limitYAML("{unit: day, requests_per_unit: 1_0}"), "d.k: unit=DAY requests_per_unit=10"},
		{"binary", limitYAML("{unit: day, requests_per_unit: 0b101}"), "d.k: unit=DAY requests_per_unit=5"},
		{"omitted count", limitYAML("{unit: day}"), "d.k: unit=DAY requests_per_unit=0"},
		{"null limit", limitYAML("~"), ""},
		{"nonsense unit of unlimited", limitYAML("{unlimited: true, unit: fortnight, requests_per_unit: 9}"), "d.k: unit=UNKNOWN requests_per_unit=9"},
		{"last duplicate key wins", limitYAML("{unit: day, unit: hour}"), "d.k: unit=HOUR requests_per_unit=0"},
		{"keys anywhere", "domain: d\nunit: x\nname: n\ndescriptors:\n- {key: k, unit: x, rate_limit: {unit: day, key: 5}}\n", "d.k: unit=DAY requests_per_unit=0"},
		{"merge", "domain: d\ndescriptors:\n- {key: a, rate_limit: &r {unit: day, requests_per_unit: 3}}\n- {key: b, rate_limit: {<<: *r, unit: hour}}\n",
			"d.a: unit=DAY requests_per_unit=3, shadow_mode: false, quota_mode: false\nd.b: unit=HOUR requests_per_unit=3"},
		{"scalars keep their text", "domain: d\ndescriptors:\n- key: k\n  value: 0x1F\n  descriptors:\n  - key: yes\n    value: 2026-11-21\n    rate_limit: {unit: day}\n",
			"d.k_0x1F.yes_2026-11-21: unit=DAY requests_per_unit=0"},
		{"timestamp in metadata", "domain: d\ndescriptors:\n- {key: k, metadata: {t: !!timestamp 2026-11-21}, rate_limit: {unit: day}}\n", "d.k: unit=DAY requests_per_unit=0"},
		{"second document", limitYAML("{unit: day}") + "---\ndomain: [\n", "d.k: unit=DAY requests_per_unit=0"},
		{"a way to count", "domain: d\ndescriptors:\n- {key: a, metadata: {keyward: {algorithm: token_bucket, window: 90s, burst: 7, durability: strict}}, rate_limit: {unit: day}}\n- {key: b, rate_limit: {unit: day}}\n",
			"d.a: unit=DAY requests_per_unit=0, shadow_mode: false, quota_mode: false, algorithm: token_bucket, window: 1m30s, burst: 7, durability: strict\nd.b: unit=DAY requests_per_unit=0"},
		{"no descriptors", "domain: d\n", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			want := row.want
			if want != "" {
				want += ", shadow_mode: false, quota_mode: false"
			}
			if got := load(t, Options{}, row.yaml).String(); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestNoFiles(t *testing.T) {
	r := load(t, Options{})
	if !r.Empty() || load(t, Options{}, "domain: d").Empty() {
		t.Error("empty means that no domain is configured")
	}
}

// TestHostileFiles checks that files that would exhaust memory or the stack yield a fault.
func TestHostileFiles(t *testing.T) {
	bomb := "domain: d\nmetadata:\n  a: &a [x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c <= 'i'; c++ {
		bomb += fmt.Sprintf("  %c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n", c, c, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1)
	}
	for name, text := range map[string]string{
		"alias bomb":      bomb,
		"deep lists":      strings.Repeat("[", 20000),
		"deep maps":       "domain: d\nmetadata: " + strings.Repeat("{a: ", 20000),
		"deep descriptor": "domain: d\ndescriptors: " + strings.Repeat("[{key: k, descriptors: ", 3000) + strings.Repeat("}]", 3000),
		"binary":          "\x00\xff\xfe\x01",
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Load(filesOf(text), Options{}); err == nil {
				t.Error("loaded")
			}
		})
	}
}

func TestRoomForKeys(t *testing.T) {
	s, faults := parse(filesOf("domain: d\ndescriptors: [{key: abcdef}, {key: ghijkl}, {key: mnopqr}, {key: stuvwx}]\n")[0])
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	for room, want := range map[int]int{32: 0, 31: 1, 10: 1, 0: 1} {
		b := builder{rules: newRules(Options{}), room: room}
		if got := b.build([]source{s}).Faults; len(got) != want {
			t.Errorf("room for %d bytes: %v", room, got)
		}
	}
}

func TestDomains(t *testing.T) {
	r := load(t, Options{MergeDomains: true}, "domain: b", "domain: a", "domain: b")
	if got := r.Domains(); !slices.Equal(got, []string{"b", "a"}) {
		t.Error(got)
	}
}

// TestLines checks the positions of faults, including those behind aliases and merges.
func TestLines(t *testing.T) {
	for _, row := range []struct {
		yaml string
		line int
	}{
		{"domain: d\nmetadata:\n  x: &x\n  - value: v\ndescriptors: *x\n", 4},
		{"domain: d\nmetadata: &m\n  descriptors:\n  - key: k\n  - value: v\n<<: *m\n", 5},
		{"domain: d\nmetadata: &m\n  descriptors:\n  - value: v\n<<: [{}, *m]\n", 4},
		{"domain: d\ndescriptors: [{key: a}]\ndescriptors:\n- value: v\n", 4},
		{"domain: d\ndescriptors:\n- key: k\n\n- key: l\n  rate_limit:\n    requests_per_unit: x\n", 7},
		{"domain: d\n\ndescriptors: [\n", 3},
		{"domain: d\ndescriptors:\n- a\n", 3},
	} {
		report := Check(filesOf(row.yaml), Options{})
		if len(report.Faults) != 1 || report.Faults[0].Line != row.line {
			t.Errorf("want line %d: %+v\n%s", row.line, report.Faults, row.yaml)
		}
	}
}
