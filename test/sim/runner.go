package sim

import (
	"sync"
	"sync/atomic"
)

// worldKind is a kind of world: how a seed expands to options, and the deliberate bugs that show in it.
type worldKind struct {
	Expand func(seed uint64) options
	Bugs   map[string]bug
}

// kinds has all kinds of worlds by name. The base kind has the empty name.
var kinds = map[string]worldKind{
	"":        {expandBase, baseBugs},
	"leases":  {expandLeases, leaseBugs},
	"full":    {expandFull, fullBugs},
	"still":   {expandStill, stillBugs},
	"closed":  {expandClosed, closedBugs},
	"reclaim": {expandReclaim, reclaimBugs},
	// The bugs of the base kind show here, too.
	"detection":  {expandDetection, baseBugs},
	"ring":       {expandRing, baseBugs},
	"choices":    {expandChoices, baseBugs},
	"fair":       {expandFair, fairBugs},
	"zones":      {expandZones, zoneBugs},
	"durable":    {expandDurable, durableBugs},
	"federation": {expandFederation, federationBugs},
	"holds":      {expandHolds, holdBugs},
	"quota":      {expandQuota, quotaBugs},
}

// runWorld runs the world of o once. If verbose is set, the result has a trace.
func runWorld(o options, bug bug, verbose bool) runResult {
	return newRunner(verbose).run(o, bug)
}

// search runs seeds on several workers. It stops when a law is violated, unless All is set.
type search struct {
	First, Seeds uint64
	Workers      int
	Bug          bug
	Expand       func(seed uint64) options // nil: the base kind's
	All          bool                      // continue after a failure
	Twice        uint64                    // every Twice-th seed runs twice; 0: none does
	Done         func(n uint64)            // called after each seed
	Stop         func() bool               // called before each seed; nil: never stop
	Failed       func(r runResult)         // called for each failure, one call at a time
}

// run runs the seeds and returns the sum of their results.
func (s *search) run() *summary {
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

func (s *search) one(seed, i uint64, rings *ringCache, stats *summary) runResult {
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
