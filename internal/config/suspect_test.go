package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSuspicions(t *testing.T) {
	for _, row := range []struct {
		name, yaml string
		want       []string
	}{
		{"none", "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 5}}\n- {key: k, value: v, rate_limit: {unit: day, requests_per_unit: 5}}\n", nil},
		{"one document", "---\ndomain: d\n---\n", nil},
		{"documents", "domain: d\n---\ndomain: e\n", []string{"f0.yaml:2: only the first YAML document of a file is loaded; this one is ignored"}},
		{"earlier wildcard", "domain: d\ndescriptors:\n- {key: k, value: 'a*'}\n- {key: k, value: 'ab*c'}\n- {key: k, value: 'abc'}\n",
			[]string{"f0.yaml:4: 'd.k_ab*c' is never reached: 'k_a*' takes all its values"}},
		{"later wildcard", "domain: d\ndescriptors:\n- {key: k, value: 'ab*'}\n- {key: k, value: 'a*'}\n", nil},
		{"default under a wildcard", "domain: d\ndescriptors:\n- key: a\n  descriptors:\n  - {key: k}\n  - {key: k, value: '*'}\n",
			[]string{"f0.yaml:5: 'd.a.k' is never reached: 'k_*' takes all its values"}},
		{"nothing allowed", limitYAML("{unit: day, requests_per_unit: 0}"),
			[]string{"f0.yaml:3: 'd.k' has requests_per_unit 0, or none: every request is over the limit"}},
		{"in memory", limitYAML("{unit: month, requests_per_unit: 5}"),
			[]string{"f0.yaml:3: 'd.k' counts by the MONTH; counts are kept in memory and do not survive a restart of all members"}},
		{"unlimited with a count", limitYAML("{unlimited: true, requests_per_unit: 5}"),
			[]string{"f0.yaml:3: 'd.k' is unlimited; its requests_per_unit is ignored"}},
		{"nothing to replace", limitYAML("{unit: day, requests_per_unit: 5, replaces: [{name: n}]}"),
			[]string{"f0.yaml:3: 'd.k' replaces 'n', which no rule is named"}},
		{"one owner", "domain: d\ndescriptors:\n- {key: k, value: v, rate_limit: {unit: minute, requests_per_unit: 60000}}\n",
			[]string{"f0.yaml:3: 'd.k_v' has one owner for all its requests, up to 60000 a MINUTE: one member counts them all"}},
		{"one owner, seldom", "domain: d\ndescriptors:\n- {key: k, value: v, rate_limit: {unit: minute, requests_per_unit: 59999}}\n", nil},
		{"constant shard_by", "domain: d\ndescriptors:\n- key: c\n  value: v\n  descriptors:\n  - {key: k, rate_limit: {unit: second, requests_per_unit: 1000}, metadata: {keyward: {shard_by: c}}}\n",
			[]string{"f0.yaml:6: 'd.c_v.k' has one owner for all its requests, up to 1000 a SECOND: one member counts them all"}},
		{"window in memory", extendedYAML("window: 36h"),
			[]string{"f0.yaml:3: 'd.k' counts by the 36h0m0s; counts are kept in memory and do not survive a restart of all members"}},
		{"window of a day", extendedYAML("window: 24h"), nil},
		{"short window", extendedYAML("window: 50ms"),
			[]string{"f0.yaml:3: 'd.k' counts by the 50ms: clocks and the way between members make windows below 100ms inexact, and answers tell times in whole seconds"}},
		{"one owner, by windows", "domain: d\ndescriptors:\n- {key: k, value: v, metadata: {keyward: {window: 500ms}}, rate_limit: {unit: day, requests_per_unit: 500}}\n",
			[]string{"f0.yaml:3: 'd.k_v' has one owner for all its requests, up to 500 a 500ms: one member counts them all"}},
		{"shared", "domain: d\ndescriptors:\n- {key: k, value: 'v*', share_threshold: true, rate_limit: {unit: second, requests_per_unit: 1000}}\n",
			[]string{"f0.yaml:3: 'd.k_v*' has one owner for all its requests, up to 1000 a SECOND: one member counts them all"}},
		{"idle extension", "domain: d\ndescriptors:\n- {key: k, metadata: {keyward: {degraded: fail_open}}}\n",
			[]string{"f0.yaml:3: 'd.k' has metadata.keyward and no limit that it could act on"}},
		{"idle cap", "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 5}, metadata: {keyward: {local_cap: 5}}}\n",
			[]string{"f0.yaml:3: 'd.k' has local_cap, which degraded: local_share does not use"}},
		{"used cap", extendedYAML("local_cap: 5, degraded: fail_open"), nil},
		{"idle knobs", extendedYAML("epsilon: 1%, identity: known, low_watermark: 1%, sync_interval: 1s, ttl: 1s, reclaim: none, weight: 1, lease_min: 1, lease_max: 2, hot_factor: 9, audit: true"),
			[]string{
				"f0.yaml:3: 'd.k' has epsilon, which mechanism: owner does not use",
				"f0.yaml:3: 'd.k' has identity, which mechanism: owner does not use",
				"f0.yaml:3: 'd.k' has low_watermark, which mechanism: owner does not use",
				"f0.yaml:3: 'd.k' has sync_interval, which mechanism: owner does not use",
			}},
		{"idle knobs of approximate", extendedYAML("mechanism: approximate, epsilon: 30%, weight: 2, ttl: 5s, sync_interval: 1s, low_watermark: 5%"),
			[]string{
				"f0.yaml:3: 'd.k' has ttl, which mechanism: approximate does not use",
				"f0.yaml:3: 'd.k' has weight, which mechanism: approximate does not use",
			}},
		{"idle knobs of a bucket", extendedYAML("algorithm: leaky_bucket, reclaim: ttl, ttl: 1s, lease_max: 100"),
			[]string{
				"f0.yaml:3: 'd.k' has ttl, which algorithm: leaky_bucket does not use",
				"f0.yaml:3: 'd.k' has reclaim, which algorithm: leaky_bucket does not use",
			}},
		{"idle knobs of a log", extendedYAML("algorithm: sliding_log, weight: 1"),
			[]string{"f0.yaml:3: 'd.k' has weight, which algorithm: sliding_log does not use"}},
		{"idle sub-keys", extendedYAML("dedicated: true, sub_keys: 3"),
			[]string{"f0.yaml:3: 'd.k' has sub_keys, which dedicated: true does not use"}},
		{"sub-keys", extendedYAML("dedicated: false, sub_keys: 3"), nil},
		{"a word for ours", "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 5}, metadata: {keywrod: {weight: 2}, owner: me}}\n",
			[]string{"f0.yaml:3: 'd.k' has metadata.keywrod, which nobody reads: did you mean metadata.keyward?"}},
		{"our key one level too high", "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 5}, metadata: {algorithm: token_bucket}}\n",
			[]string{"f0.yaml:3: 'd.k' has metadata.algorithm, which nobody reads: Keyward's own keys stand under metadata.keyward"}},
		{"too little to lend", extendedYAML("mechanism: lease"),
			[]string{"f0.yaml:3: 'd.k' lets too little through to lend parts of it: its owner decides every question"}},
		{"just enough to lend", strings.Replace(extendedYAML("mechanism: lease"), "unit: 5", "unit: 20", 1), nil},
		{"a bucket to lend", strings.Replace(extendedYAML("mechanism: lease, algorithm: token_bucket, window: 1s"), "unit: 5", "unit: 20", 1), nil},
		{"a slow bucket", strings.Replace(extendedYAML("mechanism: lease, algorithm: token_bucket, window: 1m"), "unit: 5", "unit: 20", 1),
			[]string{"f0.yaml:3: 'd.k' lets too little through to lend parts of it: its owner decides every question"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			files := filesOf(row.yaml)
			rules, err := Load(files, Options{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range Warnings(files, rules) {
				got = append(got, s.String())
			}
			if !slices.Equal(got, row.want) {
				t.Errorf("\n got %q\nwant %q", got, row.want)
			}
		})
	}
}

// extendedYAML is a file with one rule, of which only our own keys differ.
func extendedYAML(extension string) string {
	return "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 5}, metadata: {keyward: {" + extension + "}}}\n"
}

func TestTell(t *testing.T) {
	for _, row := range []struct {
		window time.Duration
		unit   Unit
		told   Unit
		times  uint32
	}{
		{time.Minute, Minute, Minute, 1},
		{time.Minute, Hour, Minute, 1},
		{time.Minute, Second, Second, 60},
		{10 * time.Second, Minute, Second, 10},
		{90 * time.Minute, Day, Minute, 90},
		{48 * time.Hour, Second, Second, 172800},
		{48 * time.Hour, Week, Day, 2},
		{14 * 24 * time.Hour, Week, Week, 2},
		{maxWindow, Second, Second, 31536000},
		{500 * time.Millisecond, Second, UnitUnknown, 0},
		{1500 * time.Millisecond, Second, UnitUnknown, 0},
		{0, UnitUnknown, UnitUnknown, 0},
	} {
		if told, times := tell(row.window, row.unit); told != row.told || times != row.times {
			t.Errorf("%v by the %v: %d %v", row.window, row.unit, times, told)
		}
	}
}

func TestUnits(t *testing.T) {
	seconds := map[Unit]int{Second: 1, Minute: 60, Hour: 3600, Day: 86400, Week: 604800, Month: 30 * 86400, Year: 365 * 86400}
	for u := Unit(-1); u < 10; u++ {
		if got := int(u.Window().Seconds()); got != seconds[u] {
			t.Errorf("%s: %d s", u, got)
		}
		if back := unitOf(u.String()); (seconds[u] > 0) != (back == u && u != UnitUnknown) {
			t.Errorf("%s reads as %s", u, back)
		}
	}
}

// restarts are the changes that make counts begin anew.
func restarts(old, rules *Rules) []RuleChange {
	return slices.DeleteFunc(Changes(old, rules), func(c RuleChange) bool { return c.Kind != CountsAnew })
}

// TestRestartsOfWays holds that another way to count is a new counter, and the same one in other words is not.
func TestRestartsOfWays(t *testing.T) {
	for _, row := range []struct{ old, fresh, want string }{
		{"window: 24h", "durability: strict", ""},
		{"algorithm: token_bucket, burst: 5", "algorithm: token_bucket, burst: 50", ""},
		{"window: 10s", "window: 20s", "for its window is another: up to 10 hits"},
		{"algorithm: sliding_log", "algorithm: fixed_window", "for its algorithm is another: up to 10 hits"},
		{"algorithm: token_bucket, burst: 7", "algorithm: leaky_bucket", "for its algorithm is another: up to 22 hits"},
		{"shard_by: k", "window: 24h", ""}, // it is placed by k anyway
	} {
		got := restarts(load(t, Options{}, extendedYAML(row.old)), load(t, Options{}, extendedYAML(row.fresh)))
		if (len(got) == 1) != (row.want != "") || row.want != "" && !strings.Contains(got[0].Text, row.want) {
			t.Errorf("from {%s} to {%s}: %v", row.old, row.fresh, got)
		}
	}
}

func TestRestarts(t *testing.T) {
	const text = "domain: d\ndescriptors:\n- key: a\n  descriptors:\n  - {key: b, value: 'x*', rate_limit: {unit: day, requests_per_unit: 5}}\n"
	old := load(t, Options{}, text)
	for change, want := range map[[2]string]string{
		{"unit: 5", "unit: 6"}:                           "",
		{"'x*'", "'y*'"}:                                 "",
		{"day", "hour"}:                                  "unit",
		{"'x*'", "'x*', share_threshold: true"}:          "share_threshold",
		{"}}", "}, metadata: {keyward: {shard_by: b}}}"}: "shard_by",
	} {
		got := restarts(old, load(t, Options{}, strings.Replace(text, change[0], change[1], 1)))
		if (len(got) == 1) != (want != "") || want != "" && !strings.Contains(got[0].Text, "for its "+want+" is another: up to 10 hits") {
			t.Errorf("%v: %v, want %q", change, got, want)
		}
	}
}

// TestChanges holds every sort of change but those that count anew.
func TestChanges(t *testing.T) {
	at := func(key, limit, metadata string) string {
		return "- {key: " + key + ", rate_limit: {" + limit + "}, metadata: {keyward: {" + metadata + "}}}\n"
	}
	head := "domain: d\ndescriptors:\n"
	old := load(t, Options{}, head+at("same", "unit: day, requests_per_unit: 5", "")+at("less", "unit: day, requests_per_unit: 5", "")+
		at("gone", "unit: hour, requests_per_unit: 7", "")+at("open", "unit: day, requests_per_unit: 5", "")+
		at("deep", "unit: day, requests_per_unit: 5", "algorithm: token_bucket")+at("way", "unit: day, requests_per_unit: 5", "durability: strict"))
	fresh := load(t, Options{}, head+at("same", "unit: day, requests_per_unit: 5", "")+at("less", "unit: day, requests_per_unit: 4", "")+
		at("new", "unit: second, requests_per_unit: 9", "")+at("open", "unlimited: true", "")+
		at("deep", "unit: day, requests_per_unit: 5", "algorithm: token_bucket, burst: 9")+
		"- {key: way, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 5}, metadata: {keyward: {degraded: fail_open, mechanism: lease}}}\n")
	var got []string
	for _, c := range Changes(old, fresh) {
		got = append(got, fmt.Sprintf("%s %d: %s", c.Kind, c.Line, c.Text))
	}
	want := []string{
		"amount 4: 'd.less' lets through 4 hits per day, so far 5 hits per day; this meets what is counted already",
		"added 5: 'd.new' is new: 9 hits per second",
		"amount 6: 'd.open' lets through any number of hits, so far 5 hits per day; this meets what is counted already",
		"amount 7: 'd.deep' lets through 5 hits per day, 9 at once, so far 5 hits per day; this meets what is counted already",
		"way 8: 'd.way' has shadow_mode: true, so far false",
		"way 8: 'd.way' has durability: strict: false, so far true",
		"way 8: 'd.way' has degraded: fail_open, so far local_share",
		"way 8: 'd.way' has mechanism: lease, so far owner",
		"removed 5: 'd.gone' is gone (7 hits per hour): what it was about is limited by another rule, or by none",
	}
	if !slices.Equal(got, want) {
		t.Errorf("\n got %s\nwant %s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if same := Changes(old, old); len(same) != 0 {
		t.Errorf("nothing changed: %v", same)
	}
}

// TestTooLittleForSoMany holds that a limit is measured by the holders that the cluster may have.
func TestTooLittleForSoMany(t *testing.T) {
	files := filesOf(strings.Replace(extendedYAML("mechanism: lease"), "unit: 5", "unit: 80", 1))
	for members, want := range map[int]int{0: 0, 5: 0, 6: 1} {
		rules, err := Load(files, Options{Members: members})
		if err != nil {
			t.Fatal(err)
		}
		if got := Warnings(files, rules); len(got) != want {
			t.Errorf("%d members: %v", members, got)
		}
	}
}
