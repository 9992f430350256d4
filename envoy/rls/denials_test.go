package rls

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/owner"
)

// TestDenialsAreSampled: each rule reports one denial per second and counts the suppressed ones, independent of other rules.
func TestDenialsAreSampled(t *testing.T) {
	type denial struct {
		DecisionSample
		Suppressed uint64
	}
	var reports []denial
	d := newDenials(Options{Denials: func(x DecisionSample, n uint64) { reports = append(reports, denial{x, n}) }})
	over := func(rule string, at time.Time) {
		c := &Call{slots: []slot{{match: config.Match{Kind: config.Limited, Rule: &config.RuleSpec{FullKey: rule}, Owner: 7}}}}
		c.Request.Domain = "d"
		c.Response.Statuses = []descriptorStatus{{Code: OverLimit}}
		c.results = []owner.Result{{Authority: owner.Share}}
		d.observe(c, at)
	}
	begin := time.Unix(1000, 0)
	for i := range 100 {
		over("d.user", begin.Add(time.Duration(i)*time.Millisecond))
	}
	over("d.path", begin)
	over("d.user", begin.Add(time.Second))
	if len(reports) != 3 {
		t.Fatalf("%d reports: %+v", len(reports), reports)
	}
	if x := reports[0]; x.Rule != "d.user" || x.Suppressed != 0 || x.Owner != 7 || x.Domain != "d" || x.Authority != owner.Share {
		t.Errorf("the first: %+v", x)
	}
	if reports[1].Rule != "d.path" || reports[2].Suppressed != 99 {
		t.Errorf("then: %+v", reports[1:])
	}
}
