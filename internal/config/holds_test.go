package config

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
)

// TestHolds checks what the keys about holds set, read from a file and from a resource, and how they are shown.
func TestHolds(t *testing.T) {
	holds := func(change func(h *claim.HoldTerms)) *claim.HoldTerms {
		h := claim.HoldTerms{Reserve: 50, TTL: 10 * time.Minute, Max: 16384}
		change(&h)
		return &h
	}
	for _, row := range []struct {
		yaml string
		want Extension
		text string
	}{
		{"reserve: 50", Extension{Holds: holds(func(*claim.HoldTerms) {})}, "reserve 50, lapse keep, hold_ttl 10m"},
		{"reserve: 50, settle: marked, lapse: keep", Extension{Holds: holds(func(*claim.HoldTerms) {})}, "reserve 50, lapse keep, hold_ttl 10m"},
		{"reserve: 100, settle: addend, lapse: release, hold_ttl: 1s, holds: 3", Extension{Holds: holds(func(h *claim.HoldTerms) {
			*h = claim.HoldTerms{Reserve: 100, Settle: claim.SettleAddend, Lapse: claim.LapseRelease, TTL: time.Second, Max: 3}
		})}, "reserve 100, settle addend, lapse release, hold_ttl 1s, holds 3"},
		{"reserve: 50, settle: addend, lapse: keep, hold_ttl: 24h", Extension{Holds: holds(func(h *claim.HoldTerms) {
			h.Settle, h.TTL = claim.SettleAddend, 24*time.Hour
		})}, "reserve 50, settle addend, lapse keep, hold_ttl 24h"},
		{"algorithm: token_bucket, burst: 700, reserve: 700", Extension{Algorithm: limit.TokenBucket, Burst: 700,
			Holds: holds(func(h *claim.HoldTerms) { h.Reserve = 700 })}, "reserve 700, lapse keep, hold_ttl 10m"},
		{"all_or_nothing: true, once: true", Extension{AllOrNothing: true, Once: true}, "all_or_nothing, once"},
		{"all_or_nothing: false, once: false", Extension{}, ""},
		{"algorithm: in_flight, window: 5m", Extension{Algorithm: limit.InFlight, Window: 5 * time.Minute,
			Holds: &claim.HoldTerms{Reserve: 1, TTL: 5 * time.Minute, Max: 16384, Lapse: claim.LapseRelease}}, ""},
		{"algorithm: in_flight, window: 5m, holds: 16, all_or_nothing: true", Extension{Algorithm: limit.InFlight, Window: 5 * time.Minute, AllOrNothing: true,
			Holds: &claim.HoldTerms{Reserve: 1, TTL: 5 * time.Minute, Max: 16, Lapse: claim.LapseRelease}}, "holds 16, all_or_nothing"},
	} {
		rules := load(t, Options{}, settingYAML(100, row.yaml))
		resources, _ := rules.ToProto()
		back, err := FromProto(wire(t, resources), Options{})
		if err != nil {
			t.Fatal(err)
		}
		for from, r := range map[string]*Rules{"file": rules, "resource": back} {
			got := r.Rules()[0]
			if !reflect.DeepEqual(got.Extension, row.want) || got.Metadata != nil {
				t.Errorf("%s, from a %s: %+v, %+v, metadata %v\nwant %+v, %+v", row.yaml, from, got.Extension, got.Extension.Holds, got.Metadata,
					row.want, row.want.Holds)
			}
			if text := got.Extension.HoldSettings(); text != row.text {
				t.Errorf("%s is shown as %q, want %q", row.yaml, text, row.text)
			}
		}
	}
}

// TestHoldConflicts checks which keys exclude each other, all of them at once.
func TestHoldConflicts(t *testing.T) {
	const needs = " needs reserve, the hits of a hold whose request has none of its own"
	const flight = " cannot be used with algorithm: in_flight, whose hits come back when the request ends, and after window at the latest"
	owner := func(what, mechanism string) string {
		return what + " needs mechanism: owner: with " + mechanism + ", members admit hits without the owner, which alone has the holds of all requests"
	}
	const regions = " cannot be used with federation: other regions do not have the holds of this one"
	const fair = " cannot be used with fair: a hold that lapses has no tenant to give its hits back to"
	for _, row := range []struct {
		yaml string
		want []string
	}{
		{"reserve: 101", []string{"reserve 101 is above the limit of 100: no request that reserves it would be admitted"}},
		{"reserve: 5, algorithm: token_bucket, burst: 4", []string{"reserve 5 is above the limit of 4: no request that reserves it would be admitted"}},
		{"settle: addend, lapse: keep, hold_ttl: 5s, holds: 9", []string{"settle" + needs, "lapse" + needs, "hold_ttl" + needs, "holds" + needs}},
		{"settle: marked", []string{"settle" + needs}},
		{"reserve: 5, settle: addend", []string{"settle: addend needs lapse: without a mark, a request that ends without a cost settles nothing, so choose keep or release"}},
		{"reserve: 5, settle: addend, hold_ttl: 5s", []string{"settle: addend needs lapse: without a mark, a request that ends without a cost settles nothing, so choose keep or release"}},
		{"algorithm: in_flight", []string{"algorithm: in_flight needs a window, the longest time that a request may be in flight, like 10m"}},
		{"algorithm: in_flight, window: 5m, burst: 5", []string{"burst is the depth of a token_bucket or leaky_bucket; the algorithm is in_flight"}},
		{"algorithm: in_flight, reserve: 5", []string{"reserve cannot be used with algorithm: in_flight, whose requests hold the hits that they have",
			"algorithm: in_flight needs a window, the longest time that a request may be in flight, like 10m"}},
		{"algorithm: in_flight, window: 5m, lapse: keep, hold_ttl: 5s", []string{"lapse" + flight, "hold_ttl" + flight}},
		{"reserve: 5, mechanism: lease", []string{owner("reserve", "lease")}},
		{"reserve: 5, mechanism: approximate, epsilon: 5%", []string{owner("reserve", "approximate")}},
		{"once: true, mechanism: static", []string{owner("once", "static")}},
		{"all_or_nothing: true, mechanism: lease", []string{owner("all_or_nothing", "lease")}},
		{"algorithm: in_flight, window: 5m, mechanism: static", []string{owner("algorithm: in_flight", "static")}},
		{"reserve: 5, federation: {}", []string{"reserve" + regions}},
		{"reserve: 5, fair: {entry: k}", []string{"reserve" + fair}},
		{"all_or_nothing: true, fair: {entry: k}", []string{"all_or_nothing" + fair}},
		{"once: true, fair: {entry: k}", nil},
		{"reserve: 100, durability: strict, degraded: fail_closed", nil},
	} {
		var want []string
		for _, w := range row.want {
			want = append(want, "error in metadata.keyward of 'd.k': "+w)
		}
		if got := faultTexts(Check(filesOf(settingYAML(100, row.yaml)), Options{})); got != strings.Join(want, "\n") {
			t.Errorf("%s:\n got %s\nwant %s", row.yaml, got, strings.Join(want, "\n"))
		}
	}
	for keys, want := range map[string]string{
		"reserve: 5":                        "reserve cannot be used with unlimited: nothing is charged that could be given back",
		"algorithm: in_flight, window: 10s": "algorithm: in_flight cannot be used with unlimited: nothing is charged that could be given back",
	} {
		text := "domain: d\ndescriptors: [{key: k, rate_limit: {unlimited: true}, metadata: {keyward: {" + keys + "}}}]\n"
		if got := faultTexts(Check(filesOf(text), Options{})); got != "error in metadata.keyward of 'd.k': "+want {
			t.Errorf("unlimited, %s: %s", keys, got)
		}
	}
}

// TestBadHolds checks that each bad value is reported.
func TestBadHolds(t *testing.T) {
	for key, bad := range map[string]struct {
		values []string
		want   string
	}{
		"reserve":        {[]string{"0", "-1", "1.5", "4294967296", "text"}, "reserve must be a whole number from 1 to 4294967295, not '"},
		"settle":         {[]string{"5", "cost"}, "settle must be one of marked, addend, not '"},
		"lapse":          {[]string{"5", "charge"}, "lapse must be one of keep, release, not '"},
		"hold_ttl":       {[]string{"10", "999ms", "24h1s"}, "hold_ttl must be a duration from 1s to 24h, like 10s, not '"},
		"holds":          {[]string{"0", "16385"}, "holds must be a whole number from 1 to 16384, not '"},
		"all_or_nothing": {[]string{"1", "all"}, "all_or_nothing must be true or false, not '"},
		"once":           {[]string{"1", "text"}, "once must be true or false, not '"},
	} {
		for _, value := range bad.values {
			want := "error in metadata.keyward of 'd.k': " + bad.want + value + "'"
			if got := faultTexts(Check(filesOf(settingYAML(5, key+": "+value)), Options{})); got != want {
				t.Errorf("%s: %s\n got %s\nwant %s", key, value, got, want)
			}
		}
	}
}

// TestUnusedWithHolds checks that settings of leases have no effect on rules that are never lent.
func TestUnusedWithHolds(t *testing.T) {
	for keys, want := range map[string]string{
		"reserve: 5, lease_min: 9":                                  "lease_min, which reserve does not use",
		"algorithm: in_flight, window: 5m, sub_keys: 3":             "sub_keys, which algorithm: in_flight does not use",
		"algorithm: in_flight, window: 5m, degraded: fail_open":     "",
		"algorithm: in_flight, window: 5m, ttl: 5s, hot_factor: 50": "hot_factor, which algorithm: in_flight does not use|ttl, which algorithm: in_flight does not use",
	} {
		var texts []string
		for _, w := range Warnings(filesOf(settingYAML(100, keys)), load(t, Options{}, settingYAML(100, keys))) {
			texts = append(texts, w.Text)
		}
		for part := range strings.SplitSeq(want, "|") {
			if got := strings.Join(texts, "\n"); part != "" && !strings.Contains(got, part) || want == "" && got != "" {
				t.Errorf("%s: %s", keys, got)
			}
		}
	}
}
