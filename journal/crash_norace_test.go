//go:build !race

package journal_test

import (
	"os"
	"strconv"
	"testing"

	"github.com/keyward/keyward/journal"
)

// crashSeeds returns the number of seeds of TestCrashes.
func crashSeeds(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("JOURNAL_SEEDS")
	if text == "" {
		return 2000
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal("JOURNAL_SEEDS:", err)
	}
	return n
}

// TestCrashes requires that what was confirmed is read after any sequence of faults and crashes, that nothing else than
// what was appended is, and that the files never exceed their maximum size. JOURNAL_SEEDS is the number of seeds.
func TestCrashes(t *testing.T) {
	t.Parallel()
	var total counts
	for seed := range crashSeeds(t) {
		w := newCrashWorld(seed)
		if err := w.run(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		total.add(w.counts)
	}
	t.Logf("%+v", total)
	if total.rare() {
		t.Error("a case is too rare")
	}
}

// TestPlantedBugs requires that TestCrashes finds each deliberate mistake within 1,000 seeds.
func TestPlantedBugs(t *testing.T) {
	t.Parallel()
	for name, bug := range journal.Bugs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(1000) {
				w := newCrashWorld(seed)
				w.bug = bug
				if err := w.run(); err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Error("not found")
		})
	}
}
