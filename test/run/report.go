package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// skip is a stage or test that was skipped.
type skip struct{ what, why, bring string }

// skips returns what a stage skipped.
func (s *status) skips() (out []skip) {
	if s.skipped != "" {
		return []skip{{s.name, s.skipped, s.bring}}
	}
	for _, r := range s.results {
		if r.verdict == "SKIP" {
			out = append(out, skip{s.name + " " + r.name, r.reason(), ""})
		}
	}
	return out
}

// counts returns how many tests of a stage passed, failed and were skipped. A command without tests counts as one.
func (s *status) counts() (passed, failed, skipped int) {
	passed = s.passed
	for _, r := range s.results {
		switch r.verdict {
		case "PASS":
			passed++
		case "FAIL":
			failed++
		default:
			skipped++
		}
	}
	if s.skipped != "" {
		skipped++
	}
	return passed, max(failed, len(s.failures)), skipped
}

// report prints the tables.
func (q *queue) report() {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := tabwriter.NewWriter(q.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nstage\ttime\tbudget\tprocessor\tpassed\tfailed\tskipped\t\n")
	var passed, failed, skipped int
	var cpu time.Duration
	for _, s := range q.stages {
		if !s.done && !s.begin.IsZero() {
			s.end = time.Now() // interrupted
		}
		p, f, k := s.counts()
		passed, failed, skipped, cpu = passed+p, failed+f, skipped+k, cpu+s.cpu
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s%s\n", s.name, short(s.took()), short(s.budget), short(s.cpu), p, f, k, s.verdict(), s.over())
	}
	fmt.Fprintf(w, "all\t%s\t\t%s\t%d\t%d\t%d\t\n", short(time.Since(q.begin)), short(cpu), passed, failed, skipped)
	w.Flush()
	q.slowest(12)
	q.missed()
	fmt.Fprintf(q.out, "\n%d passed, %d failed, %d skipped\n", passed, failed, skipped)
}

// slowest prints the n slowest tests.
func (q *queue) slowest(n int) {
	type row struct {
		stage string
		result
	}
	var rows []row
	for _, s := range q.stages {
		for _, r := range s.results {
			rows = append(rows, row{s.name, r})
		}
	}
	if len(rows) == 0 {
		return
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(b.took, a.took) })
	w := tabwriter.NewWriter(q.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nslowest tests\tseconds\t\n")
	for _, r := range rows[:min(n, len(rows))] {
		fmt.Fprintf(w, "%s %s\t%.1f\t%s\n", r.stage, r.name, r.took.Seconds(), strings.TrimPrefix(r.pkg, "github.com/keyward/keyward/"))
	}
	w.Flush()
}

// missed prints what was skipped, why, and how to run it.
func (q *queue) missed() {
	var all []skip
	for _, s := range q.stages {
		all = append(all, s.skips()...)
	}
	if q.m.alone != "" {
		fmt.Fprintf(q.out, "\nthe tests of e2e ran one after the other: %s\n", q.m.alone)
	}
	if len(all) == 0 {
		return
	}
	w := tabwriter.NewWriter(q.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nnot run\twhy\twhat brings it\n")
	for _, s := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\n", s.what, s.why, s.bring)
	}
	w.Flush()
}
