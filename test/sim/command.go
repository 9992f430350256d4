package sim

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"
)

// Main runs the worlds that the command line describes, prints what happened in them, and returns the exit status.
func Main() int {
	seeds := flag.Uint64("seeds", 5000, "number of seeds")
	first := flag.Uint64("first", 1, "first seed")
	one := flag.Uint64("seed", 0, "run only this seed and print its trace")
	bugName := flag.String("bug", "", "inject a deliberate bug: its name, or list")
	kind := kinds[""]
	pick := func(name, usage string) {
		flag.BoolFunc(name, usage, func(string) error { kind = kinds[name]; return nil })
	}
	pick("leases", "run worlds with leases")
	pick("full", "run worlds with tables that are too small for their keys")
	pick("still", "run worlds in which machines stop with their clocks")
	pick("detection", "run worlds whose members have other detection times than the default")
	pick("ring", "run worlds whose members adopt the ring of a user's own Envoy cluster")
	pick("reclaim", "run worlds in which owners lend the hits of failed holders again")
	pick("closed", "run worlds with fail_closed rules")
	pick("choices", "run worlds whose rules choose their policies")
	pick("fair", "run worlds whose rules divide their limits between tenants")
	pick("zones", "run worlds in which a whole zone fails")
	pick("durable", "run worlds whose members have journals, and in which all members crash")
	pick("federation", "run worlds of several regions, whose rules have one limit for all of them")
	pick("holds", "run worlds with holds, which are settled, lapse and move with their keys")
	pick("quota", "run worlds whose Envoys spend parts of one limit without calls")
	all := flag.Bool("all", false, "continue after a failure")
	hashes := flag.Bool("hashes", false, "print the hash of each seed's events, to compare two versions of the code")
	workers := flag.Int("workers", runtime.GOMAXPROCS(0), "seeds to run in parallel")
	flag.Parse()
	made, known := kind.Bugs[*bugName]
	switch {
	case *bugName == "list":
		for name := range kind.Bugs {
			fmt.Println(name)
		}
		return 0
	case *bugName != "" && !known:
		fmt.Fprintf(os.Stderr, "no bug is called %q\n", *bugName)
		return 2
	case *one > 0:
		r := runWorld(kind.Expand(*one), made, true)
		printResult(r, len(r.Trace))
		return exitStatus(r.Failure != "")
	case *hashes:
		for seed := range *seeds {
			r := runWorld(kind.Expand(*first+seed), made, false)
			fmt.Printf("%d %016x %d %d %s\n", *first+seed, r.Hash, r.Decisions, r.Events, r.Failure)
		}
		return 0
	}
	return showSearch(&search{First: *first, Seeds: *seeds, Workers: *workers, Bug: made, Expand: kind.Expand, All: *all, Twice: 50})
}

func exitStatus(failed bool) int {
	if failed {
		return 1
	}
	return 0
}

// printResult prints a run with the last lines of its trace.
func printResult(r runResult, lines int) {
	for _, line := range r.Trace[max(0, len(r.Trace)-lines):] {
		fmt.Println(line)
	}
	fmt.Printf("\n%v\nhash %016x, %d decisions, %d events\n", r.Options, r.Hash, r.Decisions, r.Events)
	if r.Failure != "" {
		fmt.Printf("FAILED: %s\n", r.Failure)
	}
}

// showSearch runs the search, shows its progress, and returns the exit status.
func showSearch(s *search) int {
	begin, failures := time.Now(), 0
	var last atomic.Int64
	s.Done = func(n uint64) {
		t := int64(time.Since(begin) / time.Second)
		if n < s.Seeds && last.Swap(t) == t {
			return // once a second
		}
		rate := float64(n) / time.Since(begin).Seconds()
		left := time.Duration(float64(s.Seeds-n) / rate * 1e9).Round(time.Second)
		fmt.Fprintf(os.Stderr, "\r%d of %d seeds, %.0f seeds/s, %v left   ", n, s.Seeds, rate, left)
	}
	s.Failed = func(r runResult) {
		if failures++; !s.All {
			printResult(r, 100)
		}
		fmt.Printf("seed %d FAILED: %s\n", r.Options.Seed, r.Failure)
	}
	stats := s.run()
	fmt.Fprintln(os.Stderr)
	stats.print(os.Stdout)
	fmt.Printf("\n%d violations in %v\n", failures, time.Since(begin).Round(time.Second))
	return exitStatus(failures > 0)
}
