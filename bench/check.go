package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/ops/loadtest"
)

// leastAllocations is the least difference per call that is not noise from background work.
const leastAllocations = 0.1

// revision is one of the two commits that are compared.
type revision struct {
	name  string // "old" or "new"
	arena arena
}

// compared is a contestant as both commits have it.
type compared struct {
	name     string
	old, new *running
	allocs   [2][]float64 // a call, of each round; old and new
}

// check compares what decisions cost at two commits, in interleaved rounds of one run. It fails when the newer one is worse beyond noise.
func check(ctx context.Context, out io.Writer, o options) (err error) {
	if err := o.validate(); err != nil {
		return err
	}
	a, done, err := newArena(o)
	defer done()
	if err != nil {
		return err
	}
	from, to, ok := strings.Cut(o.check, "..")
	if !ok || from == "" || to == "" {
		return fmt.Errorf("-check %q: want OLD..NEW", o.check)
	}
	var revisions [2]revision
	for i, rev := range []string{from, to} {
		var remove func()
		revisions[i], remove, err = checkOut(ctx, out, a, []string{"old", "new"}[i], rev)
		defer remove()
		if err != nil {
			return err
		}
	}
	all, err := startBoth(ctx, a, revisions)
	defer func() {
		for _, c := range all {
			for _, r := range []*running{c.old, c.new} {
				if r != nil {
					err = errors.Join(err, r.close())
				}
			}
		}
	}()
	if err != nil {
		return err
	}
	return measureBoth(ctx, out, o, all)
}

// checkOut builds a commit in a work tree of its own.
func checkOut(ctx context.Context, out io.Writer, a *arena, name, rev string) (r revision, remove func(), err error) {
	dir := filepath.Join(a.dir, name)
	remove = func() { _ = exec.Command("git", "worktree", "remove", "--force", dir).Run() }
	fmt.Fprintf(out, "building %s: %s\n", name, rev)
	for _, args := range [][]string{
		{"git", "worktree", "add", "--detach", dir, rev},
		{"go", "build", "-C", dir, "-buildvcs=false", "-o", "bin/", "./cmd/sidecar", "./cmd/keyward"},
	} {
		if text, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return r, remove, fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, text)
		}
	}
	r = revision{name: name, arena: *a}
	r.arena.bin = filepath.Join(dir, "bin")
	return r, remove, nil
}

func startBoth(ctx context.Context, a *arena, revisions [2]revision) ([]*compared, error) {
	var all []*compared
	for _, c := range contestants() {
		if c.Name != nameOne && c.Name != nameThree || a.only != "" && !slices.Contains(strings.Split(a.only, ","), c.Name) {
			continue
		}
		both := &compared{name: c.Name}
		all = append(all, both)
		for i, into := range []**running{&both.old, &both.new} {
			named := c
			named.Name += "-" + revisions[i].name
			var err error
			if *into, err = start(ctx, &revisions[i].arena, named); err != nil {
				return all, fmt.Errorf("start %s: %w", named.Name, err)
			}
		}
	}
	return all, nil
}

func measureBoth(ctx context.Context, out io.Writer, o options, all []*compared) error {
	plan := loadtest.Plan{Phases: []loadtest.Phase{{Inflight: 1}, {Inflight: 64}}, Rounds: o.rounds, Seconds: o.seconds, Warm: min(o.seconds, 0.5)}
	var contenders []*loadtest.Contender
	for _, c := range all {
		contenders = append(contenders, c.old.contender(), c.new.contender())
	}
	rows, err := loadtest.Compare(ctx, plan, contenders, progress(out, plan, len(contenders)))
	if err != nil {
		return err
	}
	for range o.rounds {
		for _, c := range all {
			for i, r := range []*running{c.old, c.new} {
				n, err := r.allocations(ctx, time.Duration(o.seconds*float64(time.Second)))
				if err != nil {
					return err
				}
				c.allocs[i] = append(c.allocs[i], n)
			}
		}
	}
	return verdict(out, o.worse, plan, rows, all)
}

// allocations are those of all of r's processes, a call, with 64 in flight.
func (r *running) allocations(ctx context.Context, length time.Duration) (float64, error) {
	before, err1 := r.mallocs(ctx)
	got, err2 := r.load.Run(ctx, loadtest.Phase{Inflight: 64}, length)
	after, err3 := r.mallocs(ctx)
	return (after - before) / float64(max(1, got.Answered())), errors.Join(err1, err2, err3)
}

func (r *running) mallocs(ctx context.Context) (sum float64, err error) {
	for _, addr := range r.metrics {
		body, err := lab.Get(ctx, "http://"+addr+"/metrics")
		if err != nil {
			return 0, err
		}
		sum += series(body, "go_memstats_mallocs_total ")
	}
	return sum, nil
}

var errWorse = errors.New("the newer commit is worse")

// verdict prints a table. A figure is worse when three quarters of the rounds found it so: a bad round is noise.
func verdict(out io.Writer, worse float64, plan loadtest.Plan, rows []*loadtest.Measurement, all []*compared) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\t\tbefore\tnow\tx old (min..max)\t\t")
	var failed error
	line := func(name, what string, before, after float64, ratios []float64, enough bool) {
		s, says := loadtest.SpreadOf(ratios), "as before"
		switch {
		case quartile(ratios, 1) > 1+worse && enough:
			says, failed = "WORSE", errWorse
		case quartile(ratios, 3) < 1/(1+worse) && enough:
			says = "better"
		}
		fmt.Fprintf(w, "%s\t%s\t%.2f\t%.2f\t%.2f (%.2f..%.2f)\t%s\t\n", name, what, before, after, s.Median, s.Min, s.Max, says)
	}
	for _, c := range all {
		for _, p := range plan.Phases {
			before, after := loadtest.Find(rows, c.old.Name, p), loadtest.Find(rows, c.new.Name, p)
			var ratios []float64
			for i := range before.Rounds {
				ratios = append(ratios, after.Rounds[i].CPU/before.Rounds[i].CPU)
			}
			line(c.name, fmt.Sprintf("CPU us a call, %v", p), before.Median().CPU, after.Median().CPU, ratios, true)
		}
		before, after := loadtest.SpreadOf(c.allocs[0]).Median, loadtest.SpreadOf(c.allocs[1]).Median
		var ratios []float64
		for i := range c.allocs[0] {
			ratios = append(ratios, c.allocs[1][i]/max(c.allocs[0][i], 0.001))
		}
		line(c.name, "allocations a call", before, after, ratios, max(after-before, before-after) > leastAllocations)
	}
	_ = w.Flush()
	fmt.Fprintf(out, "worse: more than %.0f %% in three quarters of the rounds\n", 100*worse)
	return failed
}

// quartile is the first or third quartile of values, by nearest rank.
func quartile(values []float64, which int) float64 {
	v := slices.Sorted(slices.Values(values))
	if len(v) == 0 {
		return 1
	}
	i := (len(v)*which + 3) / 4 // rank, from 1
	return v[min(max(i, 1), len(v))-1]
}
