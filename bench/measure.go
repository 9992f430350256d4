package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/keyward/keyward/lab"
)

// Sample is one contestant in one round.
type Sample struct {
	Round     int     `json:"round"`
	Machine   float64 `json:"load_average"` // of the whole machine, one minute, at the end
	Full      Figures `json:"full"`         // as fast as the answers come
	Paced     Figures `json:"paced"`        // at a fixed pace
	RSS       int64   `json:"rss_bytes"`
	Forwarded float64 `json:"forwarded"` // share of Keyward's decisions
	Degraded  float64 `json:"degraded"`  // share of Keyward's decisions
}

// Figures are what one measurement says. Latencies and CPU are in microseconds.
type Figures struct {
	Calls      int     `json:"calls"`
	Errors     int     `json:"errors"`
	Over       int     `json:"over_limit"`
	CPU        float64 `json:"cpu_us"` // of the server's processes, per call
	Throughput float64 `json:"calls_per_second"`
	P50        float64 `json:"p50_us"`
	P90        float64 `json:"p90_us"`
	P99        float64 `json:"p99_us"`
	P999       float64 `json:"p999_us"`
}

// rounds measures everyone, round after round, each time another one first: whatever else the machine does meanwhile, it
// does to all.
func rounds(ctx context.Context, out io.Writer, o options, all []*running, rep *Report) error {
	for round := range o.rounds {
		for i := range all {
			r := all[(round+i)%len(all)]
			s, err := r.measure(ctx, o)
			if err != nil {
				return fmt.Errorf("%s: %w", r.Title, err)
			}
			s.Round = round + 1
			rep.add(r, s)
			fmt.Fprintf(out, "round %d/%d  %-42s %6.1f us CPU/decision  %7.0f decisions/s  p99 %6.2f ms  load average %.1f\n",
				s.Round, o.rounds, r.Title, s.Full.CPU, s.Full.Throughput, s.Full.P99/1000, s.Machine)
		}
	}
	return ctx.Err()
}

// measure warms up and measures at full speed, then at the pace.
func (r *running) measure(ctx context.Context, o options) (s Sample, err error) {
	length := time.Duration(o.seconds * float64(time.Second))
	r.note(r.load.run(ctx, min(time.Second, length), 0))
	before, err := r.paths(ctx)
	if err != nil {
		return s, err
	}
	if s.Full, err = r.figures(ctx, length, 0); err != nil {
		return s, err
	}
	if o.rate > 0 {
		if s.Paced, err = r.figures(ctx, length, o.rate); err != nil {
			return s, err
		}
	}
	after, err := r.paths(ctx)
	if err != nil {
		return s, err
	}
	s.Forwarded, s.Degraded = after.since(before)
	if s.RSS, err = r.rss(); err != nil {
		return s, err
	}
	s.Machine, err = loadAverage()
	return s, err
}

func (r *running) note(m measurement) {
	r.sent += m.answered()
	r.failed += m.Errors
}

// figures runs the load and accounts for the CPU that the contestant's processes spent meanwhile.
func (r *running) figures(ctx context.Context, length time.Duration, rate float64) (Figures, error) {
	before, err1 := r.cpu()
	m := r.load.run(ctx, length, rate)
	after, err2 := r.cpu()
	r.note(m)
	if err := errors.Join(err1, err2, ctx.Err()); err != nil {
		return Figures{}, err
	}
	if m.answered() == 0 {
		return Figures{}, fmt.Errorf("no call was answered, %d failed: %w", m.Errors, m.err)
	}
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	return Figures{
		Calls: m.answered(), Errors: m.Errors, Over: m.Over,
		CPU:        us(after-before) / float64(m.answered()),
		Throughput: float64(m.answered()) / m.Elapsed.Seconds(),
		P50:        us(quantile(m.latencies, 0.5)), P90: us(quantile(m.latencies, 0.9)),
		P99: us(quantile(m.latencies, 0.99)), P999: us(quantile(m.latencies, 0.999)),
	}, nil
}

func (r *running) cpu() (sum time.Duration, err error) {
	for _, p := range r.processes {
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

// audit asks every contestant that counts what it has counted: a decision that was not counted costs nothing.
func audit(ctx context.Context, all []*running, rep *Report) error {
	for _, r := range all {
		if r.Name == nameConstant {
			continue
		}
		after, err := r.load.counted(ctx)
		if err != nil {
			return fmt.Errorf("audit %s: %w", r.Title, err)
		}
		rep.audit(r, after-r.before-len(r.load.messages))
	}
	return nil
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
			r.load.run(ctx, (seconds+1)*time.Second, 0)
			close(loaded)
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

func loadAverage() (float64, error) {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(b), " ")
	return strconv.ParseFloat(first, 64)
}

// quantile is the value that a share q of the sorted values does not exceed (nearest rank).
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	i := int(q*float64(len(sorted)) + 0.999999)
	return sorted[min(max(i, 1), len(sorted))-1]
}
