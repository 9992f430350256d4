package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/ops/loadtest"
)

// killNoCall is the most CPU time that a request without a call may add in Envoy, as a part of what a call adds. Above it,
// the quota service is not worth its rules, and goes.
const killNoCall = 0.25

// warmNoCall is how long each row runs before the first round.
const warmNoCall = 6 * time.Second

const nameEnvoyRLQS = "envoy-rlqs"

// quotaRules are rules with the same keys, whose limit Envoy spends itself. Its first requests are admitted, so all rows
// answer all requests.
var quotaRules = strings.Replace(rules, fmt.Sprintf("{unit: year, requests_per_unit: %d}", uint32(limitPerYear)),
	fmt.Sprintf("{unit: day, requests_per_unit: %d}\n        metadata: {keyward: {mechanism: quota, first: allow, envoys: 1000}}", uint32(limitPerYear)), 1)

// withoutCalls are the rows of Envoys that decide without a call for each request.
func withoutCalls() []contestant {
	return []contestant{
		{Name: nameEnvoyRLQS, Title: "Keyward, one node, RLQS", envoy: true, extra: true, start: startRLQS},
	}
}

// startRules starts a member with these rules.
func startRules(ctx context.Context, a *arena, r *running, rules string, args ...string) (*lab.Sidecar, error) {
	l, err := lab.New(lab.Options{Dir: r.dir, Bin: a.bin, Insecure: true, Rules: map[string]string{"bench.yaml": rules}, Args: args})
	if err != nil {
		return nil, err
	}
	r.labs = append(r.labs, l)
	s, err := l.AddSidecar("a")
	if err != nil {
		return nil, err
	}
	r.processes = append(r.processes, s.Process)
	return s, l.AwaitRing(ctx, "a")
}

func startRLQS(ctx context.Context, a *arena, r *running) error {
	s, err := startRules(ctx, a, r, quotaRules)
	if err != nil {
		return err
	}
	return startEnvoy(ctx, a, r, func(e *lab.EnvoyOptions) error {
		e.Shape, e.Args = "rlqs", append([]string{"--sidecar", s.RLS}, limitArgs...)
		return nil
	})
}

// zipfCalls draws requests of users whose frequency falls with their rank to the power of s.
func zipfCalls(keys int, s float64) []loadtest.LoadCall {
	all := envoyCalls(keys)
	z := rand.NewZipf(rand.New(rand.NewPCG(1, 1)), s, 1, uint64(keys-1))
	calls := make([]loadtest.LoadCall, 4*max(keys, 2500))
	for i := range calls {
		calls[i] = all[z.Uint64()]
	}
	return calls
}

// noCall compares what Envoy spends on a request without a rate limit, with its own, with a call, and without one, for
// several numbers of workers and keys.
func noCall(ctx context.Context, out io.Writer, o options, workers, keys []int) error {
	if err := o.validate(); err != nil {
		return err
	}
	a, done, err := newEnvoyArena(o)
	defer done()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%g requests a second over %d connections, Zipf %g; %d rounds of %g s in turns\n\n", o.rate, o.conns, o.zipf, o.rounds, o.seconds)
	fmt.Fprintln(out, "| workers, keys | row | Envoy CPU us | added | sidecar CPU us | p50 us added | p99 us added | added CPU / RLS's |")
	fmt.Fprintln(out, "|---|---|--:|--:|--:|--:|--:|--:|")
	for _, workers := range workers {
		for _, keys := range keys {
			b := *a
			b.workers, b.keys, b.dir = workers, keys, filepath.Join(a.dir, fmt.Sprintf("nocall-%d-%d", workers, keys))
			if err := b.noCall(ctx, out); err != nil {
				return fmt.Errorf("%d workers, %d keys: %w", workers, keys, err)
			}
		}
	}
	return nil
}

// noCall measures one number of workers and keys.
func (a *arena) noCall(ctx context.Context, out io.Writer) (err error) {
	names := []string{nameEnvoyNone, nameEnvoyLocal, nameEnvoyOne, nameEnvoyRLQS, nameEnvoyModule}
	var all []*running
	defer func() {
		for _, r := range all {
			err = errors.Join(err, r.close())
		}
	}()
	var contenders []*loadtest.Contender
	for _, c := range contestants() {
		if !slices.Contains(names, c.Name) || c.lacks != nil && c.lacks(a) != "" {
			continue
		}
		r, err := start(ctx, a, c)
		if r != nil {
			all = append(all, r)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
		if _, err := r.load.Run(ctx, loadtest.Phase{Rate: 2 * a.rate}, warmNoCall); err != nil { // Envoys get to know the keys
			return err
		}
		contenders = append(contenders, r.contender())
	}
	paced := loadtest.Phase{Rate: a.rate}
	plan := loadtest.Plan{Phases: []loadtest.Phase{paced}, Rounds: a.rounds, Seconds: a.seconds, Warm: 0.2}
	rows, err := loadtest.Compare(ctx, plan, contenders, func(int, *loadtest.Measurement, loadtest.Figures) {})
	if err != nil {
		return err
	}
	none, calls := loadtest.Find(rows, nameEnvoyNone, paced), loadtest.Find(rows, nameEnvoyOne, paced)
	for _, r := range all {
		fmt.Fprintln(out, noCallRow(r, a, loadtest.Find(rows, r.Name, paced), none, calls))
	}
	return nil
}

// noCallRow formats a row. CPU is that of all rounds together, which the kernel's clock of 10 ms allows; latencies are
// medians of the differences to the row without a limit in the same round.
func noCallRow(r *running, a *arena, m, none, calls *loadtest.Measurement) string {
	added := func(figure func(f *loadtest.Figures) float64) float64 {
		var all []float64
		for i := range m.Rounds {
			all = append(all, figure(&m.Rounds[i])-figure(&none.Rounds[i]))
		}
		return loadtest.SpreadOf(all).Median
	}
	own, base := perCall(m, proxyCPU), perCall(none, proxyCPU)
	part := (own - base) / (perCall(calls, proxyCPU) - base)
	ratio := "-"
	if m != none {
		ratio = fmt.Sprintf("%.2f", part)
	}
	if (r.Name == nameEnvoyRLQS || r.Name == nameEnvoyModule) && part > killNoCall {
		ratio += fmt.Sprintf(" (above %g)", killNoCall)
	}
	row := fmt.Sprintf("| %d, %d | %s | %.1f | %.1f | %.1f | %.0f | %.0f | %s |", a.workers, a.keys, r.Title, own, own-base, perCall(m, loadtest.CPU),
		added(func(f *loadtest.Figures) float64 { return f.P50 }), added(func(f *loadtest.Figures) float64 { return f.P99 }), ratio)
	if sum := m.Median(); sum.Errors+sum.Over > 0 {
		row += fmt.Sprintf(" %d failed, %d refused of %d", sum.Errors, sum.Over, sum.Calls)
	}
	return row
}

func proxyCPU(f *loadtest.Figures) float64 { return f.Proxy }

// perCall returns a figure that is given for a call, over all rounds.
func perCall(m *loadtest.Measurement, figure func(f *loadtest.Figures) float64) float64 {
	sum, calls := 0.0, 0
	for i := range m.Rounds {
		sum, calls = sum+figure(&m.Rounds[i])*float64(m.Rounds[i].Calls), calls+m.Rounds[i].Calls
	}
	return sum / float64(max(1, calls))
}
