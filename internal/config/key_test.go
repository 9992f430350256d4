package config

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
)

// naiveFind scans all wildcards; wildcards.find must return the same.
func naiveFind(list []*node, text []byte) *node {
	for _, n := range list {
		if naiveMatch(strings.Split(n.glued, "*"), string(text)) {
			return n
		}
	}
	return nil
}

// naiveMatch tries every alignment.
func naiveMatch(parts []string, text string) bool {
	if !strings.HasPrefix(text, parts[0]) {
		return false
	}
	text = text[len(parts[0]):]
	if len(parts) == 1 {
		return text == ""
	}
	for i := range len(text) + 1 {
		if naiveMatch(parts[1:], text[i:]) {
			return true
		}
	}
	return false
}

func TestWildcardsAgreeWithScan(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	word := func(letters string, most int) string {
		b := make([]byte, r.IntN(most+1))
		for i := range b {
			b[i] = letters[r.IntN(len(letters))]
		}
		return string(b)
	}
	found := 0
	for range 3000 {
		var w wildcards
		var list []*node
		for range r.IntN(12) {
			text := word("ab*", 5)
			if p := newPattern(text); p != nil {
				n := &node{glued: text, pattern: p}
				w.add(n)
				list = append(list, n)
			}
		}
		for range 30 {
			text := []byte(word("ab", 8))
			got, want := w.find(text), naiveFind(list, text)
			if got != want {
				t.Fatalf("%q in %v: got %+v, want %+v", text, w, got, want)
			}
			if got != nil {
				found++
			}
		}
	}
	if found < 10000 {
		t.Errorf("only %d found", found)
	}
}

func TestCovers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	word := func() string {
		b := make([]byte, 1+r.IntN(5))
		for i := range b {
			b[i] = "aab*"[r.IntN(4)]
		}
		return string(b)
	}
	for range 20000 {
		outer, inner := word(), word()
		if !newPattern(outer).covers(inner) {
			continue
		}
		text := strings.ReplaceAll(inner, "*", strings.Repeat("ab", r.IntN(3)))
		if !naiveMatch(strings.Split(outer, "*"), text) {
			t.Fatalf("%q covers %q and does not match %q", outer, inner, text)
		}
	}
}

// TestGoldenDigest fixes every bit of the counter key: members of two versions with different keys would count
// separately.
func TestGoldenDigest(t *testing.T) {
	text := "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: minute, requests_per_unit: 5}}\n"
	for _, row := range []struct {
		o    Options
		want string
	}{
		{Options{}, "fc1214475fb251eed188652daf2a23bf"},
		{Options{KeyPrefix: "p"}, "6e7da7a99218ce6c5b3d4fe8405c129e"},
		{Options{Cluster: "prod"}, "e6f0adf915f640775611b800fa6be6b1"},
	} {
		var m Match
		load(t, row.o, text).Match("d", []Entry{{"k", "v"}}, nil, &m)
		if got := fmt.Sprintf("%016x%016x", m.Digest[0], m.Digest[1]); got != row.want {
			t.Errorf("%+v: %s, want %s", row.o, got, row.want)
		}
		if m.Owner != xxhash.Sum64String("v") || m.Owner != 0xa293d43641f17ec1 {
			t.Errorf("owner %#x", m.Owner)
		}
	}
}

func digestOf(r *Rules, domain string, entries []Entry) [2]uint64 {
	var m Match
	r.Match(domain, entries, nil, &m)
	return m.Digest
}

// TestDigestIdentity checks which settings give a rule a different counter.
func TestDigestIdentity(t *testing.T) {
	const base = "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: minute, requests_per_unit: 5}}\n"
	kv := []Entry{{"k", "v"}}
	want := digestOf(load(t, Options{}, base), "d", kv)
	for name, text := range map[string]string{
		"amount":   strings.Replace(base, "unit: 5", "unit: 50", 1),
		"name":     strings.Replace(base, "{unit", "{name: n, unit", 1),
		"flags":    strings.Replace(base, "{key", "{shadow_mode: true, detailed_metric: true, key", 1),
		"value":    strings.Replace(base, "{key: k", "{key: k, value: v", 1),
		"pattern":  strings.Replace(base, "{key: k", "{key: k, value: 'v*'", 1),
		"shard_by": strings.Replace(base, "{key: k", "{key: k, metadata: {keyward: {shard_by: k}}", 1),
	} {
		if digestOf(load(t, Options{}, text), "d", kv) != want {
			t.Errorf("another %s must not be another counter", name)
		}
	}
	same := strings.Replace(base, "{key: k", "{key: k, metadata: {keyward: {window: 1m, algorithm: fixed_window, durability: strict}}", 1)
	if digestOf(load(t, Options{}, same), "d", kv) != want {
		t.Error("the unit's own length, written as a window, must not be another counter")
	}
	extended := func(unit, extension string) [2]uint64 {
		text := strings.Replace(strings.Replace(base, "minute", unit, 1), "{key: k", "{key: k, metadata: {keyward: {"+extension+"}}", 1)
		return digestOf(load(t, Options{}, text), "d", kv)
	}
	if extended("hour", "window: 10s") != extended("second", "window: 10000ms") {
		t.Error("windows of one length must be one counter, whatever the unit")
	}
	if extended("hour", "algorithm: token_bucket, burst: 1") != extended("hour", "algorithm: token_bucket, burst: 2") {
		t.Error("another burst must not be another counter")
	}
	different := map[string][2]uint64{
		"window":  extended("minute", "window: 61s"),
		"log":     extended("minute", "algorithm: sliding_log"),
		"sliding": extended("minute", "algorithm: sliding_window"),
		"bucket":  extended("minute", "algorithm: token_bucket"),
		"leaky":   extended("minute", "algorithm: leaky_bucket"),
		"":        want,
		"unit":    digestOf(load(t, Options{}, strings.Replace(base, "minute", "hour", 1)), "d", kv),
		"domain":  digestOf(load(t, Options{}, strings.Replace(base, "domain: d", "domain: e", 1)), "e", kv),
		"shared":  digestOf(load(t, Options{}, strings.Replace(base, "{key: k", "{key: k, value: 'v*', share_threshold: true", 1)), "d", kv),
		"prefix":  digestOf(load(t, Options{KeyPrefix: "p"}, base), "d", kv),
		"cluster": digestOf(load(t, Options{Cluster: "c"}, base), "d", kv),
		"value":   digestOf(load(t, Options{}, base), "d", []Entry{{"k", "w"}}),
		"empty":   digestOf(load(t, Options{}, base), "d", []Entry{{"k", ""}}),
	}
	seen := map[[2]uint64]string{}
	for name, d := range different {
		if other, twice := seen[d]; twice || d == ([2]uint64{}) {
			t.Errorf("%q and %q are one counter", name, other)
		}
		seen[d] = name
	}
}

// TestDigestUnambiguous checks that no two sequences of entries have the same digest input, as glued keys do.
func TestDigestUnambiguous(t *testing.T) {
	r := load(t, Options{}, "domain: d\n", "domain: d_a\n")
	seen := map[[2]uint64]string{}
	for _, domain := range []string{"d", "d_a"} {
		for _, entries := range [][]Entry{
			{{"a", "b_c"}}, {{"a_b", "c"}}, {{"a", "b"}, {"c", ""}}, {{"", "a_b_c"}}, {{"a_b_c", ""}}, {{"a", ""}, {"b", "c"}},
			{{"a", "b"}}, {{"a", "b"}, {"", ""}}, {{"a\x01b", ""}}, {{"", ""}, {"a", "b"}},
		} {
			var m Match
			r.Match(domain, entries, &Override{1, Day}, &m)
			text := fmt.Sprint(domain, entries)
			if other, twice := seen[m.Digest]; twice {
				t.Errorf("%s and %s are one counter", text, other)
			}
			seen[m.Digest] = text
		}
	}
}

func TestOwnerString(t *testing.T) {
	const text = `domain: d
descriptors:
  - key: tenant
    descriptors:
      - {key: fix, value: v, rate_limit: {unit: day}}
      - {key: user, rate_limit: {unit: day}, metadata: {keyward: {shard_by: user}}}
      - {key: both, rate_limit: {unit: day}, metadata: {keyward: {shard_by: [both, tenant]}}}
      - key: path
        value: "/a/*"
        share_threshold: true
        rate_limit: {unit: day}
        metadata: {keyward: {shard_by: [path, tenant]}}
  - key: const
    value: c
    descriptors:
      - {key: user, rate_limit: {unit: day}, metadata: {keyward: {shard_by: [const]}}}
  - key: route/*
    value: route/*
    descriptors:
      - {key: user, rate_limit: {unit: day}}
      - {key: all, value: all, rate_limit: {unit: day}}
`
	rules := load(t, Options{}, text)
	for _, row := range []struct {
		entries, want string
		levels        []int
	}{
		{"tenant=t, fix=v", "t", []int{0}},
		{"tenant=t, user=u", "u", []int{1}},
		{"tenant=t, both=b", "b|t", []int{1, 0}},
		{"tenant=t, path=/a/b", "/a/*|t", []int{1, 0}},
		{"const=c, user=u", "c", []int{0}},
		{"route/*=route/*, user=u", "u", []int{1}},
		{"route/*=route/*, all=all", "route/*", []int{0}},
	} {
		var m Match
		entries := entriesOf(row.entries)
		rules.Match("d", entries, nil, &m)
		if got := string(rules.AppendOwnerString([]byte("x:"), "d", entries, &m)); got != "x:"+row.want {
			t.Errorf("%s: %q, want %q", row.entries, got, row.want)
		}
		if m.Owner != xxhash.Sum64String(row.want) {
			t.Errorf("%s: the hash is not the owner string's", row.entries)
		}
		if got := m.Rule.OwnerLevels(); !slices.Equal(got, row.levels) {
			t.Errorf("%s: levels %v, want %v", row.entries, got, row.levels)
		}
	}
}

func TestExtension(t *testing.T) {
	for _, row := range []struct{ yaml, want string }{
		{"{}", ""},
		{"{algorithm: fixed_window, mechanism: owner, durability: async, degraded: fail_closed, shard_by: [a, k]}", ""},
		{"{degraded: fail_open, local_cap: 4294967295}", ""},
		{"5", "is not a map"},
		{"~", "is not a map"},
		{"[a]", "is not a map"},
		{"{algorithm: sliding_log, window: 10s, durability: strict}", ""},
		{"{algorithm: leaky_bucket, window: 1h30m, burst: 4294967295}", ""},
		{"{algorithm: token_bucket, burst: 0}", "burst must be a whole number from 1 to 4294967295, not '0'"},
		{"{burst: 5}", "burst is the depth of a token_bucket or leaky_bucket; the algorithm is fixed_window"},
		{"{burst: 5, algorithm: sliding_log}", "burst is the depth of a token_bucket or leaky_bucket; the algorithm is sliding_log"},
		{"{burst: 5, algorithm: magic}", "algorithm must be one of fixed_window, sliding_window, sliding_log, token_bucket, leaky_bucket, in_flight, not 'magic'"},
		{"{algorithm: 3}", "algorithm must be one of fixed_window, sliding_window, sliding_log, token_bucket, leaky_bucket, in_flight, not '3'"},
		{"{window: 8760h}", ""},
		{"{window: 1ns}", ""},
		{"{window: 8760h1ns}", "window must be a duration like 10s or 1h30m, above 0 and at most 8760h, not '8760h1ns'"},
		{"{window: 0s}", "window must be a duration like 10s or 1h30m, above 0 and at most 8760h, not '0s'"},
		{"{window: -10s}", "window must be a duration like 10s or 1h30m, above 0 and at most 8760h, not '-10s'"},
		{"{window: 10}", "window must be a duration like 10s or 1h30m, above 0 and at most 8760h, not '10'"},
		{"{window: day}", "window must be a duration like 10s or 1h30m, above 0 and at most 8760h, not 'day'"},
		{"{mechanism: lease, burst: 5, algorithm: sliding_log}", "burst is the depth of a token_bucket or leaky_bucket; the algorithm is sliding_log; also " +
			"mechanism: lease cannot be used with a sliding_log, which stores the time of each hit; sliding_window supports all mechanisms"},
		{"{algorithm: magic}", "algorithm must be one of fixed_window, sliding_window, sliding_log, token_bucket, leaky_bucket, in_flight, not 'magic'"},
		{"{mechanism: 5}", "mechanism must be one of owner, lease, approximate, static, quota, not '5'"},
		{"{durability: [a]}", "durability must be one of async, strict, memory, not '[a]'"},
		{"{degraded: never}", "degraded must be one of local_share, fail_open, fail_closed, not 'never'"},
		{"{degraded: [a]}", "degraded must be one of local_share, fail_open, fail_closed, not '[a]'"},
		{"{local_cap: 0}", "local_cap must be a whole number from 1 to 4294967295, not '0'"},
		{"{local_cap: 1.5}", "local_cap must be a whole number from 1 to 4294967295, not '1.5'"},
		{"{local_cap: '7'}", "local_cap must be a whole number from 1 to 4294967295, not '7'"},
		{"{local_cap: .nan}", "local_cap must be a whole number from 1 to 4294967295, not 'NaN'"},
		{"{shard_by: nope}", "shard_by names 'nope', which is not an entry key of the descriptor"},
		{"{shard_by: [k, k]}", "shard_by names 'k' twice"},
		{"{shard_by: []}", "shard_by must name an entry key"},
		{"{shard_by: [5]}", "shard_by must be entry keys, not '5'"},
		{"{shard_by: {a: b}}", "shard_by must be an entry key or a list of them, not 'map[a:b]'"},
		{"{zebra: 1, apple: 2, weight: 0}", "unknown key 'apple'; also weight must be a whole number from 1 to 4294967295, not '0'; also unknown key 'zebra'"},
	} {
		text := "domain: d\ndescriptors:\n- key: a\n  value: v\n  descriptors:\n  - key: k\n    rate_limit: {unit: day}\n    metadata: {keyward: " + row.yaml + "}\n"
		want := row.want
		if want != "" {
			const about = "error in metadata.keyward of 'd.a_v.k': "
			want = about + strings.ReplaceAll(want, "; also ", "\n"+about)
		}
		if got := faultTexts(Check(filesOf(text), Options{})); got != want {
			t.Errorf("%s:\n got %s\nwant %s", row.yaml, got, want)
		}
	}
}
