package rulecheck

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/keyward/keyward/internal/config"
)

// resets returns the changes that give rules new counters.
func resets(old, rules *config.Rules) []config.Diagnostic {
	return slices.DeleteFunc(Changes(old, rules), func(d config.Diagnostic) bool { return d.Kind != CountsReset })
}

// TestResetsByExtension checks that a different algorithm or window gives a rule new counters, and that the same
// settings written differently do not.
func TestResetsByExtension(t *testing.T) {
	for _, row := range []struct{ old, fresh, want string }{
		{"window: 24h", "durability: strict", ""},
		{"algorithm: token_bucket, burst: 5", "algorithm: token_bucket, burst: 50", ""},
		{"window: 10s", "window: 20s", "because its window changes: up to 10 hits"},
		{"algorithm: sliding_log", "algorithm: fixed_window", "because its algorithm changes: up to 10 hits"},
		{"algorithm: token_bucket, burst: 7", "algorithm: leaky_bucket", "because its algorithm changes: up to 22 hits"},
		{"mechanism: static", "mechanism: owner", "because its mechanism changes: up to 10 hits"},
		{"mechanism: lease", "mechanism: owner", ""},
		{"durability: async", "fair: {entry: k}", "because its fair changes: up to 10 hits"},
		{"fair: {entry: k}", "fair: {entry: k}, durability: strict", ""},
		{"shard_by: k", "window: 24h", ""}, // it is placed by k anyway
	} {
		got := resets(load(t, extendedYAML(row.old)), load(t, extendedYAML(row.fresh)))
		if (len(got) == 1) != (row.want != "") || row.want != "" && !strings.Contains(got[0].Text, row.want) {
			t.Errorf("from {%s} to {%s}: %v", row.old, row.fresh, got)
		}
	}
}

func TestResets(t *testing.T) {
	const text = "domain: d\ndescriptors:\n- key: a\n  descriptors:\n  - {key: b, value: 'x*', rate_limit: {unit: day, requests_per_unit: 5}}\n"
	old := load(t, text)
	for change, want := range map[[2]string]string{
		{"unit: 5", "unit: 6"}:                           "",
		{"'x*'", "'y*'"}:                                 "",
		{"day", "hour"}:                                  "unit",
		{"'x*'", "'x*', share_threshold: true"}:          "share_threshold",
		{"}}", "}, metadata: {keyward: {shard_by: b}}}"}: "shard_by",
	} {
		got := resets(old, load(t, strings.Replace(text, change[0], change[1], 1)))
		if (len(got) == 1) != (want != "") || want != "" && !strings.Contains(got[0].Text, "because its "+want+" changes: up to 10 hits") {
			t.Errorf("%v: %v, want %q", change, got, want)
		}
	}
}

// TestChanges covers every kind of change except those that reset counters.
func TestChanges(t *testing.T) {
	at := func(key, limit, metadata string) string {
		return "- {key: " + key + ", rate_limit: {" + limit + "}, metadata: {keyward: {" + metadata + "}}}\n"
	}
	head := "domain: d\ndescriptors:\n"
	old := load(t, head+at("same", "unit: day, requests_per_unit: 5", "")+at("less", "unit: day, requests_per_unit: 5", "")+
		at("gone", "unit: hour, requests_per_unit: 7", "")+at("open", "unit: day, requests_per_unit: 5", "")+
		at("deep", "unit: day, requests_per_unit: 5", "algorithm: token_bucket")+at("way", "unit: day, requests_per_unit: 5", "durability: strict"))
	fresh := load(t, head+at("same", "unit: day, requests_per_unit: 5", "")+at("less", "unit: day, requests_per_unit: 4", "")+
		at("new", "unit: second, requests_per_unit: 9", "")+at("open", "unlimited: true", "")+
		at("deep", "unit: day, requests_per_unit: 5", "algorithm: token_bucket, burst: 9")+
		"- {key: way, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 5}, metadata: {keyward: {degraded: fail_open, mechanism: lease}}}\n")
	var got []string
	for _, c := range Changes(old, fresh) {
		got = append(got, fmt.Sprintf("%s %d: %s", c.Kind, c.Line, c.Text))
	}
	want := []string{
		"amount 4: 'd.less' admits 4 hits per day instead of 5 hits per day; the new limit applies to the existing counts",
		"added 5: 'd.new' is new: 9 hits per second",
		"amount 6: 'd.open' admits any number of hits instead of 5 hits per day; the new limit applies to the existing counts",
		"amount 7: 'd.deep' admits 5 hits per day, 9 at once instead of 5 hits per day; the new limit applies to the existing counts",
		"way 8: 'd.way' changes shadow_mode from false to true",
		"way 8: 'd.way' changes durability from strict to async",
		"way 8: 'd.way' changes degraded from local_share to fail_open",
		"way 8: 'd.way' changes mechanism from owner to lease",
		"removed 5: 'd.gone' is removed (7 hits per hour): another rule limits its requests, or none does",
	}
	if !slices.Equal(got, want) {
		t.Errorf("\n got %s\nwant %s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if same := Changes(old, old); len(same) != 0 {
		t.Errorf("the same rules: %v", same)
	}
}
