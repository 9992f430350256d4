package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/ops/loadtest"
)

// measure measures everyone, round after round, then the latency at half of what Keyward can do, then what is left behind in memory.
func (rep *Report) measure(ctx context.Context, out io.Writer, o options, all []*running) error {
	var contenders []*loadtest.Contender
	for _, r := range all {
		contenders = append(contenders, r.contender())
		rep.Contestants = append(rep.Contestants, &Entry{Name: r.Name, Title: r.Title, Envoy: r.envoy})
	}
	before := make([]decisions, len(all))
	for i, r := range all {
		var err error
		if before[i], err = r.paths(ctx); err != nil {
			return err
		}
	}
	plan := loadtest.Plan{Phases: rep.phases(), Rounds: o.rounds, Seconds: o.seconds, Warm: min(o.seconds, 0.5)}
	var err error
	if rep.Results, err = loadtest.Compare(ctx, plan, contenders, progress(out, plan, len(all))); err != nil {
		return err
	}
	if err := rep.measureHalf(ctx, out, plan, contenders); err != nil {
		return err
	}
	for i, r := range all {
		if err := rep.Contestants[i].look(ctx, r, before[i], o.fill); err != nil {
			return fmt.Errorf("%s: %w", r.Name, err)
		}
	}
	rep.judge()
	return nil
}

// measureHalf loads one node, the constant server and the floor with half of the calls that the node, and then the constant server, has
// answered at most.
func (rep *Report) measureHalf(ctx context.Context, out io.Writer, plan loadtest.Plan, all []*loadtest.Contender) error {
	plan.Phases = nil
	for _, name := range []string{nameOne, nameConstant} {
		if half := math.Round(rep.most(name) / 2); half > 0 && rep.Rate > 0 {
			plan.Phases = append(plan.Phases, loadtest.Phase{Rate: half})
		}
	}
	all = slices.DeleteFunc(slices.Clone(all), func(c *loadtest.Contender) bool {
		return c.Name != nameOne && c.Name != nameConstant && c.Name != nameFloor
	})
	if len(plan.Phases) == 0 {
		return nil
	}
	fmt.Fprintln(out, "half of what one node, and the constant server, can do:", plan.Phases)
	rows, err := loadtest.Compare(ctx, plan, all, progress(out, plan, len(all)))
	rep.Half = rows
	return err
}

// most is the calls a second that a contestant has answered, with as many in flight as suit it best.
func (rep *Report) most(name string) (most float64) {
	for _, r := range rep.Results {
		if r.Name == name && r.Phase.Rate == 0 {
			most = max(most, r.Over(loadtest.Throughput).Median)
		}
	}
	return most
}

// progress prints a line for each contestant's round, with how much is left.
func progress(out io.Writer, p loadtest.Plan, contenders int) func(int, *loadtest.Measurement, loadtest.Figures) {
	done, all := 0, p.Rounds*contenders*len(p.Phases)
	var line strings.Builder
	return func(round int, r *loadtest.Measurement, f loadtest.Figures) {
		done++
		fmt.Fprintf(&line, "  %v: %.1f us", r.Phase, f.CPU+f.Proxy)
		if f.Errors > 0 {
			fmt.Fprintf(&line, " (%d FAILED)", f.Errors)
		}
		if done%len(p.Phases) == 0 {
			fmt.Fprintf(out, "%3d %%  round %d/%d  %-24s CPU a call%s\n", 100*done/all, round, p.Rounds, r.Name, line.String())
			line.Reset()
		}
	}
}

// contender is r for a comparison.
func (r *running) contender() *loadtest.Contender {
	c := &loadtest.Contender{Name: r.Name, Load: counter{r, r.load}, CPU: func() (time.Duration, error) { return cpuOf(r.processes) }}
	if r.proxies != nil {
		c.Proxy = func() (time.Duration, error) { return cpuOf(r.proxies) }
	}
	return c
}

// counter keeps count of the calls of a load.
type counter struct {
	*running
	load loadtest.Runner
}

func (c counter) Run(ctx context.Context, p loadtest.Phase, length time.Duration) (loadtest.Calls, error) {
	got, err := c.load.Run(ctx, p, length)
	c.sent += got.Answered()
	c.failed += got.Errors
	return got, err
}

func cpuOf(all []*lab.Process) (sum time.Duration, err error) {
	for _, p := range all {
		d, e := p.CPU()
		sum, err = sum+d, errors.Join(err, e)
	}
	return sum, err
}

func (r *running) rss() (sum int64, err error) {
	for _, p := range r.processes {
		n, e := p.RSS()
		sum, err = sum+n, errors.Join(err, e)
	}
	return sum, err
}

// look reads what a contestant has become: its memory, how it decided, and whether it has counted what it answered. A decision that was not
// counted costs nothing.
func (e *Entry) look(ctx context.Context, r *running, before decisions, fillWith int) error {
	var err1, err2 error
	e.RSS, err1 = r.rss()
	after, err2 := r.paths(ctx)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	e.Forwarded, e.Degraded = after.since(before)
	if r.audit == nil || r.Name == nameConstant || r.Name == nameFloor {
		return nil
	}
	counted, err := r.audit.counted(ctx)
	if err != nil {
		return err
	}
	missing := r.sent - (counted - r.before - r.audit.keys)
	e.Uncounted = &missing
	if fillWith == 0 {
		return nil
	}
	if err := fill(ctx, r.audit.conns[0], fillWith); err != nil {
		return err
	}
	full, err := r.rss()
	e.KeyBytes = float64(full-e.RSS) / float64(fillWith)
	return err
}

// decisions are Keyward's, by how they were reached.
type decisions map[string]float64

// paths reads Keyward's own count; nothing of others.
func (r *running) paths(ctx context.Context) (decisions, error) {
	d := decisions{}
	for _, addr := range r.metrics {
		body, err := lab.Get(ctx, "http://"+addr+"/metrics")
		if err != nil {
			return nil, err
		}
		if err := d.read(body); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// read adds the series keyward_decisions_total{...,path="P"} N of a scrape.
func (d decisions) read(scrape []byte) error {
	lines := bufio.NewScanner(bytes.NewReader(scrape))
	for lines.Scan() {
		labels, ok := strings.CutPrefix(lines.Text(), "keyward_decisions_total{")
		if !ok {
			continue
		}
		_, rest, _ := strings.Cut(labels, `path="`)
		path, value, _ := strings.Cut(rest, `"} `)
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return fmt.Errorf("read /metrics: %q: %w", lines.Text(), err)
		}
		d[path] += n
	}
	return lines.Err()
}

// since is the shares of the decisions made between the two readings.
func (d decisions) since(before decisions) (forwarded, degraded float64) {
	all := 0.0
	for path, n := range d {
		all += n - before[path]
	}
	if all == 0 {
		return 0, 0
	}
	share := func(path string) float64 { return (d[path] - before[path]) / all }
	return share("forwarded"), share("degraded")
}

// profile drives everyone once more and saves a CPU profile of each process that offers one.
func profile(ctx context.Context, out io.Writer, o options, all []*running) error {
	if err := os.MkdirAll(o.profile, 0o755); err != nil {
		return err
	}
	const seconds = 10
	for _, r := range all {
		loaded := make(chan struct{})
		go func() {
			defer close(loaded)
			_, _ = r.load.Run(ctx, loadtest.Phase{Inflight: 64}, (seconds+1)*time.Second)
		}()
		fetched := make(chan error, len(r.debug))
		for i, addr := range r.debug {
			file := filepath.Join(o.profile, fmt.Sprintf("%s-%d.pb.gz", r.Name, i))
			go func() {
				body, err := lab.Get(ctx, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", addr, seconds))
				fetched <- errors.Join(err, os.WriteFile(file, body, 0o644))
			}()
		}
		var err error
		for range r.debug {
			err = errors.Join(err, <-fetched)
		}
		<-loaded
		if err != nil {
			return fmt.Errorf("profile %s: %w", r.Title, err)
		}
	}
	fmt.Fprintf(out, "profiles are in %s: go tool pprof -top FILE\n", o.profile)
	return nil
}
