package admin

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/keyward/keyward/owner"
)

func TestFacts(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(NewFacts(func() owner.Facts {
		f := owner.Facts{Keys: 3, Moved: 5, Share: 2, Open: 9}
		f.Decided[owner.Share], f.Admitted[owner.Share] = 4, 8
		return f
	}))
	const want = `
# HELP keyward_overadmission_bound Most hits that this member may have added to one key's present window above its limit, fail_open apart; the cluster's bound is the sum.
# TYPE keyward_overadmission_bound gauge
keyward_overadmission_bound 7
# HELP keyward_degraded_admitted_hits_total Hits admitted for owners that could not be reached.
# TYPE keyward_degraded_admitted_hits_total counter
keyward_degraded_admitted_hits_total{authority="fail_closed"} 0
keyward_degraded_admitted_hits_total{authority="fail_open"} 0
keyward_degraded_admitted_hits_total{authority="share"} 8
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "keyward_overadmission_bound", "keyward_degraded_admitted_hits_total"); err != nil {
		t.Error(err)
	}
	if len(authorities()) != len(owner.Facts{}.Decided) {
		t.Errorf("%d names for %d authorities", len(authorities()), len(owner.Facts{}.Decided))
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}
