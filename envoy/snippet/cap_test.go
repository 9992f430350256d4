package snippet

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/limit"
)

// capsOf returns the rows of a domain as "key=value,key=*: max/fill/interval".
func capsOf(t *testing.T, rules string, from map[string]string) (rows, warnings string) {
	t.Helper()
	o := Options{Shape: Plain, Rules: load(t, "domain: d\ndescriptors:\n"+rules), From: from, Caps: true}
	o.fill()
	g := &generator{Options: o}
	if err := g.prepare(); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, r := range g.Domains[0].Caps {
		var entries []string
		for _, e := range r.Entries {
			if e.Value == "" {
				e.Value = "*"
			}
			entries = append(entries, e.Key+"="+e.Value)
		}
		all = append(all, fmt.Sprintf("%s: %d/%d/%v", strings.Join(entries, ","), r.Max, r.Fill, r.Interval))
	}
	return strings.Join(all, "; "), strings.Join(g.warnings, "\n")
}

func TestCaps(t *testing.T) {
	from := map[string]string{"a": "header:a", "b": "header:b"}
	const limited = "rate_limit: {unit: minute, requests_per_unit: %d}"
	rule := func(indent int, head string, n int) string {
		pad := strings.Repeat(" ", indent)
		return fmt.Sprintf("%s- %s\n%s  "+limited+"\n", pad, head, pad, n)
	}
	for name, c := range map[string]struct{ rules, want, warning string }{
		"one key":       {rule(0, "key: a", 5), "a=*: 10/5/1m0s", ""},
		"a fixed value": {rule(0, "key: a\n  value: x", 5), "a=x: 10/5/1m0s", ""},
		"a value with its own limit": {rule(0, "key: a", 5) + rule(0, "key: a\n  value: x", 9),
			"a=*: 10/5/1m0s; a=x: 18/9/1m0s", ""},
		"a value with the same limit": {rule(0, "key: a", 5) + rule(0, "key: a\n  value: x", 5), "a=*: 10/5/1m0s", ""},
		"an unlimited value": {rule(0, "key: a", 5) + "- key: a\n  value: x\n  rate_limit: {unlimited: true}\n",
			"a=*: 10/5/1m0s; a=x: 4294967295/4294967295/1s", ""},
		"a value without a limit": {rule(0, "key: a", 5) + "- key: a\n  value: x\n  descriptors:\n" + rule(2, "key: b", 3),
			"a=*: 10/5/1m0s; a=x: 4294967295/4294967295/1s; a=x,b=*: 6/3/1m0s", ""},
		"in shadow mode":  {rule(0, "key: a", 5) + "  shadow_mode: true\n", "", "no rule can be capped"},
		"in quota mode":   {rule(0, "key: a", 5) + "  quota_mode: true\n", "", "no rule can be capped"},
		"limit 0":         {rule(0, "key: a", 0), "", "no rule can be capped"},
		"a short window":  {rule(0, "key: a", 5) + "  metadata: {keyward: {window: 20ms}}\n", "", "no rule can be capped"},
		"a large bucket":  {rule(0, "key: a", 5) + "  metadata: {keyward: {algorithm: token_bucket, burst: 100}}\n", "a=*: 105/5/1m0s", ""},
		"a small bucket":  {rule(0, "key: a", 5) + "  metadata: {keyward: {algorithm: token_bucket, burst: 1}}\n", "a=*: 10/5/1m0s", ""},
		"a large limit":   {rule(0, "key: a", math.MaxUint32), "a=*: 4294967295/4294967295/1m0s", ""},
		"a wildcard":      {rule(0, "key: a\n  value: x*", 5), "", "not capped"},
		"also a wildcard": {rule(0, "key: a", 5) + rule(0, "key: a\n  value: x*", 9), "a=*: 18/9/1m0s", ""},
		"replaced": {"- key: a\n  rate_limit: {unit: minute, requests_per_unit: 5, name: n}\n" +
			"- key: b\n  rate_limit: {unit: minute, requests_per_unit: 50, replaces: [{name: n}]}\n", "b=*: 100/50/1m0s", ""},
		"nested": {"- key: a\n  descriptors:\n" + rule(2, "key: b", 3), "a=*,b=*: 6/3/1m0s", ""},
		"nested, one value without a limit": {"- key: a\n  descriptors:\n" + rule(2, "key: b", 3) + "- key: a\n  value: x\n  descriptors:\n" + rule(2, "key: b\n    value: y", 4),
			"a=*,b=y: 6/3/1m0s; a=x,b=y: 8/4/1m0s", "not capped"},
		"nested, overlapping": {"- key: a\n  descriptors:\n" + rule(2, "key: b", 3) + "- key: a\n  value: x\n  descriptors:\n" + rule(2, "key: b", 4),
			"a=*,b=*: 8/4/1m0s", ""},
	} {
		got, warnings := capsOf(t, c.rules, from)
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if !strings.Contains(warnings, c.warning) {
			t.Errorf("%s: warnings %q, want %q", name, warnings, c.warning)
		}
	}
}

// TestCapsAreNeverBelowTheLimit: whatever the rules and the values, the row that Envoy uses for a descriptor, any of
// those that match, is at least as wide as the rule's own bucket.
func TestCapsAreNeverBelowTheLimit(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	values := []string{"", "x", "y", "x*"}
	for range 2000 {
		var b strings.Builder
		seen := map[string]bool{}
		for range 1 + rnd.IntN(4) {
			v, w := values[rnd.IntN(4)], values[rnd.IntN(4)]
			if seen[v] {
				continue
			}
			seen[v] = true
			b.WriteString("- key: a\n")
			if v != "" {
				fmt.Fprintf(&b, "  value: %q\n", v)
			}
			if rnd.IntN(3) > 0 {
				fmt.Fprintf(&b, "  rate_limit: {unit: minute, requests_per_unit: %d}\n", 1+rnd.IntN(9))
			}
			if rnd.IntN(3) > 0 {
				fmt.Fprintf(&b, "  descriptors:\n  - key: b\n    value: %q\n    rate_limit: {unit: hour, requests_per_unit: %d}\n", w, 1+rnd.IntN(9))
			}
		}
		if !strings.Contains(b.String(), "rate_limit") {
			continue
		}
		o := Options{Shape: Plain, Rules: load(t, "domain: d\ndescriptors:\n"+b.String()), From: map[string]string{"a": "header:a", "b": "header:b"}, Caps: true}
		o.fill()
		g := &generator{Options: o}
		if err := g.prepare(); err != nil {
			t.Fatal(err)
		}
		for _, va := range []string{"x", "y", "xy", "z"} {
			for _, vb := range []string{"", "x", "y", "xy", "z"} {
				entries := []config.Entry{{Key: "a", Value: va}}
				if vb != "" {
					entries = append(entries, config.Entry{Key: "b", Value: vb})
				}
				holdRows(t, g, entries, b.String())
			}
		}
	}
}

func holdRows(t *testing.T, g *generator, entries []config.Entry, rules string) {
	t.Helper()
	var m config.Match
	g.Rules.Match("d", entries, nil, &m)
	var matching []capRow
	for _, r := range g.Domains[0].Caps {
		matches, fixed := len(r.Entries) == len(entries), true
		for i := 0; matches && i < len(entries); i++ {
			fixed = fixed && r.Entries[i].Value != ""
			matches = r.Entries[i].Key == entries[i].Key && (r.Entries[i].Value == "" || r.Entries[i].Value == entries[i].Value)
		}
		switch {
		case matches && fixed: // preferred by Envoy
			matching = []capRow{r}
		case matches && (len(matching) != 1 || hasWildcard(matching[0])):
			matching = append(matching, r)
		}
	}
	for _, r := range matching {
		unlimited := r.Max == math.MaxUint32 && r.Fill == math.MaxUint32
		if m.Kind != config.Limited && !unlimited {
			t.Fatalf("%v has no limit, but the cap %+v:\n%s", entries, r, rules)
		}
		if m.Kind != config.Limited || unlimited {
			continue
		}
		if own := bucketOf(m.Rule); r.Max < own.Max || r.rate() < own.rate() {
			t.Fatalf("%v has the cap %+v, its rule needs %+v:\n%s", entries, r, own, rules)
		}
	}
}

func hasWildcard(r capRow) bool {
	for _, e := range r.Entries {
		if e.Value == "" {
			return true
		}
	}
	return false
}

// TestCapAdmitsWhatTheLimitDoes: a client that the rule always admits never finds an empty bucket, for every algorithm
// and however its requests are distributed over time.
func TestCapAdmitsWhatTheLimitDoes(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		r := config.RuleSpec{Limit: limit.Rule{Limit: 1 + uint32(rnd.IntN(20)), Window: time.Duration(50+rnd.IntN(5000)) * time.Millisecond,
			Algorithm: limit.Algorithm(rnd.IntN(int(limit.LeakyBucket) + 1))}}
		if r.Limit.Algorithm.Bucket() {
			r.Limit.Burst = 1 + uint32(rnd.IntN(50))
		}
		b := bucketOf(&r)
		tokens, now := float64(b.Max), int64(time.Hour)
		var s limit.State
		for range 400 {
			wait := rnd.Int64N(int64(r.Limit.Window) / int64(1+rnd.IntN(40)))
			now += wait
			tokens = min(float64(b.Max), tokens+float64(wait)*b.rate())
			if r.Limit.Peek(&s, now, 1).Over {
				continue // the client does not send it
			}
			r.Limit.Take(&s, now, 1, 1)
			if tokens -= 1; tokens < -1e-6 {
				t.Fatalf("%+v: denied at %v", r.Limit, time.Duration(now))
			}
		}
	}
}
