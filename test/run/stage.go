package main

import (
	"context"
	"sync/atomic"
	"time"
)

// stage is a part of the tests with a name, a budget and a row in the final table.
type stage struct {
	name   string
	about  string
	budget time.Duration // on two processors, with everything compiled before
	needs  []string      // names of needs: without one of them the stage is skipped
	wants  []string      // needs without which some of its tests are skipped
	after  []string      // stages that must have ended
	jobs   func(context.Context, *machine) ([]*job, error)
}

// job is one run of a program, as a part of a stage.
type job struct {
	stage    *stage
	name     string
	args     []string
	dir      string       // relative to the repository; empty: its root
	env      []string     // in addition to that of the machine
	load     float64      // processors that it keeps busy; what runs side by side adds up to the machine's
	idle     bool         // it only computes: it runs at idle priority, one at a time, in addition to all others
	apart    bool         // in a network namespace of its own, where the machine can make one
	alone    bool         // no other job runs, not even an idle one: its assertions need the machine for themselves
	pid      atomic.Int64 // of its first process, once it runs
	optional bool         // what it brings may be missing: the stages that need it say so
}

// command returns a stage that runs one command.
func command(load float64, args ...string) func(context.Context, *machine) ([]*job, error) {
	return func(context.Context, *machine) ([]*job, error) {
		return []*job{{args: args, load: load}}, nil
	}
}

// idly makes the jobs of a stage run at idle priority.
func idly(jobs func(context.Context, *machine) ([]*job, error)) func(context.Context, *machine) ([]*job, error) {
	return func(ctx context.Context, m *machine) ([]*job, error) {
		all, err := jobs(ctx, m)
		for _, j := range all {
			j.idle = true
		}
		return all, err
	}
}
