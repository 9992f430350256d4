package config

import (
	"fmt"
	"strings"
	"testing"
)

const traced = `domain: shop
descriptors:
  - key: plan
    descriptors:
      - {key: user, rate_limit: {unit: minute, requests_per_unit: 10}}
  - key: plan
    value: gold*
    rate_limit: {unit: day, requests_per_unit: 7}
  - key: plan
    value: g*
  - key: plan
    value: golden
    rate_limit: {unlimited: true}
  - key: other
`

// TestTrace checks the explanation of a match: which descriptors matched an entry, which did not and why, and where it
// ended.
func TestTrace(t *testing.T) {
	rules := load(t, Options{}, traced)
	for _, row := range []struct{ domain, descriptor, want string }{
		{"shop", "plan=silver user=bob", `plan=silver: plan@3 it matches any value; plan=gold*@6 its wildcard does not match; plan=g*@9 its wildcard does not match; plan=golden@11 it has another value; +1
user=bob: user@5 it matches any value
The rule 'shop.plan.user' (f0.yaml:5) limits it: 10 hits per minute.`},
		{"shop", "plan=gold-7", `plan=gold-7: plan=gold*@6 its wildcard matches; plan@3 it matches any value, but 'plan_gold*' takes precedence; plan=g*@9 its wildcard matches, but 'plan_gold*' comes first; plan=golden@11 it has another value; +1
The rule 'shop.plan_gold*' (f0.yaml:6) limits it: 7 hits per day.`},
		{"shop", "plan=golden", `plan=golden: plan=golden@11 it has this value; plan@3 it matches any value, but 'plan_golden' takes precedence; plan=gold*@6 its wildcard matches, but 'plan_golden' has exactly this value, which takes precedence; plan=g*@9 its wildcard matches, but 'plan_golden' has exactly this value, which takes precedence; +1
The rule 'shop.plan_golden' (f0.yaml:11) is unlimited.`},
		{"shop", "plan=gold user=bob", `plan=gold: plan=gold*@6 its wildcard matches; plan@3 it matches any value, but 'plan_gold*' takes precedence; plan=g*@9 its wildcard matches, but 'plan_gold*' comes first; plan=golden@11 it has another value; +1
user=bob: none
No descriptor under 'plan=gold*' (f0.yaml:6) matches user=bob, so nothing limits it. The match does not backtrack to other descriptors.`},
		{"shop", "plan=silver", `plan=silver: plan@3 it matches any value; plan=gold*@6 its wildcard does not match; plan=g*@9 its wildcard does not match; plan=golden@11 it has another value; +1
It ends at the descriptor 'plan' (f0.yaml:3), which has no rate_limit. Only descriptors with more entries are limited there.`},
		{"shop", "user=bob", `user=bob: none; +5
No descriptor under the domain matches user=bob, so nothing limits it. The match does not backtrack to other descriptors.`},
		{"shop", "", "The descriptor is empty, so nothing limits it."},
		{"shoop", "user=bob", "No rules are configured for the domain 'shoop', so nothing limits it. Configured domains: shop."},
	} {
		if got := traceText(rules.Trace(row.domain, entriesOfText(row.descriptor))); got != row.want {
			t.Errorf("%s %s\n got %s\nwant %s", row.domain, row.descriptor, got, row.want)
		}
	}
}

func entriesOfText(text string) (entries []Entry) {
	for _, pair := range strings.Fields(text) {
		k, v, _ := strings.Cut(pair, "=")
		entries = append(entries, Entry{k, v})
	}
	return entries
}

func traceText(t Trace) string {
	var b strings.Builder
	for _, s := range t.Steps {
		fmt.Fprintf(&b, "%s=%s: ", s.Entry.Key, s.Entry.Value)
		if s.Taken == nil {
			b.WriteString("none")
		} else {
			fmt.Fprintf(&b, "%s@%d %s", s.Taken, s.Taken.Line, s.Taken.Why)
		}
		for _, p := range s.Passed {
			fmt.Fprintf(&b, "; %s@%d %s", p, p.Line, p.Why)
		}
		if s.More > 0 {
			fmt.Fprintf(&b, "; +%d", s.More)
		}
		b.WriteByte('\n')
	}
	return b.String() + t.Why
}
