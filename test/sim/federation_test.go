package sim

import (
	"slices"
	"strings"
	"testing"
)

// Regions have one limit together, while their links, their coordinators and the stores of these fail, clocks differ, and
// members crash, join and leave. Each row of the table of outages occurs, and bounds what is admitted.
func TestFederationSeeds(t *testing.T) {
	n := seeds(t, 500)
	stats := testSeeds(t, expandFederation, n)
	if t.Failed() || n < 500 {
		return
	}
	for i := range outageTable {
		if row := outageTable[i].name; stats.Rows[row].spans < 100 {
			t.Errorf("only %d decisions with the row %q alone", stats.Rows[row].spans, row)
		}
	}
	for _, row := range reachedRows {
		if !slices.ContainsFunc(outageTable, func(r outageRow) bool { return r.name == row }) {
			t.Errorf("no row is called %q", row)
		}
		if stats.Rows[row].over == 0 {
			t.Errorf("nothing was admitted above a limit by the row %q alone, so that its bound is not tested", row)
		}
	}
	for _, e := range eventNames {
		if stats.Counts["row of 0, limit reached: "+e] == 0 {
			t.Errorf("no window reached its limit, and not more, with the event %q", e)
		}
	}
	if c := &stats.Calm; c.Limit == 0 || c.Requests == 0 || c.Admitted*100 < c.Limit*98 || c.Wrong*1000 > c.Requests*5 {
		t.Errorf("without faults: %+v", *c)
	}
}

// reachedRows are the rows that alone bring windows above their limits within a few hundred seeds. U is one hit of most
// floors, so an owner's death has to occur in a window that is used up to the last hit.
var reachedRows = []string{
	outageTable[0].name, outageTable[1].name, outageTable[2].name, outageTable[4].name, outageTable[6].name,
	outageTable[7].name, outageTable[8].name,
}

// So is each deliberate bug of a federation.
func TestFederationBugsAreFound(t *testing.T) { findBugs(t, federationBugs, expandFederation) }

// Every law of a federation is broken by one of its deliberate bugs, so that none is without effect.
func TestFederationLawsHaveEffect(t *testing.T) {
	known, laws := knownSeeds(t), map[string]bool{}
	for name, bug := range federationBugs {
		r := newRunner(false).run(expandFederation(known[name]), bug)
		law, _, _ := strings.Cut(r.Failure, ":")
		laws[law] = true
	}
	for _, law := range []string{"F1", "F2", "F6"} {
		if !laws[law] {
			t.Errorf("no bug breaks %s: %v", law, laws)
		}
	}
}
