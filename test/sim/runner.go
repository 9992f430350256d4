package sim

import (
	"sync"
	"sync/atomic"
)

// WorldKind is a kind of world: how a seed expands to options, and the deliberate bugs that show in it.
type WorldKind struct {
	Expand func(seed uint64) Options
	Bugs   map[string]Bug
}

// Kinds has all kinds of worlds by name. The base kind has the empty name.
var Kinds = map[string]WorldKind{
	"":       {expandBase, baseBugs},
	"leases": {expandLeases, leaseBugs},
	"full":   {expandFull, fullBugs},
	"still":  {expandStill, stillBugs},
}

// Run runs the world of o once. If verbose is set, the result has a trace.
func Run(o Options, bug Bug, verbose bool) RunResult {
	return newRunner(verbose).run(o, bug)
}

// Search runs seeds on several workers. It stops when a law is violated, unless All is set.
type Search struct {
	First, Seeds uint64
	Workers      int
	Bug          Bug
	Expand       func(seed uint64) Options // nil: the base kind's
	All          bool                      // continue after a failure
	Twice        uint64                    // every Twice-th seed runs twice; 0: none does
	Done         func(n uint64)            // called after each seed
	Stop         func() bool               // called before each seed; nil: never stop
	Failed       func(r RunResult)         // called for each failure, one call at a time
}

// Run runs the seeds and returns the sum of their results.
func (s *Search) Run() *Summary {
	total := newSummary()
	var mu sync.Mutex
	var next, done atomic.Uint64
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range max(1, s.Workers) {
		wg.Go(func() {
			rings := &ringCache{}
			for {
				i := next.Add(1) - 1
				if i >= s.Seeds || stop.Load() || s.Stop != nil && s.Stop() {
					return
				}
				stats := newSummary()
				r := s.one(s.First+i, i, rings, stats)
				mu.Lock()
				total.add(stats)
				if r.Failure != "" {
					stop.Store(stop.Load() || !s.All)
					if s.Failed != nil {
						s.Failed(r)
					}
				}
				mu.Unlock()
				if n := done.Add(1); s.Done != nil {
					s.Done(n)
				}
			}
		})
	}
	wg.Wait()
	return total
}

func (s *Search) one(seed, i uint64, rings *ringCache, stats *Summary) RunResult {
	expand := s.Expand
	if expand == nil {
		expand = expandBase
	}
	o := expand(seed)
	r := runner{rings, stats, false}.run(o, s.Bug)
	stats.Seeds, stats.Decisions, stats.Events = 1, r.Decisions, r.Events
	if r.Failure == "" {
		stats.Fewest = r.Decisions
	}
	switch {
	case r.Failure != "":
		// Repeat the run with a trace.
		r = runner{rings, newSummary(), true}.run(o, s.Bug)
	case s.Twice > 0 && i%s.Twice == 0:
		if again := newRunner(false).run(o, s.Bug); again.Hash != r.Hash {
			r.Failure = "the same seed gave a different run"
		}
	}
	return r
}
