//go:build !race

package config

import (
	"math/rand/v2"
	"testing"
)

// TestOracle compares thousands of generated configurations, valid and invalid, and descriptors for the valid ones.
func TestOracle(t *testing.T) {
	o := newOracle()
	cases, loaded, matched := 20000, 0, map[MatchKind]int{}
	if testing.Short() {
		cases = 2000
	}
	for seed := range uint64(cases) {
		g := generator{rand: rand.New(rand.NewPCG(seed, 1)), metadata: o.metadata, middle: o.middle}
		files := g.files()
		opts := Options{MergeDomains: g.one(3)}
		theirs, rules := o.compareLoad(t, files, opts)
		if rules == nil {
			continue
		}
		loaded++
		for range 20 {
			q := g.query(rules)
			o.compareMatch(t, theirs, rules, q)
			var m Match
			rules.Match(q.domain, q.entries, q.override, &m)
			matched[m.Kind]++
		}
	}
	t.Logf("oracle: metadata %t, middle wildcards %t; loaded %d of %d; kinds %v", o.metadata, o.middle, loaded, cases, matched)
	if loaded < cases/2 || loaded > cases*9/10 || matched[Limited] < cases || matched[NoRule] < cases || matched[Unlimited] < cases/10 {
		t.Error("the generator no longer makes a useful mixture")
	}
}
