package config

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestBefore compares the values of Before with the rules that Match takes, for random rules of two keys and all short values.
func TestBefore(t *testing.T) {
	values := []string{"a", "b", "ab", "ba", "aa", "abb"}
	reached := 0
	for seed := range uint64(300) {
		rules := load(t, Options{}, randomLevels(rand.New(rand.NewPCG(seed, 1))))
		for _, v := range values {
			for _, w := range append(values, "") {
				entries := []Entry{{Key: "k", Value: v}, {Key: "l", Value: w}}
				if w == "" {
					entries = entries[:1]
				}
				var m Match
				rules.Match("d", entries, nil, &m)
				for _, r := range rules.Rules() {
					if got, want := isReached(rules, r, entries), m.ownerRule == r; got != want {
						t.Fatalf("seed %d, %v: %s reached %v, by Match %v; before: %q", seed, entries, r.FullKey, got, want, rules.Before(r))
					} else if want {
						reached++
					}
				}
			}
		}
	}
	if reached < 1000 {
		t.Errorf("only %d matches", reached)
	}
}

// isReached reports whether the values of entries are those of r and none of them is before r.
func isReached(rules *Rules, r *RuleSpec, entries []Entry) bool {
	if len(entries) != len(r.Levels) {
		return false
	}
	is := func(value, of string) bool {
		p := newPattern(of)
		return value == of || p != nil && p.match([]byte(value))
	}
	for i, l := range r.Levels {
		if l.Value != "" && !is(entries[i].Value, l.Value) {
			return false
		}
		for _, other := range rules.Before(r)[i] {
			if is(entries[i].Value, other) {
				return false
			}
		}
	}
	return true
}

// randomLevels returns rules of the key k, some of which have the key l below them; some descriptors have no limit.
func randomLevels(random *rand.Rand) string {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	level := func(key, indent string, below func()) {
		for _, i := range random.Perm(7)[:1+random.IntN(5)] {
			fmt.Fprintf(&b, "%s- key: %s\n", indent, key)
			if value := []string{"", "a", "ab", "a*", "*b", "b*", "*"}[i]; value != "" {
				fmt.Fprintf(&b, "%s  value: '%s'\n", indent, value)
			}
			if random.IntN(3) > 0 {
				fmt.Fprintf(&b, "%s  rate_limit: {unit: minute, requests_per_unit: 5}\n", indent)
			}
			below()
		}
	}
	level("k", "", func() {
		if random.IntN(2) > 0 {
			b.WriteString("  descriptors:\n")
			level("l", "  ", func() {})
		}
	})
	return b.String()
}
