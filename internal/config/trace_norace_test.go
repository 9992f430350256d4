//go:build !race

package config

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestTraceWalksAsMatch traces random descriptors: the last step must be the rule that Match returns.
func TestTraceWalksAsMatch(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 1))
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	found := 0
	for range 2000 {
		var b strings.Builder
		b.WriteString("domain: d\ndescriptors:\n")
		seen := map[string]bool{}
		for range 1 + rng.IntN(6) {
			key, value := pick("a", "b", "a_b"), pick("", "", "v", "v*", "*", "b_v", "w*v")
			if seen[key+"/"+value] || seen[key+"_"+value] {
				continue
			}
			seen[key+"/"+value], seen[key+"_"+value] = true, true
			fmt.Fprintf(&b, "- {key: %s, value: '%s', rate_limit: {unit: day, requests_per_unit: 1}, descriptors: [{key: %s, rate_limit: {unit: hour, requests_per_unit: 2}}]}\n", key, value, pick("a", "b"))
		}
		rules, err := Load(filesOf(b.String()), Options{})
		if err != nil {
			continue // two descriptors with the same glued text
		}
		var entries []Entry
		for range 1 + rng.IntN(2) {
			entries = append(entries, Entry{pick("a", "b", "a_b"), pick("", "v", "vv", "wv", "b_v", "x")})
		}
		trace := rules.Trace("d", entries)
		last := trace.Steps[len(trace.Steps)-1].Taken
		if r := trace.Match.Rule; (r != nil) != (last != nil && len(trace.Steps) == len(entries)) || r != nil && r.Line != last.Line {
			t.Fatalf("%v of\n%s\nMatch: %+v, trace:\n%s", entries, b.String(), r, traceText(trace))
		}
		if last != nil {
			found++
		}
	}
	if found < 300 {
		t.Errorf("only %d descriptors matched", found)
	}
}
