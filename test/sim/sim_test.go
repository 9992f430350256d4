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

// report fails the test with what is needed to look into a seed.
func report(t *testing.T, r Result) {
	t.Helper()
	for _, line := range r.Trace[max(0, len(r.Trace)-60):] {
		t.Log(line)
	}
	t.Errorf("%v\nseed %d: %s", r.Options, r.Options.Seed, r.Failure)
}

// budget is how long the seeds may take, and how many there are at most.
func budget(t *testing.T) (time.Duration, uint64) {
	if s := os.Getenv("KEYWARD_SEEDS"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("KEYWARD_SEEDS: %v", err)
		}
		return 10 * time.Hour, n
	}
	switch {
	case testing.Short():
		return 5 * time.Second, 200
	case raceDetector:
		return 60 * time.Second, 600
	}
	return 3 * time.Minute, 3000
}

func TestSeeds(t *testing.T) { testSeeds(t, Expand) }

// Parts of limits are lent, keys get hot and cool, and members count by copies.
func TestLeaseSeeds(t *testing.T) { testSeeds(t, ExpandLeases) }

func testSeeds(t *testing.T, expand func(uint64) Options) {
	leases := expand(1).Leases.On
	limit, seeds := budget(t)
	begin := time.Now()
	s := &Search{
		First: 1, Seeds: seeds, Expand: expand, Workers: runtime.GOMAXPROCS(0), Twice: 20, All: true,
		Stop:   func() bool { return t.Failed() || time.Since(begin) > limit },
		Failed: func(r Result) { report(t, r) },
	}
	stats := s.Run()
	var b strings.Builder
	stats.Print(&b)
	t.Log(b.String())
	t.Logf("%.0f seeds/s", float64(stats.Seeds)/time.Since(begin).Seconds())
	if stats.Seeds < 1000 || t.Failed() {
		return
	}
	if stats.Fewest < 1000 {
		t.Errorf("a seed made %d decisions", stats.Fewest)
	}
	often := min(100, 100*stats.Seeds/3000) // where a machine is too slow for all seeds
	if rare := stats.Rare(often, leases); len(rare) > 0 {
		t.Errorf("seen fewer than %d times: %s", often, strings.Join(rare, ", "))
	}
}

// Every seed that ever failed runs for ever; those that begin with an L are of ExpandLeases.
func TestSeedsThatFailed(t *testing.T) {
	f, err := os.Open("testdata/seeds.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rings := &Rings{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		word, _, _ := strings.Cut(lines.Text(), " ")
		if word == "" || word == "#" {
			continue
		}
		expand := Expand
		if rest, ok := strings.CutPrefix(word, "L"); ok {
			word, expand = rest, ExpandLeases
		}
		seed, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		r := Run(expand(seed), NoBug, rings, NewStats(), true)
		if r.Failure != "" {
			report(t, r)
		}
	}
}

// The same seed gives the same run, also with a trace and with rings built anew.
func TestSameSeedSameRun(t *testing.T) {
	rings := &Rings{}
	for seed := uint64(1); seed <= 20; seed++ {
		for _, o := range []Options{Expand(seed), ExpandLeases(seed)} {
			a := Run(o, NoBug, rings, NewStats(), false)
			b := Run(o, NoBug, &Rings{}, NewStats(), true)
			if a.Hash != b.Hash || a.Events != b.Events {
				t.Fatalf("seed %d: %x after %d events, then %x after %d", seed, a.Hash, a.Events, b.Hash, b.Events)
			}
		}
	}
}

// Each deliberate mistake is found within 1,000 seeds.
func TestBugsAreFound(t *testing.T) { findBugs(t, Bugs, Expand) }

// So is each condition of leases that is left out.
func TestLeaseBugsAreFound(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	findBugs(t, LeaseBugs, ExpandLeases)
}

func findBugs(t *testing.T, bugs map[string]Bug, expand func(uint64) Options) {
	for _, name := range slices.Sorted(maps.Keys(bugs)) {
		t.Run(name, func(t *testing.T) {
			found := atomic.Uint64{}
			found.Store(1001)
			failure := ""
			s := &Search{
				First: 1, Seeds: 1000, Workers: runtime.GOMAXPROCS(0), Bug: bugs[name], Expand: expand, All: true,
				Stop: func() bool { return found.Load() <= 1000 },
				Failed: func(r Result) {
					if r.Options.Seed < found.Load() {
						found.Store(r.Options.Seed)
						failure = r.Failure
					}
				},
			}
			s.Run()
			if found.Load() > 1000 {
				t.Fatal("not found in 1,000 seeds")
			}
			t.Logf("found at seed %d: %s", found.Load(), failure)
		})
	}
}
