package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/keyward/keyward/internal/lab"
)

// TestUpgrade replaces the members of a cluster one by one by those of another version, under load, and back again: each window admits exactly
// its limit, no client sees an error and no charge is lost, while members of both versions are on the ring. KEYWARD_BEFORE is the
// folder with the other version's programs; `make upgrade` builds them.
func TestUpgrade(t *testing.T) {
	before := otherVersion(t)
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": handoffRules}, Expect: 3, Args: []string{"--decision-timeout", "1s"}})
	now := l.Bin
	l.Bin = before
	f := newFleet(t, l, names(3)...)
	ld := startLoad(t, f, 700, shortWindows()...)
	ld.begin(batch("first"))
	stopWatching := watchCounts(t, ld)
	for i, step := range []struct{ name, bin string }{{"upgrade", now}, {"downgrade", before}, {"again", now}} {
		l.Bin = step.bin
		for _, s := range slices.Clone(f.live) {
			ld.begin(batch(step.name + "-" + s.Name))
			f.restart(s)
		}
		f.agree()
		t.Logf("step %d, %s: authorities: full %v, part %v, share %v", i+1, step.name, f.sum("keyward_authority_total", "authority", "full"),
			f.sum("keyward_authority_total", "authority", "part"), f.sum("keyward_authority_total", "authority", "share"))
	}
	stopWatching()
	ld.finish()
	ld.audit(ld.accounts(), nothing, true)
	ld.conserved()
}

// otherVersion returns the folder with the programs of another version, KEYWARD_BEFORE. It skips the test if there is none.
func otherVersion(t *testing.T) string {
	t.Helper()
	before := os.Getenv("KEYWARD_BEFORE")
	if before == "" {
		t.Skip("`make upgrade` runs it")
	}
	if _, err := os.Stat(filepath.Join(before, "sidecar")); err != nil {
		t.Fatalf("KEYWARD_BEFORE: %v", err)
	}
	return before
}
