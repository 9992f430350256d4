package config

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

func fixture(t testing.TB, names ...string) *Rules {
	t.Helper()
	var files []File
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, File{name, content})
	}
	r, err := Load(files, Options{Cluster: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// entriesOf parses "key=value, key=value".
func entriesOf(text string) []Entry {
	var entries []Entry
	for pair := range strings.SplitSeq(text, ", ") {
		key, value, _ := strings.Cut(pair, "=")
		entries = append(entries, Entry{key, value})
	}
	return entries
}

func TestMatch(t *testing.T) {
	rules := fixture(t, "shop.yaml", "wild.yaml")
	for _, row := range []struct {
		domain, entries string
		limit           uint32 // 0: no rule
		unit            Unit
		stat, owner     string
	}{
		{"shop", "plan=silver", 0, 0, "", ""},
		{"shop", "plan=gold", 0, 0, "", ""},
		{"shop", "user=owner, sub=x", 0, 0, "", ""},
		{"shop", "plan=gold, action=look", 5, Second, "shop.plan_gold.action", "look"},
		{"shop", "plan=gold, action=buy", 10, Second, "shop.plan_gold.action_buy", "shop|plan=gold|action=buy"},
		{"shop", "user=ann", 20, Minute, "shop.user", "ann"},
		{"shop", "user=", 20, Minute, "shop.user", ""},
		{"shop", "user=robot", 30, Minute, "shop.user_robot", "shop|user=robot"},
		{"shop", "user=owner", 0, 0, "", ""},
		{"shop", "country=fr", 1, Hour, "shop.country", "fr"},
		{"shop", "coupon=x", 1, Day, "shop.coupon", "x"},
		{"shop", "depth=both", 15, Day, "shop.depth_both", "shop|depth=both"},
		{"shop", "depth=both, more=there", 25, Day, "shop.depth_both.more_there", "shop|depth=both|more=there"},
		{"shop", "depth=both, more=none", 0, 0, "", ""},
		{"shop", "coupon=x, more=y", 0, 0, "", ""},
		{"shop", "detail=abc", 70, Minute, "shop.detail_abc", "abc"},
		{"shop", "metric=a, leaf=b", 71, Minute, "shop.metric_a.leaf", "a"},
		{"shop", "quiet=1", 2, Week, "shop.quiet", "1"},

		{"wild", "end=foo1", 1, Minute, "wild.end_foo*", "foo1"},
		{"wild", "end=foo", 1, Minute, "wild.end_foo*", "foo"},
		{"wild", "end=fo", 0, 0, "", ""},
		{"wild", "plain=foo1", 0, 0, "", ""},
		{"wild", "mid=barb", 3, Minute, "wild.mid_bar*b", "barb"},
		{"wild", "mid=bar-and-b", 3, Minute, "wild.mid_bar*b", "bar-and-b"},
		{"wild", "mid=bara", 0, 0, "", ""},
		{"wild", "mid=xbarb", 0, 0, "", ""},
		{"wild", "mid=ba", 0, 0, "", ""},
		{"wild", "many=foo1bar2baz", 4, Minute, "wild.many_foo*bar*baz", "foo1bar2baz"},
		{"wild", "many=foobarbaz", 4, Minute, "wild.many_foo*bar*baz", "foobarbaz"},
		{"wild", "many=foobaz", 0, 0, "", ""},
		{"wild", "many=foobabaz", 0, 0, "", ""},
		{"wild", "nested=one, end=goods", 5, Minute, "wild.nested_one.end_goo*", "goods"},
		{"wild", "order=abcd", 6, Minute, "wild.order_a*", "abcd"},
		{"wild", "order=abc", 8, Minute, "wild.order_abc", "wild|order=abc"},
		{"wild", "order=b", 9, Minute, "wild.order", "b"},
		{"wild", "path/x=v", 10, Minute, "wild.path/x_path*", "v"},
		{"wild", "star=route/*", 11, Minute, "wild.star_route/*", "route/*"},
		{"wild", "vtm=xyz", 12, Minute, "wild.vtm_xyz", "xyz"},
		{"wild", "back=b, leaf=1", 0, 0, "", ""},
		{"wild", "back=c, leaf=1", 13, Minute, "wild.back.leaf", "c"},

		{"wild", "files=files/a.pdf", 20, Hour, "wild.files_files/*", "files/*"},
		{"wild", "files=files/own", 21, Hour, "wild.files_files/own", "wild|files=files/own"},
		{"wild", "tenant=t1prod, who=ann", 22, Hour, "wild.tenant_t*prod.who", "t*prod"},
		{"wild", "tenant=t1prod, files=v92", 23, Hour, "wild.tenant_t*prod.files_v*2", "t*prod"},
		{"wild", "tenant=t1prod, seen=ann", 24, Hour, "wild.tenant_t*prod.seen_ann", "t*prod"},
		{"wild", "either=p1, either=q1", 25, Hour, "wild.either_p*.either_q*", "p1"},
	} {
		t.Run(row.domain+" "+row.entries, func(t *testing.T) {
			var m Match
			entries := entriesOf(row.entries)
			rules.Match(row.domain, entries, nil, &m)
			if row.limit == 0 {
				if m.Kind != NoRule || m.Rule != nil {
					t.Errorf("kind %d, want none", m.Kind)
				}
				return
			}
			if m.Kind != Limited || m.Limit.Limit != row.limit || m.Unit != row.unit || m.Limit.Window != row.unit.Window() {
				t.Fatalf("kind %d, limit %d a %s; want %d a %s", m.Kind, m.Limit.Limit, m.Unit, row.limit, row.unit)
			}
			if got := string(rules.AppendStatKey(nil, row.domain, entries, &m)); got != row.stat {
				t.Errorf("statistics' key %q, want %q", got, row.stat)
			}
			if m.Static && m.Rule.FullKey != row.stat {
				t.Errorf("not static: %q", m.Rule.FullKey)
			}
			if got := string(rules.AppendOwnerString(nil, row.domain, entries, &m)); got != row.owner {
				t.Errorf("owner string %q, want %q", got, row.owner)
			}
		})
	}
}

func TestMatchKinds(t *testing.T) {
	rules := fixture(t, "shop.yaml")
	for _, row := range []struct {
		domain   string
		entries  []Entry
		override *Override
		want     MatchKind
	}{
		{"nowhere", []Entry{{"user", "x"}}, nil, NoDomain},
		{"nowhere", []Entry{{"user", "x"}}, &Override{1, Day}, NoDomain},
		{"nowhere", []Entry{{"user", "x"}}, &Override{1, UnitUnknown}, NoDomain},
		{"shop", nil, nil, NoRule},
		{"shop", nil, &Override{1, Day}, Overridden},
		{"shop", []Entry{{"user", "owner"}}, &Override{1, Week}, Overridden},
		{"shop", []Entry{{"staff", "x"}}, nil, Unlimited},
		{"shop", []Entry{{"staff", "x"}}, &Override{1, Second}, Overridden},
		{"shop", []Entry{{"user", "x"}}, &Override{1, UnitUnknown}, BadUnit},
		{"shop", []Entry{{"user", "x"}}, &Override{1, 8}, BadUnit},
		{"shop", []Entry{{"user", "x"}}, &Override{1, -1}, BadUnit},
	} {
		var m Match
		rules.Match(row.domain, row.entries, row.override, &m)
		if m.Kind != row.want || (m.Rule != nil) != (row.want == Unlimited) {
			t.Errorf("%+v: kind %d, want %d", row, m.Kind, row.want)
		}
	}
}

func TestRuleOfMatch(t *testing.T) {
	rules := fixture(t, "shop.yaml")
	var m Match
	rules.Match("shop", []Entry{{"quiet", "1"}}, nil, &m)
	r := m.Rule
	if !r.Shadow || !r.Quota || len(r.Replaces) != 1 || r.Replaces[0] != "coupons" || r.Extension.Degraded != policy.FailOpen || r.Extension.LocalCap != 7 {
		t.Errorf("%+v", r)
	}
	if got := r.Metadata.AsMap(); len(got) != 1 || got["team"] != "checkout" {
		t.Errorf("metadata %v: must be the user's alone", got)
	}
	if rules.Rules()[r.Index] != r {
		t.Error("Index does not find the rule")
	}
	if r.File != "shop.yaml" || r.Line != 40 {
		t.Errorf("%s:%d", r.File, r.Line)
	}
	rules.Match("shop", []Entry{{"coupon", "1"}}, nil, &m)
	if m.Rule.Name != "coupons" || m.Rule.Metadata != nil {
		t.Errorf("%+v", m.Rule)
	}
}

// TestOverride checks that an override counts raw values, and shares the rule's counter if unit and values are the
// same.
func TestOverride(t *testing.T) {
	rules := fixture(t, "shop.yaml", "wild.yaml")
	for _, row := range []struct {
		domain, entries string
		unit            Unit
		same            bool // same counter as the rule
		stat, owner     string
	}{
		{"shop", "user=ann", Minute, true, "shop.user_ann", "ann"},
		{"shop", "user=ann", Hour, false, "shop.user_ann", "ann"},
		{"shop", "plan=gold, action=look", Second, true, "shop.plan_gold.action_look", "look"},
		{"shop", "user=robot", Minute, true, "shop.user_robot", "shop|user=robot"},
		{"wild", "files=files/a", Hour, false, "wild.files_files/a", "files/a"},
		{"wild", "end=foo1", Minute, true, "wild.end_foo1", "foo1"},
		{"shop", "zzz=, yyy=v", Minute, false, "shop.zzz.yyy_v", "v"},
		{"shop", "zzz=, yyy=", Minute, false, "shop.zzz.yyy", "shop|zzz=|yyy="},
	} {
		t.Run(row.domain+" "+row.entries, func(t *testing.T) {
			var m, n, plain Match
			entries := entriesOf(row.entries)
			rules.Match(row.domain, entries, &Override{10, row.unit}, &m)
			rules.Match(row.domain, entries, &Override{99, row.unit}, &n)
			rules.Match(row.domain, entries, nil, &plain)
			if m.Kind != Overridden || m.Rule != nil || m.Limit.Limit != 10 || m.Unit != row.unit {
				t.Fatalf("%+v", m)
			}
			if m.Digest != n.Digest {
				t.Error("two amounts of one unit have two counters")
			}
			if got := m.Digest == plain.Digest; got != row.same {
				t.Errorf("the rule's counter: %t, want %t", got, row.same)
			}
			if got := string(rules.AppendStatKey(nil, row.domain, entries, &m)); got != row.stat {
				t.Errorf("statistics' key %q, want %q", got, row.stat)
			}
			if got := string(rules.AppendOwnerString(nil, row.domain, entries, &m)); got != row.owner {
				t.Errorf("owner string %q, want %q", got, row.owner)
			}
		})
	}
}

func TestLongAndOddValues(t *testing.T) {
	rules := fixture(t, "shop.yaml", "wild.yaml")
	var m, n Match
	long := strings.Repeat("v", 1<<16)
	rules.Match("shop", []Entry{{"user", long}}, nil, &m)
	rules.Match("shop", []Entry{{"user", long + "w"}}, nil, &n)
	if m.Kind != Limited || n.Kind != Limited || m.Digest == n.Digest || m.Owner == n.Owner {
		t.Error("long values")
	}
	rules.Match("wild", []Entry{{"mid", "bar\xff\x00" + long + "b"}}, nil, &m)
	if m.Kind != Limited || m.Rule.FullKey != "wild.mid_bar*b" {
		t.Error("bytes that are no text")
	}
}

func matchCases() map[string]struct {
	domain, entries string
	override        *Override
} {
	return map[string]struct {
		domain, entries string
		override        *Override
	}{
		"plain":           {"shop", "user=ann", nil},
		"nested":          {"shop", "plan=gold, action=look-at-the-goods", nil},
		"wildcard":        {"wild", "many=foo1bar2baz", nil},
		"shared":          {"wild", "tenant=t1prod, files=v92", nil},
		"fixed":           {"shop", "plan=gold, action=buy", nil},
		"override":        {"shop", "plan=gold, action=look", &Override{10, Hour}},
		"no rule":         {"shop", "zzz=1, yyy=2", nil},
		"unknown":         {"nowhere", "zzz=1, yyy=2", nil},
		"norule override": {"shop", "zzz=, yyy=", &Override{10, Hour}},
	}
}

func TestMatchDoesNotAllocate(t *testing.T) {
	rules := fixture(t, "shop.yaml", "wild.yaml")
	for name, c := range matchCases() {
		entries, m, buf := entriesOf(c.entries), Match{}, make([]byte, 0, 256)
		if n := testing.AllocsPerRun(100, func() {
			rules.Match(c.domain, entries, c.override, &m)
			if m.Rule != nil || m.Kind == Overridden {
				buf = rules.AppendStatKey(buf[:0], c.domain, entries, &m)
				buf = rules.AppendOwnerString(buf[:0], c.domain, entries, &m)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkMatch(b *testing.B) {
	rules := fixture(b, "shop.yaml", "wild.yaml")
	for name, c := range matchCases() {
		b.Run(strings.ReplaceAll(name, " ", "-"), func(b *testing.B) {
			b.ReportAllocs()
			entries, m := entriesOf(c.entries), Match{}
			for b.Loop() {
				rules.Match(c.domain, entries, c.override, &m)
			}
		})
	}
}

// BenchmarkManyRules matches one of ten thousand values, and one of a thousand wildcards.
func BenchmarkManyRules(b *testing.B) {
	var text bytes.Buffer
	text.WriteString("domain: d\ndescriptors:\n")
	for i := range 10000 {
		fmt.Fprintf(&text, "- {key: k, value: v%d, rate_limit: {unit: day, requests_per_unit: 1}}\n", i)
	}
	for i := range 1000 {
		fmt.Fprintf(&text, "- {key: k, value: 'w%d/*', rate_limit: {unit: day, requests_per_unit: 1}}\n", i)
	}
	rules := load(b, Options{}, text.String())
	for _, value := range []string{"v7777", "w777/x"} {
		b.Run(value[:1], func(b *testing.B) {
			entries, m := []Entry{{"k", value}}, Match{}
			for b.Loop() {
				rules.Match("d", entries, nil, &m)
			}
		})
	}
}

// TestOverrideOfAWay checks that an override replaces an amount and a unit, and nothing in metadata.keyward: with the
// rule's unit both use one counter.
func TestOverrideOfAWay(t *testing.T) {
	const text = `domain: d
descriptors:
- key: k
  rate_limit: {unit: minute, requests_per_unit: 10}
  metadata: {keyward: {algorithm: token_bucket, window: 20s, burst: 25, durability: strict, degraded: fail_closed}}
- key: l
  rate_limit: {unlimited: true}
  metadata: {keyward: {algorithm: token_bucket, window: 20s, burst: 25, durability: strict}}
`
	rules := load(t, Options{}, text)
	bucket := func(n, burst uint32, w time.Duration) limit.Rule {
		return limit.Rule{Window: w, Limit: n, Burst: burst, Algorithm: limit.TokenBucket}
	}
	for _, row := range []struct {
		key      string
		override *Override
		want     limit.Rule
		unit     Unit
		times    uint32
		same     bool // same counter as the rule
	}{
		{"k", nil, bucket(10, 25, 20*time.Second), Second, 20, true},
		{"k", &Override{100, Minute}, bucket(100, 250, 20*time.Second), Second, 20, true},
		{"k", &Override{1, Minute}, bucket(1, 2, 20*time.Second), Second, 20, true},
		{"k", &Override{0, Minute}, bucket(0, 1, 20*time.Second), Second, 20, true},
		{"k", &Override{math.MaxUint32, Minute}, bucket(math.MaxUint32, math.MaxUint32, 20*time.Second), Second, 20, true},
		{"k", &Override{10, Hour}, bucket(10, 25, time.Hour), Hour, 1, false},
		{"l", &Override{10, Hour}, limit.Rule{Window: time.Hour, Limit: 10}, Hour, 1, false},
		{"m", &Override{10, Hour}, limit.Rule{Window: time.Hour, Limit: 10}, Hour, 1, false},
	} {
		var plain, m Match
		entries := []Entry{{row.key, "v"}}
		rules.Match("d", entries, nil, &plain)
		rules.Match("d", entries, row.override, &m)
		if m.Limit != row.want || m.Unit != row.unit || m.Times != row.times || (m.Digest == plain.Digest) != row.same {
			t.Errorf("%s under %v: %+v by %d %v, same counter %t", row.key, row.override, m.Limit, m.Times, m.Unit, m.Digest == plain.Digest)
		}
		if x := m.Extension(); x.Strict != (row.key != "m") || (x.Degraded == policy.FailClosed) != (row.key == "k") {
			t.Errorf("%s under %v: %+v", row.key, row.override, x)
		}
	}
}
