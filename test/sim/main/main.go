// Command main runs the simulator with many seeds, shows its progress, and prints a summary.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/keyward/keyward/test/sim"
)

func main() {
	seeds := flag.Uint64("seeds", 5000, "number of seeds")
	first := flag.Uint64("first", 1, "first seed")
	one := flag.Uint64("seed", 0, "run only this seed and print its trace")
	bug := flag.String("bug", "", "inject a deliberate bug: its name, or list")
	leases := flag.Bool("leases", false, "run worlds with leases")
	full := flag.Bool("full", false, "run worlds with tables that are too small for their keys")
	still := flag.Bool("still", false, "run worlds in which machines stop with their clocks")
	all := flag.Bool("all", false, "continue after a failure")
	hashes := flag.Bool("hashes", false, "print the hash of each seed's events, to compare two versions of the code")
	workers := flag.Int("workers", runtime.GOMAXPROCS(0), "seeds to run in parallel")
	flag.Parse()
	kind := sim.Kinds[""]
	switch {
	case *full:
		kind = sim.Kinds["full"]
	case *still:
		kind = sim.Kinds["still"]
	case *leases:
		kind = sim.Kinds["leases"]
	}
	if *bug == "list" {
		for name := range kind.Bugs {
			fmt.Println(name)
		}
		return
	}
	made, known := kind.Bugs[*bug]
	if *bug != "" && !known {
		fmt.Fprintf(os.Stderr, "no bug is called %q\n", *bug)
		os.Exit(2)
	}
	if *one > 0 {
		r := sim.Run(kind.Expand(*one), made, true)
		report(r, len(r.Trace))
		if r.Failure != "" {
			os.Exit(1)
		}
		return
	}
	if *hashes {
		for seed := range *seeds {
			r := sim.Run(kind.Expand(*first+seed), made, false)
			fmt.Printf("%d %016x %d %d %s\n", *first+seed, r.Hash, r.Decisions, r.Events, r.Failure)
		}
		return
	}
	os.Exit(search(&sim.Search{First: *first, Seeds: *seeds, Workers: *workers, Bug: made, Expand: kind.Expand, All: *all, Twice: 50}))
}

// report prints a run with the last lines of its trace.
func report(r sim.RunResult, lines int) {
	for _, line := range r.Trace[max(0, len(r.Trace)-lines):] {
		fmt.Println(line)
	}
	fmt.Printf("\n%v\nhash %016x, %d decisions, %d events\n", r.Options, r.Hash, r.Decisions, r.Events)
	if r.Failure != "" {
		fmt.Printf("FAILED: %s\n", r.Failure)
	}
}

func search(s *sim.Search) int {
	begin, failures := time.Now(), 0
	var last atomic.Int64
	s.Done = func(n uint64) {
		t := int64(time.Since(begin) / time.Second)
		if n < s.Seeds && last.Swap(t) == t {
			return // once a second
		}
		rate := float64(n) / time.Since(begin).Seconds()
		fmt.Fprintf(os.Stderr, "\r%d of %d seeds, %.0f seeds/s, %v left   ", n, s.Seeds, rate, time.Duration(float64(s.Seeds-n)/rate*1e9).Round(time.Second))
	}
	s.Failed = func(r sim.RunResult) {
		if failures++; !s.All {
			report(r, 100)
		}
		fmt.Printf("seed %d FAILED: %s\n", r.Options.Seed, r.Failure)
	}
	stats := s.Run()
	fmt.Fprintln(os.Stderr)
	stats.Print(os.Stdout)
	fmt.Printf("\n%d violations in %v\n", failures, time.Since(begin).Round(time.Second))
	if failures > 0 {
		return 1
	}
	return 0
}
