package rulecheck

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/config"
)

func TestWarnings(t *testing.T) {
	for _, row := range []struct {
		name, yaml string
		want       []string
	}{
		{"none", "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 5}}\n- {key: k, value: v, rate_limit: {unit: day, requests_per_unit: 5}}\n", nil},
		{"one document", "---\ndomain: d\n---\n", nil},
		{"documents", "domain: d\n---\ndomain: e\n", []string{"f0.yaml:2: only the first YAML document of a file is loaded; this one is ignored"}},
		{"earlier wildcard", "domain: d\ndescriptors:\n- {key: k, value: 'a*'}\n- {key: k, value: 'ab*c'}\n- {key: k, value: 'abc'}\n",
			[]string{"f0.yaml:4: 'd.k_ab*c' is never reached: 'k_a*' matches all its values"}},
		{"later wildcard", "domain: d\ndescriptors:\n- {key: k, value: 'ab*'}\n- {key: k, value: 'a*'}\n", nil},
		{"default under a wildcard", "domain: d\ndescriptors:\n- key: a\n  descriptors:\n  - {key: k}\n  - {key: k, value: '*'}\n",
			[]string{"f0.yaml:5: 'd.a.k' is never reached: 'k_*' matches all its values"}},
		{"nothing allowed", limitYAML("{unit: day, requests_per_unit: 0}"),
			[]string{"f0.yaml:3: 'd.k' has requests_per_unit 0, or none: every request is over the limit"}},
		{"in memory", limitYAML("{unit: month, requests_per_unit: 5}"),
			[]string{"f0.yaml:3: 'd.k' counts per MONTH; counts are kept in memory and do not survive a restart of all members"}},
		{"unlimited with a count", limitYAML("{unlimited: true, requests_per_unit: 5}"),
			[]string{"f0.yaml:3: 'd.k' is unlimited; its requests_per_unit is ignored"}},
		{"nothing to replace", limitYAML("{unit: day, requests_per_unit: 5, replaces: [{name: n}]}"),
			[]string{"f0.yaml:3: 'd.k' replaces 'n', but no rule has that name"}},
		{"one owner", "domain: d\ndescriptors:\n- {key: k, value: v, rate_limit: {unit: minute, requests_per_unit: 60000}}\n",
			[]string{"f0.yaml:3: 'd.k_v' has one owner for all its requests, up to 60000 per MINUTE: one member counts them all"}},
		{"one owner, seldom", "domain: d\ndescriptors:\n- {key: k, value: v, rate_limit: {unit: minute, requests_per_unit: 59999}}\n", nil},
		{"constant shard_by", "domain: d\ndescriptors:\n- key: c\n  value: v\n  descriptors:\n  - {key: k, rate_limit: {unit: second, requests_per_unit: 1000}, metadata: {keyward: {shard_by: c}}}\n",
			[]string{"f0.yaml:6: 'd.c_v.k' has one owner for all its requests, up to 1000 per SECOND: one member counts them all"}},
		{"window in memory", extendedYAML("window: 36h"),
			[]string{"f0.yaml:3: 'd.k' counts per 36h0m0s; counts are kept in memory and do not survive a restart of all members"}},
		{"window of a day", extendedYAML("window: 24h"), nil},
		{"short window", extendedYAML("window: 50ms"),
			[]string{"f0.yaml:3: 'd.k' counts per 50ms: clock skew and delay between members make windows below 100ms inexact, and responses give times in whole seconds"}},
		{"one owner, by windows", "domain: d\ndescriptors:\n- {key: k, value: v, metadata: {keyward: {window: 500ms}}, rate_limit: {unit: day, requests_per_unit: 500}}\n",
			[]string{"f0.yaml:3: 'd.k_v' has one owner for all its requests, up to 500 per 500ms: one member counts them all"}},
		{"shared", "domain: d\ndescriptors:\n- {key: k, value: 'v*', share_threshold: true, rate_limit: {unit: second, requests_per_unit: 1000}}\n",
			[]string{"f0.yaml:3: 'd.k_v*' has one owner for all its requests, up to 1000 per SECOND: one member counts them all"}},
		{"unused extension", "domain: d\ndescriptors:\n- {key: k, metadata: {keyward: {degraded: fail_open}}}\n",
			[]string{"f0.yaml:3: 'd.k' has metadata.keyward, but no limit to apply it to"}},
		{"unused cap", "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 5}, metadata: {keyward: {local_cap: 5}}}\n",
			[]string{"f0.yaml:3: 'd.k' has local_cap, which degraded: local_share does not use"}},
		{"used cap", extendedYAML("local_cap: 5, degraded: fail_open"), nil},
		{"unused settings", extendedYAML("epsilon: 1%, identity: known, low_watermark: 1%, sync_interval: 1s, ttl: 1s, reclaim: none, weight: 1, lease_min: 1, lease_max: 2, hot_factor: 9, audit: true"),
			[]string{
				"f0.yaml:3: 'd.k' has epsilon, which mechanism: owner does not use",
				"f0.yaml:3: 'd.k' has identity, which mechanism: owner does not use",
				"f0.yaml:3: 'd.k' has low_watermark, which mechanism: owner does not use",
				"f0.yaml:3: 'd.k' has sync_interval, which mechanism: owner does not use",
			}},
		{"unused settings of approximate", extendedYAML("mechanism: approximate, epsilon: 30%, weight: 2, ttl: 5s, sync_interval: 1s, low_watermark: 5%"),
			[]string{
				"f0.yaml:3: 'd.k' has ttl, which mechanism: approximate does not use",
				"f0.yaml:3: 'd.k' has weight, which mechanism: approximate does not use",
			}},
		{"unused settings of a bucket", extendedYAML("algorithm: leaky_bucket, reclaim: ttl, ttl: 1s, lease_max: 100"),
			[]string{
				"f0.yaml:3: 'd.k' has ttl, which algorithm: leaky_bucket does not use",
				"f0.yaml:3: 'd.k' has reclaim, which algorithm: leaky_bucket does not use",
			}},
		{"unused settings of a log", extendedYAML("algorithm: sliding_log, weight: 1"),
			[]string{"f0.yaml:3: 'd.k' has weight, which algorithm: sliding_log does not use"}},
		{"unused sub-keys", extendedYAML("dedicated: true, sub_keys: 3"),
			[]string{"f0.yaml:3: 'd.k' has sub_keys, which dedicated: true does not use"}},
		{"sub-keys", extendedYAML("dedicated: false, sub_keys: 3"), nil},
		{"a word for ours", "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 5}, metadata: {keywrod: {weight: 2}, owner: me}}\n",
			[]string{"f0.yaml:3: 'd.k' has metadata.keywrod, which is not used: did you mean metadata.keyward?"}},
		{"our key one level too high", "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 5}, metadata: {algorithm: token_bucket}}\n",
			[]string{"f0.yaml:3: 'd.k' has metadata.algorithm, which is not used: write Keyward's keys under metadata.keyward"}},
		{"unused settings of static", extendedYAML("mechanism: static, degraded: fail_open, partition: quorum, hot_factor: 9, weight: 2, window: 1m"),
			[]string{
				"f0.yaml:3: 'd.k' has degraded, which mechanism: static does not use",
				"f0.yaml:3: 'd.k' has partition, which mechanism: static does not use",
				"f0.yaml:3: 'd.k' has weight, which mechanism: static does not use",
				"f0.yaml:3: 'd.k' has hot_factor, which mechanism: static does not use",
			}},
		{"too little to divide", strings.Replace(extendedYAML("mechanism: static"), "unit: 5", "unit: 1", 1),
			[]string{"f0.yaml:3: 'd.k' has a limit of 1, less than the number of members: those without a share deny every request"}},
		{"too little to lend", extendedYAML("mechanism: lease"),
			[]string{"f0.yaml:3: 'd.k' has too low a limit to lend parts of it: its owner decides every request"}},
		{"just enough to lend", strings.Replace(extendedYAML("mechanism: lease"), "unit: 5", "unit: 20", 1), nil},
		{"a bucket to lend", strings.Replace(extendedYAML("mechanism: lease, algorithm: token_bucket, window: 1s"), "unit: 5", "unit: 20", 1), nil},
		{"a short ttl", leaseYAML("mechanism: lease, ttl: 1999ms"),
			[]string{"f0.yaml:3: 'd.k' has a ttl of 1.999s, less than two renewals (2s): grants are small and renewed more often; use 2s to 5s"}},
		{"a short ttl with reclaim", leaseYAML("reclaim: ttl, ttl: 1s"),
			[]string{"f0.yaml:3: 'd.k' has a ttl of 1s, less than two renewals (2s): one late renewal ends the lease, and the owner lends the same hits again; use 2s to 5s"}},
		{"a ttl of two renewals", leaseYAML("mechanism: lease, reclaim: ttl, ttl: 2s"), nil},
		{"a short ttl of a limit that is never lent", extendedYAML("ttl: 1s"), nil},
		{"small quotas", extendedYAML("mechanism: quota, envoys: 2, first: allow"),
			[]string{
				"f0.yaml:3: 'd.k' grants a limit of 5 to 2 Envoys: below 100 for each Envoy, a part of the limit stays unspent at those with few requests",
				"f0.yaml:3: 'd.k' has first: allow: requests that reach an Envoy before its first grant are admitted, and charged afterwards, also above the limit",
			}},
		{"a hot quota in shadow mode", strings.Replace(extendedYAML("hot_step: quota, degraded: fail_closed"), "key: k,", "key: k, shadow_mode: true,", 1),
			[]string{"f0.yaml:3: 'd.k' has hot_step: quota, and stays with calls when its keys are hot: it is in shadow mode, its values share a counter, or its descriptor has several entries"}},
		{"a quota in shadow mode", strings.Replace(extendedYAML("mechanism: quota"), "key: k,", "key: k, shadow_mode: true,", 1), nil},
		{"a quota that is replaced", `domain: d
descriptors:
- {key: k, rate_limit: {name: a, unit: day, requests_per_unit: 5}, metadata: {keyward: {mechanism: quota, degraded: fail_closed}}}
- {key: o, rate_limit: {unit: day, requests_per_unit: 5, replaces: [{name: a}]}}
`, []string{"f0.yaml:3: 'd.k' is replaced for some requests: an Envoy that spends its limit does not know that, and would count them"}},
		{"quotas and calls", `domain: d
descriptors:
- {key: k, value: gold, rate_limit: {unit: day, requests_per_unit: 5}, metadata: {keyward: {mechanism: quota, degraded: fail_closed}}}
- {key: k, value: free, rate_limit: {unlimited: true}}
- {key: k, rate_limit: {unit: day, requests_per_unit: 5}}
- {key: generic_key, value: a, rate_limit: {unit: day, requests_per_unit: 5}, metadata: {keyward: {mechanism: quota, degraded: fail_closed}}}
- {key: generic_key, value: b, rate_limit: {unit: day, requests_per_unit: 5}}
`, []string{"f0.yaml:5: 'd.k' has the descriptor of 'd.k_gold' (f0.yaml:3), which has mechanism: quota: calls for it would count the requests of both, so envoy-config refuses the rules"}},
		{"quotas of unknown Envoys", extendedYAML("mechanism: quota, degraded: fail_closed"), nil},
		{"quotas without a share", extendedYAML("mechanism: quota"), []string{"f0.yaml:3: 'd.k' has degraded: local_share without envoys: while their sidecar is " +
			"away, Envoys that spend the limit refuse everything"}},
		{"quotas with a cap", extendedYAML("mechanism: quota, degraded: fail_open, local_cap: 3"), []string{"f0.yaml:3: 'd.k' has local_cap 3: it bounds calls only; " +
			"while their sidecar is away, Envoys that spend the limit admit everything"}},
		{"slow quotas", strings.ReplaceAll(extendedYAML("mechanism: quota, envoys: 2"), "requests_per_unit: 5", "requests_per_unit: 6911999"), []string{"f0.yaml:3: 'd.k' allows " +
			"2 Envoys together fewer than 40 hits per second each: Envoys report and are assigned parts every 5s, which costs as much as calls"}},
		{"fast quotas", strings.ReplaceAll(extendedYAML("mechanism: quota, envoys: 2"), "requests_per_unit: 5", "requests_per_unit: 6912000"), nil},
		{"a slow bucket", strings.Replace(extendedYAML("mechanism: lease, algorithm: token_bucket, window: 1m"), "unit: 5", "unit: 20", 1),
			[]string{"f0.yaml:3: 'd.k' has too low a limit to lend parts of it: its owner decides every request"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			files := filesOf(row.yaml)
			rules, err := config.Load(files, config.Options{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range Warnings(files, rules, 0) {
				got = append(got, s.String())
			}
			if !slices.Equal(got, row.want) {
				t.Errorf("\n got %q\nwant %q", got, row.want)
			}
		})
	}
}

// TestDurability checks the warnings about counts that a restart of all members loses, and their hints.
func TestDurability(t *testing.T) {
	const fix = "set --data DIR on every member, or durability: memory to say that they may be lost"
	for _, row := range []struct {
		extension  string
		dataWindow time.Duration
		kind, hint string // empty: no warning
	}{
		{"window: 24h", 0, "", ""},
		{"window: 25h", 0, "long-window", fix},
		{"window: 25h, durability: strict", 0, "long-window", fix},
		{"window: 25h, durability: memory", 0, "", ""},
		{"window: 25h, mechanism: static", 0, "long-window", "mechanism: static is never in the journal (--data): use another one, or durability: memory to say that they may be lost"},
		{"window: 300h, algorithm: token_bucket, burst: 1", 0, "long-window", fix},
		{"window: 100h, algorithm: token_bucket, burst: 1", 0, "", ""}, // it fills within a day
		{"window: 25h", time.Hour, "", ""},
		{"window: 25h, durability: strict", time.Hour, "", ""},
		{"window: 25h, durability: strict, algorithm: sliding_window", time.Hour, "", ""},
		{"window: 25h, durability: memory", time.Hour, "not-in-journal", "use durability: async"},
		{"window: 24h, durability: memory", time.Hour, "", ""},
		{"window: 25h, mechanism: static", time.Hour, "not-in-journal", "use mechanism: owner or lease"},
		{"window: 25h, mechanism: approximate, epsilon: 30%", time.Hour, "not-in-journal", "use mechanism: owner or lease"},
		{"window: 25h", 48 * time.Hour, "not-in-journal", "lower the members' --data-window"},
		{"window: 2h, durability: strict, algorithm: sliding_log", time.Hour, "strict-waits", "use algorithm: fixed_window or sliding_window, which wait for the first hit of a window and for bursts only"},
		{"window: 2h, durability: strict, algorithm: leaky_bucket", time.Hour, "strict-waits", "use algorithm: fixed_window or sliding_window, which wait for the first hit of a window and for bursts only"},
		{"window: 2h, durability: strict, algorithm: leaky_bucket, burst: 1", time.Hour, "", ""}, // not in the journal
		{"window: 2h, durability: strict, algorithm: sliding_log", 0, "", ""},
	} {
		files := filesOf(extendedYAML(row.extension))
		rules, err := config.Load(files, config.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var kind, hint string
		for _, w := range Warnings(files, rules, row.dataWindow) {
			if w.Kind != "no-share" {
				kind, hint = kind+w.Kind, hint+w.Hint
			}
		}
		if kind != row.kind || hint != row.hint {
			t.Errorf("{%s} with --data-window %v: %q, %q; want %q, %q", row.extension, row.dataWindow, kind, hint, row.kind, row.hint)
		}
	}
}

// TestTooLittleForSoMany checks that a limit is compared with the number of holders that the cluster may have.
func TestTooLittleForSoMany(t *testing.T) {
	files := filesOf(strings.Replace(extendedYAML("mechanism: lease"), "unit: 5", "unit: 80", 1))
	for members, want := range map[int]int{0: 0, 5: 0, 6: 1} {
		rules, err := config.Load(files, config.Options{Members: members})
		if err != nil {
			t.Fatal(err)
		}
		if got := Warnings(files, rules, 0); len(got) != want {
			t.Errorf("%d members: %v", members, got)
		}
	}
}

func load(t *testing.T, texts ...string) *config.Rules {
	t.Helper()
	rules, err := config.Load(filesOf(texts...), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func filesOf(texts ...string) []config.File {
	var files []config.File
	for i, text := range texts {
		files = append(files, config.File{Name: fmt.Sprintf("f%d.yaml", i), Content: []byte(text)})
	}
	return files
}

// limitYAML returns a file with one descriptor that has the given rate_limit.
func limitYAML(limit string) string {
	return "domain: d\ndescriptors:\n- key: k\n  rate_limit: " + limit + "\n"
}

// leaseYAML returns a file with one rule that has the given metadata.keyward and a limit that can be lent.
func leaseYAML(extension string) string {
	return strings.Replace(extendedYAML(extension), "unit: 5", "unit: 500", 1)
}

// extendedYAML returns a file with one rule that has the given metadata.keyward.
func extendedYAML(extension string) string {
	return "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 5}, metadata: {keyward: {" + extension + "}}}\n"
}
