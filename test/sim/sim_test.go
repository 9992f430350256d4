package sim

import (
	"bufio"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// report fails the test with the trace of a seed.
func report(t *testing.T, r runResult) {
	t.Helper()
	for _, line := range r.Trace[max(0, len(r.Trace)-60):] {
		t.Log(line)
	}
	t.Errorf("%v\nseed %d: %s", r.Options, r.Options.Seed, r.Failure)
}

// seeds returns the number of seeds to run: a fixed number, so that every machine runs the same ones. `make deep`
// sets KEYWARD_SEEDS.
func seeds(t *testing.T, usual uint64) uint64 {
	if s := os.Getenv("KEYWARD_SEEDS"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("KEYWARD_SEEDS: %v", err)
		}
		return n
	}
	if testing.Short() {
		return usual / 20
	}
	return usual
}

func TestSeeds(t *testing.T) { testSeeds(t, expandBase, seeds(t, 1000)) }

// Limits are lent, keys become hot and cool down, and members count on copies.
func TestLeaseSeeds(t *testing.T) { testSeeds(t, expandLeases, seeds(t, 500)) }

// Tables are too small for the keys, which belong to several domains. All changes are planned, so no limit may be
// exceeded.
func TestFullSeeds(t *testing.T) { testSeeds(t, expandFull, seeds(t, 400)) }

// Machines stop with their clocks, without other faults.
func TestStillSeeds(t *testing.T) { testSeeds(t, expandStill, seeds(t, 100)) }

// Members detect failures in other times than the default, each in its own or all in the same.
func TestDetectionSeeds(t *testing.T) { testSeeds(t, expandDetection, seeds(t, 200)) }

// Members adopt the ring of a user's own cluster.
func TestRingSeeds(t *testing.T) { testSeeds(t, expandRing, seeds(t, 200)) }

// Rules fail closed while members crash, with and without other faults.
func TestClosedSeeds(t *testing.T) { testSeeds(t, expandClosed, seeds(t, 200)) }

// Rules choose their policies for partitions, their watermarks, and whether they are static.
func TestChoiceSeeds(t *testing.T) { testSeeds(t, expandChoices, seeds(t, 200)) }

// Rules divide their limits between tenants.
func TestFairSeeds(t *testing.T) { testSeeds(t, expandFair, seeds(t, 150)) }

// A whole zone fails, and members of the other zones have its counters.
func TestZoneSeeds(t *testing.T) { testSeeds(t, expandZones, seeds(t, 60)) }

// Members have journals, and all of them crash or stop and start again.
func TestDurableSeeds(t *testing.T) { testSeeds(t, expandDurable, seeds(t, 80)) }

// Holds are reserved, settled and lapse while members join, leave and fail.
func TestHoldSeeds(t *testing.T) { testSeeds(t, expandHolds, seeds(t, 120)) }

// Envoys spend parts of one limit without calls, while their sidecars, the owner and they themselves fail.
func TestQuotaSeeds(t *testing.T) { testSeeds(t, expandQuota, seeds(t, 60)) }

// Leases that are lent again when their holders fail are one more kind.
func TestReclaimSeeds(t *testing.T) { testSeeds(t, expandReclaim, seeds(t, 200)) }

func testSeeds(t *testing.T, expand func(uint64) options, n uint64) *summary {
	leases := expand(1).Leases.On
	begin := time.Now()
	s := &search{
		First: 1, Seeds: n, Expand: expand, Workers: runtime.GOMAXPROCS(0), Twice: 20, All: true,
		Stop: t.Failed, Failed: func(r runResult) { report(t, r) },
	}
	stats := s.run()
	var b strings.Builder
	stats.print(&b)
	t.Log(b.String())
	t.Logf("%.0f seeds/s", float64(stats.Seeds)/time.Since(begin).Seconds())
	if t.Failed() {
		return stats
	}
	if uint64(stats.Seeds) != n {
		t.Errorf("%d seeds ran, not %d", stats.Seeds, n)
	}
	if expand(1).MaxKeys > 0 && stats.Counts["authority: overflow"] == 0 {
		t.Error("no table was full")
	}
	if expand(1).MaxKeys > 0 && min(stats.Counts["keys: one owner"], stats.Counts["keys: alike"]) == 0 {
		t.Error("no adversary chose keys")
	}
	if stats.Fewest < 1000 {
		t.Errorf("a seed made %d decisions", stats.Fewest)
	}
	// Each expected event occurs at least once in 30 seeds, except in kinds with few events.
	few := expand(1).MaxKeys > 0 || expand(1).Slots == expand(1).Members || expand(1).Federation.Regions > 0
	if rare := stats.rare(int(min(100, n/30)), leases); len(rare) > 0 && n >= 500 && !few {
		t.Errorf("too rare in %d seeds: %s", n, strings.Join(rare, ", "))
	}
	return stats
}

// Every seed that ever failed remains a test. Those that begin with an L are of kind leases, those with an F of kind full,
// those with a D of kind durable, those with an R of kind federation, those with an H of kind holds, those with a Q of kind quota.
func TestSeedsThatFailed(t *testing.T) {
	f, err := os.Open("testdata/seeds.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rings := &ringCache{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		word, _, _ := strings.Cut(lines.Text(), " ")
		if word == "" || word == "#" {
			continue
		}
		expand := expandBase
		if rest, ok := strings.CutPrefix(word, "L"); ok {
			word, expand = rest, expandLeases
		} else if rest, ok := strings.CutPrefix(word, "F"); ok {
			word, expand = rest, expandFull
		} else if rest, ok := strings.CutPrefix(word, "D"); ok {
			word, expand = rest, expandDurable
		} else if rest, ok := strings.CutPrefix(word, "R"); ok {
			word, expand = rest, expandFederation
		} else if rest, ok := strings.CutPrefix(word, "H"); ok {
			word, expand = rest, expandHolds
		} else if rest, ok := strings.CutPrefix(word, "Q"); ok {
			word, expand = rest, expandQuota
		}
		seed, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		r := runner{rings, newSummary(), true}.run(expand(seed), noBug)
		if r.Failure != "" {
			report(t, r)
		}
	}
}

// The same seed gives the same run, also with a trace and with new rings.
func TestSameSeedSameRun(t *testing.T) {
	rings := &ringCache{}
	for seed := uint64(1); seed <= 20; seed++ {
		kinds := []options{expandBase(seed), expandLeases(seed), expandDurable(seed), expandFederation(seed), expandHolds(seed)}
		if seed <= 4 { // they have more events than the others
			kinds = append(kinds, expandQuota(seed))
		}
		for _, o := range kinds {
			a := runner{rings, newSummary(), false}.run(o, noBug)
			b := newRunner(true).run(o, noBug)
			if a.Hash != b.Hash || a.Events != b.Events {
				t.Fatalf("seed %d: %x after %d events, then %x after %d", seed, a.Hash, a.Events, b.Hash, b.Events)
			}
		}
	}
}

// Each deliberate bug is found within 1,000 seeds.
func TestBugsAreFound(t *testing.T) { findBugs(t, baseBugs, expandBase) }

// So is each omitted lease condition.
func TestLeaseBugsAreFound(t *testing.T) { findBugs(t, leaseBugs, expandLeases) }

// So is a handoff that omits what the sketch has counted.
func TestFullBugsAreFound(t *testing.T) { findBugs(t, fullBugs, expandFull) }

// So is a member that continues after its clocks have stopped.
func TestStillBugsAreFound(t *testing.T) { findBugs(t, stillBugs, expandStill) }

// So are hits that members admit without the owner and do not report.
func TestClosedBugsAreFound(t *testing.T) { findBugs(t, closedBugs, expandClosed) }

// So are charges of requests that are refused to leave hits to other tenants.
func TestFairBugsAreFound(t *testing.T) { findBugs(t, fairBugs, expandFair) }

// So are hits that an owner reclaims twice.
func TestReclaimBugsAreFound(t *testing.T) { findBugs(t, reclaimBugs, expandReclaim) }

// So are zone replicas that do not arrive.
func TestZoneBugsAreFound(t *testing.T) { findBugs(t, zoneBugs, expandZones) }

// So are mistakes with journals.
func TestDurableBugsAreFound(t *testing.T) { findBugs(t, durableBugs, expandDurable) }

// So are mistakes with holds.
func TestHoldBugsAreFound(t *testing.T) { findBugs(t, holdBugs, expandHolds) }

// So are mistakes with limits that Envoys spend.
func TestQuotaBugsAreFound(t *testing.T) { findBugs(t, quotaBugs, expandQuota) }

// findBugs runs the seed that found a bug when testdata/bugs.txt was written. If that finds nothing, which a change
// of the core may cause, it runs the first 1,000.
func findBugs(t *testing.T, bugs map[string]bug, expand func(uint64) options) {
	known := knownSeeds(t)
	for _, name := range slices.Sorted(maps.Keys(bugs)) {
		t.Run(name, func(t *testing.T) {
			seed := known[name]
			if seed != 0 {
				if r := newRunner(false).run(expand(seed), bugs[name]); r.Failure != "" {
					t.Logf("found at seed %d: %s", seed, r.Failure)
					return
				}
			}
			seed, failure := firstSeed(bugs[name], expand)
			if seed > 1000 {
				t.Fatal("not found in 1,000 seeds")
			}
			t.Logf("found at seed %d: %s; testdata/bugs.txt should say so", seed, failure)
		})
	}
}

// firstSeed returns the first of 1,000 seeds that finds a bug, or a number above.
func firstSeed(bug bug, expand func(uint64) options) (seed uint64, failure string) {
	found := atomic.Uint64{}
	found.Store(1001)
	s := &search{
		First: 1, Seeds: 1000, Workers: runtime.GOMAXPROCS(0), Bug: bug, Expand: expand, All: true,
		Stop: func() bool { return found.Load() <= 1000 },
		Failed: func(r runResult) {
			if r.Options.Seed < found.Load() {
				found.Store(r.Options.Seed)
				failure = r.Failure
			}
		},
	}
	s.run()
	return found.Load(), failure
}

// knownSeeds reads which seed has found which bug.
func knownSeeds(t *testing.T) map[string]uint64 {
	t.Helper()
	b, err := os.ReadFile("testdata/bugs.txt")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]uint64{}
	for n, line := range strings.Split(string(b), "\n") {
		word, name, ok := strings.Cut(line, " ")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		seed, err := strconv.ParseUint(word, 10, 64)
		if err != nil || !ok {
			t.Fatalf("testdata/bugs.txt:%d: not a seed and a name: %q", n+1, line)
		}
		if baseBugs[name] == noBug && stillBugs[name] == noBug && leaseBugs[name] == noBug &&
			fullBugs[name] == noBug && closedBugs[name] == noBug && reclaimBugs[name] == noBug &&
			fairBugs[name] == noBug && holdBugs[name] == noBug && zoneBugs[name] == noBug && durableBugs[name] == noBug && quotaBugs[name] == noBug && federationBugs[name] == noBug {
			t.Fatalf("testdata/bugs.txt:%d: no bug is called %q", n+1, name)
		}
		known[name] = seed
	}
	return known
}
