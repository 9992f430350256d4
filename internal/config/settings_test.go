package config

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// settingYAML returns a file with one rule of the given amount, and Keyward's keys on one line each from line 7 on.
func settingYAML(amount uint32, extension string) string {
	text := fmt.Sprintf("domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: minute, requests_per_unit: %d}\n  metadata:\n    keyward:\n", amount)
	for key := range strings.SplitSeq(extension, ", ") {
		text += "      " + key + "\n"
	}
	return text
}

// TestSettings checks what each key sets, read from a file and from a resource.
func TestSettings(t *testing.T) {
	const approximate = "mechanism: approximate, epsilon: "
	drift := func(slack uint32, change func(x *Extension)) Extension {
		x := Extension{Mechanism: policy.Approximate, Epsilon: 0.01, Lease: &lease.Terms{Slack: slack}}
		if change != nil {
			change(&x)
		}
		return x
	}
	terms := func(k lease.Terms) Extension { return Extension{Lease: &k} }
	for _, row := range []struct {
		yaml   string
		amount uint32
		want   Extension
	}{
		{"mechanism: owner", 5, Extension{}},
		{"mechanism: lease", 5, Extension{Mechanism: policy.ByLease}},
		{"identity: known", 5, Extension{}},
		{"hot_factor: 65535", 5, Extension{HotFactor: 65535}},
		{"lease_min: 1, lease_max: 4294967295", 5, terms(lease.Terms{Min: 1, Max: 4294967295})},
		{"lease_min: 20000", 5, terms(lease.Terms{Min: 20000, Max: 20000})},
		{"lease_min: 10000", 5, terms(lease.Terms{Min: 10000})},
		{"lease_max: 3", 5, terms(lease.Terms{Min: 3, Max: 3})},
		{"lease_max: 10", 5, terms(lease.Terms{Max: 10})},
		{"ttl: 100ms", 5, terms(lease.Terms{TTL: 100 * time.Millisecond})},
		{"ttl: 1h", 5, terms(lease.Terms{TTL: time.Hour})},
		{"weight: 7, reclaim: ttl, audit: true", 5, terms(lease.Terms{Weight: 7, Reclaim: true, Audit: true})},
		{"reclaim: crash", 5, terms(lease.Terms{ReclaimCrash: true})},
		{"reclaim: none, dedicated: yes", 5, terms(lease.Terms{Dedicated: true})},
		{"sub_keys: 16", 5, terms(lease.Terms{SubKeys: 16})},
		{"low_watermark: 0.29, sync_interval: 1m", 5, terms(lease.Terms{Watermark: 29, Sync: time.Minute})},
		{"low_watermark: 1", 5, terms(lease.Terms{Watermark: 100})},
		{"low_watermark: 1%", 5, terms(lease.Terms{Watermark: 1})},
		{"low_watermark: {limit: 1%}", 5, terms(lease.Terms{Watermark: 1})},
		{"low_watermark: {local: 0.25}", 5, terms(lease.Terms{LocalWatermark: 25})},
		{"low_watermark: {local: 20%,limit: 10%}", 5, terms(lease.Terms{Watermark: 10, LocalWatermark: 20})},
		{"partition: quorum", 5, Extension{Partition: 3, Lease: &lease.Terms{Partition: 3}}},
		{"mechanism: static, algorithm: sliding_log", 5, Extension{Mechanism: policy.Static, Algorithm: limit.SlidingLog}},
		{approximate + "1%", 100, drift(1, nil)},
		{approximate + "0.01", 12345, drift(123, nil)},
		{approximate + "1.0%, identity: unknown", 12399, drift(30, func(x *Extension) { x.Unknown = true })},
		{approximate + "29%", 100, drift(29, func(x *Extension) { x.Epsilon = 0.29 })},
		{approximate + "0.013%", 1e6, drift(130, func(x *Extension) { x.Epsilon = 0.013 / 100 })},
		{approximate + "1", 4294967295, drift(4294967295, func(x *Extension) { x.Epsilon = 1 })},
		{approximate + "0.000000001", 1e9, drift(1, func(x *Extension) { x.Epsilon = 1e-9 })},
		{approximate + "1%, low_watermark: 30%, algorithm: token_bucket", 100, drift(1, func(x *Extension) {
			x.Lease.Watermark, x.Algorithm = 30, limit.TokenBucket
		})},
	} {
		rules := load(t, Options{}, settingYAML(row.amount, row.yaml))
		resources, _ := rules.ToProto()
		back, err := FromProto(wire(t, resources), Options{})
		if err != nil {
			t.Fatal(err)
		}
		for from, r := range map[string]*Rules{"file": rules, "resource": back} {
			if got := r.Rules()[0]; !reflect.DeepEqual(got.Extension, row.want) || got.Metadata != nil {
				t.Errorf("%s, from a %s: %+v, %+v, metadata %v\nwant %+v, %+v", row.yaml, from, got.Extension, got.Extension.Lease, got.Metadata,
					row.want, row.want.Lease)
			}
		}
	}
}

// TestBadSettings checks that each bad value is reported with its position, in a file and in a resource.
func TestBadSettings(t *testing.T) {
	for key, bad := range map[string]struct {
		values []string
		want   string
	}{
		"mechanism":     {[]string{"5", "leases", "''"}, "mechanism must be one of owner, lease, approximate, static, quota, not '%s'"},
		"epsilon":       {[]string{"0", "-0.1", "1.5", "101%", "0%", "'%'", "'1'", "1e-10", ".nan", "abc", "[a]", "inf%"}, "epsilon must be above 0 and at most 1, like 0.01 or 1%%, not '%s'"},
		"identity":      {[]string{"anonymous", "5"}, "identity must be one of known, unknown, not '%s'"},
		"partition":     {[]string{"5", "half"}, "partition must be one of share, available, quorum, not '%s'"},
		"low_watermark": {[]string{"0", "20", "0%", "0.5%", "0.205", "101%", "text"}, "low_watermark must be a whole percentage from 1%% to 100%%, like 0.2 or 20%%, not '%s'"},
		"sync_interval": {[]string{"2", "99ms", "61s", "0s"}, "sync_interval must be a duration from 100ms to 1m, like 10s, not '%s'"},
		"lease_min":     {[]string{"0", "-1", "1.5", "4294967296", "text"}, "lease_min must be a whole number from 1 to 4294967295, not '%s'"},
		"lease_max":     {[]string{"0"}, "lease_max must be a whole number from 1 to 4294967295, not '%s'"},
		"ttl":           {[]string{"10", "99ms", "1h0m1s", "-10s"}, "ttl must be a duration from 100ms to 1h, like 10s, not '%s'"},
		"reclaim":       {[]string{"always", "5", "true"}, "reclaim must be one of none, ttl, crash, not '%s'"},
		"weight":        {[]string{"0"}, "weight must be a whole number from 1 to 4294967295, not '%s'"},
		"hot_factor":    {[]string{"0", "65536"}, "hot_factor must be a whole number from 1 to 65535, not '%s'"},
		"sub_keys":      {[]string{"0", "17", "2.5"}, "sub_keys must be a whole number from 1 to 16, not '%s'"},
		"dedicated":     {[]string{"1", "owner"}, "dedicated must be true or false, not '%s'"},
		"audit":         {[]string{"1", "all"}, "audit must be true or false, not '%s'"},
	} {
		for _, value := range bad.values {
			shown := strings.Trim(strings.NewReplacer(".nan", "NaN", "''", "").Replace(value), "'")
			want := "error in metadata.keyward of 'd.k': " + fmt.Sprintf(bad.want, shown)
			report := Check(filesOf(settingYAML(5, key+": "+value)), Options{})
			if got := faultTexts(report); got != want {
				t.Errorf("%s: %s\n got %s\nwant %s", key, value, got, want)
			}
		}
	}
}

// TestBadMaps checks what is reported of keys with maps as values.
func TestBadMaps(t *testing.T) {
	for setting, want := range map[string]string{
		"low_watermark: {}":                     "low_watermark must be a percentage, or a map with the keys limit and local",
		"low_watermark: {slack: 1%}":            "low_watermark must be a percentage, or a map with the keys limit and local, not 'slack'",
		"low_watermark: {limit: 5%, local: 0%}": "low_watermark.local must be a whole percentage from 1% to 100%, like 0.2 or 20%, not '0%'",
		"identity: {}":                          "identity.entry must be an entry key of the descriptor, not '<nil>'",
		"identity: {entry: user}":               "identity.entry must be an entry key of the descriptor, not 'user'",
		"identity: {entry: k, factor: 1}":       "identity must be known, unknown, or a map with the keys entry, unknown and anonymous, not 'factor'",
		"identity: {entry: k, unknown: 101%}":   "identity.unknown must be from 0 to 1, like 0.25 or 25%, not '101%'",
		"identity: {entry: k, anonymous: [5]}":  "identity.anonymous must be a text or a list of texts, not '[5]'",
	} {
		want = "error in metadata.keyward of 'd.k': " + want
		if got := faultTexts(Check(filesOf(settingYAML(5, strings.ReplaceAll(setting, ", ", ","))), Options{})); got != want {
			t.Errorf("%s\n got %s\nwant %s", setting, got, want)
		}
	}
}

// TestIdentity checks which slack callers have: those that the entry names all of it, others their part, and callers
// without slack are decided by the owner.
func TestIdentity(t *testing.T) {
	for _, row := range []struct {
		identity, caller string
		slack            uint32
	}{
		{"{entry: k}", "alice", 100},
		{"{entry: k}", "", 25},
		{"{entry: k, unknown: 10%}", "", 10},
		{"{entry: k, unknown: 0.29}", "", 29},
		{"{entry: k, unknown: 10%}", "none", 100},
		{"{entry: k, unknown: 10%, anonymous: none}", "none", 10},
		{"{entry: k, unknown: 10%, anonymous: [none, '-']}", "-", 10},
		{"{entry: k, unknown: 1}", "", 100},
		{"{entry: k, unknown: 0}", "", 0},
		{"{entry: k, unknown: 0}", "alice", 100},
	} {
		yaml := "mechanism: approximate, epsilon: 10%, identity: " + strings.ReplaceAll(row.identity, ", ", ",")
		rules := load(t, Options{}, settingYAML(1000, yaml))
		var m Match
		rules.Match("d", []Entry{{Key: "k", Value: row.caller}}, nil, &m)
		switch x := m.Extension(); {
		case row.slack == 0:
			if x.Mechanism != policy.ByOwner || x.Lease != nil {
				t.Errorf("%s, %q: %+v", row.identity, row.caller, x)
			}
		case x.Mechanism != policy.Approximate || x.Lease.Slack != row.slack:
			t.Errorf("%s, %q: %v with a slack of %d, want %d", row.identity, row.caller, x.Mechanism, x.Lease.Slack, row.slack)
		}
		rules.Match("d", []Entry{{Key: "k", Value: row.caller}}, &Override{Limit: 999, Unit: m.Unit}, &m)
		if x := m.Extension(); x.Mechanism != policy.ByOwner {
			t.Errorf("%s, %q, with a lower limit of its own: %v", row.identity, row.caller, x.Mechanism)
		}
	}
}

// faultTexts returns a line for each fault.
func faultTexts(r CheckResult) string {
	var lines []string
	for _, f := range r.Faults {
		lines = append(lines, f.Text)
	}
	return strings.Join(lines, "\n")
}

// TestSettingsTogether checks which keys exclude each other, and which values a cluster's size does not allow.
func TestSettingsTogether(t *testing.T) {
	for _, row := range []struct {
		yaml            string
		amount, members int
		want            string
	}{
		{"mechanism: lease, algorithm: sliding_log", 100, 0, "mechanism: lease cannot be used with a sliding_log, which stores the time of each hit; sliding_window supports all mechanisms"},
		{"mechanism: approximate, epsilon: 1%, algorithm: sliding_log", 100, 0, "mechanism: approximate cannot be used with a sliding_log, which stores the time of each hit; sliding_window supports all mechanisms"},
		{"mechanism: lease, algorithm: sliding_window", 100, 0, ""},
		{"mechanism: lease, algorithm: leaky_bucket, durability: strict", 100, 0, ""},
		{"mechanism: approximate", 100, 0, "mechanism: approximate needs an epsilon, the fraction of the limit that may be admitted above it, like 1%"},
		{"mechanism: approximate, durability: strict", 100, 0, "mechanism: approximate needs an epsilon, the fraction of the limit that may be admitted above it, like 1%\n" +
			"error in metadata.keyward of 'd.k': durability: strict contradicts mechanism: approximate, which admits hits before it reports them to the owner"},
		{"lease_min: 11, lease_max: 10", 100, 0, "lease_min 11 is above lease_max 10"},
		{"lease_min: 10, lease_max: 10", 100, 0, ""},
		{"mechanism: approximate, epsilon: 1%", 99, 0, "epsilon 1% of 99 hits is less than one hit: raise epsilon, or use mechanism: lease"},
		{"mechanism: approximate, epsilon: 1%", 100, 1, ""},
		{"mechanism: approximate, epsilon: 1%", 499, 5, "epsilon 1% of 499 hits is 4, less than one for each of 5 members: raise epsilon, or use mechanism: lease"},
		{"mechanism: approximate, epsilon: 1%", 500, 5, ""},
		{"mechanism: approximate, epsilon: 0.5%, identity: unknown", 2000, 3,
			"epsilon 0.5% of 2000 hits, a quarter of it for identity: unknown, is 2, less than one for each of 3 members: raise epsilon, or use mechanism: lease"},
		{"mechanism: owner, epsilon: 1%", 5, 9, ""},
	} {
		text := settingYAML(uint32(row.amount), row.yaml)
		report := Check(filesOf(text), Options{Members: row.members})
		if row.want == "" {
			if len(report.Faults) > 0 {
				t.Errorf("%s: %v", row.yaml, report.Faults)
			}
			continue
		}
		want := "error in metadata.keyward of 'd.k': " + row.want
		if got := faultTexts(report); got != want {
			t.Errorf("%s of %d at %d members:\n got %s\nwant %s", row.yaml, row.amount, row.members, got, want)
		}
	}
	unlimited := "domain: d\ndescriptors: [{key: k, rate_limit: {unlimited: true}, metadata: {keyward: {mechanism: approximate, epsilon: 1%}}}]\n"
	if _, err := Load(filesOf(unlimited), Options{}); err != nil {
		t.Errorf("nothing can drift from an unlimited rule: %v", err)
	}
}

// TestSettingsOfResource checks that a resource is rejected like a file, under its name.
func TestSettingsOfResource(t *testing.T) {
	resources, _ := load(t, Options{}, settingYAML(100, "mechanism: approximate, epsilon: 1%")).ToProto()
	_, err := FromProto(resources, Options{Members: 2})
	if want := "d: error in metadata.keyward of 'd.k': epsilon 1% of 100 hits is 1, less than one for each of 2 members: raise epsilon, or use mechanism: lease"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, err := FromProto([]*rlsconf.RateLimitConfig{resources[0]}, Options{}); err != nil {
		t.Error(err)
	}
}

// TestSettingsOfOverride checks that an override below the rule's limit does not use the rule's slack.
func TestSettingsOfOverride(t *testing.T) {
	rules := load(t, Options{}, settingYAML(100, "mechanism: approximate, epsilon: 10%, hot_factor: 3"))
	for amount, want := range map[uint32]policy.Mechanism{99: policy.ByOwner, 100: policy.Approximate, 101: policy.Approximate} {
		var m Match
		rules.Match("d", []Entry{{"k", "v"}}, &Override{amount, Minute}, &m)
		x := m.Extension()
		terms := rules.Rules()[0].Extension.Lease
		if want == policy.ByOwner {
			terms = nil // a slack would make the key approximate
		}
		if x.Mechanism != want || x.HotFactor != 3 || x.Lease != terms {
			t.Errorf("%d hits: %+v", amount, x)
		}
	}
}

// TestSettingsManual checks that docs/rules.md has a row for each key, with its values and default.
func TestSettingsManual(t *testing.T) {
	page, err := os.ReadFile("../../docs/rules.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range settings() {
		if row := fmt.Sprintf("\n| `%s` | %s | %s | ", k.key, k.values, k.unset); !strings.Contains(string(page), row) {
			t.Errorf("docs/rules.md has no row that begins %s", row[1:])
		}
	}
}

// FuzzSettings checks that no value of any key makes the loader panic, and that accepted values are consistent.
func FuzzSettings(f *testing.F) {
	all := settings()
	for i := range all {
		for _, text := range []string{"ttl", "1%", "10s", "owner", "-1", "1e300%"} {
			f.Add(uint8(i), text, 1.5, true, uint32(100), uint8(3))
		}
	}
	f.Fuzz(func(t *testing.T, key uint8, text string, n float64, b bool, amount uint32, members uint8) {
		path := []*node{{level: Level{Key: "k"}}}
		for _, v := range []any{text, n, b, nil, []any{text}, map[string]any{text: n}} {
			m := map[string]any{"mechanism": "approximate", "epsilon": 0.5, all[int(key)%len(all)].key: v}
			x, faults := parseExtension(map[string]any{metadataKey: m}, path)
			if len(faults) > 0 {
				continue
			}
			fault := x.compile(amount, int(members))
			k := x.Lease
			switch {
			case k == nil:
			case k.Watermark > 100, k.LocalWatermark > 100, x.UnknownSlack() > k.Slack, k.SubKeys > 16, k.TTL < 0 || k.TTL > time.Hour, k.Sync < 0 || k.Sync > time.Minute, k.Max > 0 && k.Min > k.Max:
				t.Fatalf("%v: %+v", m, k)
			case float64(k.Slack) > float64(amount)*x.Epsilon*(1+1e-9)+1e-9*float64(amount):
				t.Fatalf("%v of %d: slack %d", m, amount, k.Slack)
			}
			if drifts := x.Mechanism == policy.Approximate; (fault != "") != (drifts && k.Slack < uint32(members)) && members > 0 {
				t.Fatalf("%v of %d at %d: %+v, %s", m, amount, members, k, fault)
			}
		}
	})
}
