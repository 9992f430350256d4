package config

import (
	"slices"
	"strings"
	"testing"
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
		{"shared", "domain: d\ndescriptors:\n- {key: k, value: 'v*', share_threshold: true, rate_limit: {unit: second, requests_per_unit: 1000}}\n",
			[]string{"f0.yaml:3: 'd.k_v*' has one owner for all its requests, up to 1000 a SECOND: one member counts them all"}},
		{"idle extension", "domain: d\ndescriptors:\n- {key: k, metadata: {keyward: {degraded: fail_open}}}\n",
			[]string{"f0.yaml:3: 'd.k' has metadata.keyward and no limit that it could act on"}},
		{"idle cap", "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 5}, metadata: {keyward: {local_cap: 5}}}\n",
			[]string{"f0.yaml:3: 'd.k' has a local_cap, which only degraded: fail_open uses"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			files := filesOf(row.yaml)
			rules, err := Load(files, Options{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range Suspicions(files, rules) {
				got = append(got, s.String())
			}
			if !slices.Equal(got, row.want) {
				t.Errorf("\n got %q\nwant %q", got, row.want)
			}
		})
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

func TestRestarts(t *testing.T) {
	const text = "domain: d\ndescriptors:\n- key: a\n  descriptors:\n  - {key: b, value: 'x*', rate_limit: {unit: day, requests_per_unit: 5}}\n"
	old := load(t, Options{}, text)
	for change, want := range map[[2]string]string{
		{"unit: 5", "unit: 6"}:                           "",
		{"'x*'", "'y*'"}:                                 "",
		{"day", "hour"}:                                  "unit",
		{"'x*'", "'x*', share_threshold: true"}:          "share_threshold",
		{"}}", "}, metadata: {keyward: {shard_by: b}}}"}: "owner",
	} {
		got := Restarts(old, load(t, Options{}, strings.Replace(text, change[0], change[1], 1)))
		if (len(got) == 1) != (want != "") || want != "" && !strings.Contains(got[0].Text, "for its "+want+" is another: up to 10 hits") {
			t.Errorf("%v: %v, want %q", change, got, want)
		}
	}
}
