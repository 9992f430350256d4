package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/ops/loadtest"
	"github.com/keyward/keyward/ring"
)

// aimFlood is how many times their p99 other keys may take while one key floods three Envoys.
const aimFlood = 1.2

// floodWarmUp is how long a key floods before it is measured: it must be found hot, and Envoys must have its filters.
const floodWarmUp = 6 * time.Second

// flooded is a cluster of three members behind four Envoys with routes of their own. The hot key arrives through three
// of them, which have the machine's idle time, as if on machines of their own. Other keys arrive through the fourth, so
// their latency shows the load of members and not how many requests this machine's Envoys can take.
type flooded struct {
	title   string
	refused bool // nearly all requests of the hot key are
	limit   int  // of each key, per second
	extra   string
	args    []string                   // of keyward envoy-config
	change  func(config string) string // of the printed configuration; nil: none
	aim     bool                       // its other keys have one
	self    string                     // path of this program

	lab    *lab.Lab
	app    *lab.Process
	envoys []*lab.Envoy
	others *loadtest.Load // keys of the hot key's owner
	key    floodLoad      // the hot key
	rounds []floodRound
}

// controlPath is the path of requests that have no rate limit.
const controlPath = "/flood"

// floodRound is one round: without a flood, with one of requests that have no rate limit, with one for the hot key.
type floodRound struct {
	Idle, Control, Hot float64 // p99 of the other keys, microseconds
	Unlimited          float64 // requests per second of the control
	Sent, Admitted     float64 // of the hot key, per second
	Calls, Misrouted   float64 // of all Envoys to members, and of these to others than the owner, per second
	Stray              float64 // share of misrouted calls without the hot key
	Owner              float64 // CPU seconds of the owner per second
	Failed             int
}

// newEnvoyArena returns an arena with an Envoy.
func newEnvoyArena(o options) (a *arena, done func(), err error) {
	if a, done, err = newArena(o); err == nil && a.envoy == "" {
		err = errors.New("there is no Envoy: " + a.noEnvoy)
	}
	return a, done, err
}

// flood sends requests for one key through three Envoys with routes of their own, as fast as asked for, and measures
// other keys of its owner: without any relief, with each kind of it, and with Envoy's own bounded loads.
func flood(ctx context.Context, out io.Writer, o options) (err error) {
	if err := o.validate(); err != nil {
		return err
	}
	a, done, err := newEnvoyArena(o)
	defer done()
	if err != nil {
		return err
	}
	low, high := max(1, int(o.flood)/200), 4*int(o.flood)
	filters := []string{"--hot-filters"}
	all := []*flooded{
		{title: "far above its limit, no relief", refused: true, limit: low},
		{title: "far above its limit, --caps", refused: true, limit: low, args: []string{"--caps"}, aim: true},
		{title: "far above its limit, --hot-filters", refused: true, limit: low, args: filters, aim: true},
		{title: "below its limit, no relief", limit: high},
		{title: "below its limit, --hot-filters", limit: high, args: filters, aim: true},
		{title: "below its limit, --hot-filters, dedicated", limit: high, args: filters, extra: ", metadata: {keyward: {dedicated: true}}"},
		{title: "below its limit, bounded loads", limit: high, change: boundLoads},
	}
	defer func() {
		for _, f := range all {
			err = errors.Join(err, f.close())
		}
	}()
	for i, f := range all {
		if o.only != "" && !strings.Contains(f.title, o.only) {
			continue
		}
		if err := f.start(ctx, a, filepath.Join(a.dir, fmt.Sprint("flood", i))); err != nil {
			return fmt.Errorf("%s: %w", f.title, err)
		}
		for round := range o.rounds {
			r, err := f.round(ctx, o)
			if err != nil {
				return fmt.Errorf("%s: %w", f.title, err)
			}
			f.rounds = append(f.rounds, r)
			fmt.Fprintf(out, "round %d/%d  %-42s %+v\n", round+1, o.rounds, f.title, r)
		}
		if err := f.close(); err != nil { // one at a time: they share the processors
			return err
		}
	}
	for _, f := range all {
		f.print(out)
	}
	return nil
}

// boundLoads lets a member have at most half of the calls in flight. Its weight is 1 of 1024 places.
func boundLoads(config string) string {
	const at = "            consistent_hashing_lb_config:\n"
	return strings.Replace(config, at, at+"              hash_balance_factor: 51200\n", 1)
}

// controlRoute adds a route without rate limits, which costs Envoy what the hot key's requests cost it otherwise: a
// response of its own if nearly all are refused, or a call to the application.
func (f *flooded) controlRoute(config string) string {
	const at = "              routes:\n"
	route := "{match: {prefix: " + controlPath + "}, route: {cluster: upstream}}"
	if f.refused {
		route = "{match: {prefix: " + controlPath + "}, direct_response: {status: 429}}"
	}
	return strings.Replace(config, at, at+"              - "+route+"\n", 1)
}

func (f *flooded) start(ctx context.Context, a *arena, dir string) (err error) {
	f.self = a.self
	rules := fmt.Sprintf("domain: bench\ndescriptors:\n- {key: api_key, rate_limit: {unit: second, requests_per_unit: %d}%s}\n", f.limit, f.extra)
	members := []string{"a", "b", "c"}
	if f.lab, err = lab.New(lab.Options{Dir: dir, Bin: a.bin, Expect: len(members), Insecure: true,
		Rules: map[string]string{"bench.yaml": rules}, Args: []string{"--hot-rate", fmt.Sprint(a.flood / 4)}}); err != nil {
		return err
	}
	var on []ring.Member
	var printed []string
	for _, m := range members {
		s, err := f.lab.AddSidecar(m)
		if err != nil {
			return err
		}
		on = append(on, ring.Member{ID: ring.ID(m), Weight: 1})
		printed = append(printed, "--member", m+"="+s.Direct)
	}
	ready, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := f.lab.AwaitRing(ready, members...); err != nil {
		return err
	}
	addr, err := lab.Ports{}.Addr()
	if err != nil {
		return err
	}
	if f.app, err = lab.StartProcess(dir, lab.Spec{Name: upstreamCommand, Path: a.self, Args: []string{upstreamCommand, addr}}); err != nil {
		return err
	}
	args := append([]string{"--from", "api_key=header:x-api-key", "--failure-mode-deny", "--timeout", "1s"}, f.args...)
	if f.change == nil {
		printed = []string{"--xds", f.lab.Sidecars[0].XDS}
	}
	config, err := f.printed(a, addr, append(args, printed...))
	if err != nil {
		return err
	}
	var targets []loadtest.Target
	for i := range 4 {
		e, err := f.lab.AddEnvoy(lab.EnvoyOptions{Name: fmt.Sprint("envoy", i), Path: a.envoy, Config: config})
		if err != nil {
			return err
		}
		if err := e.Await(ready, "keyward", 3); err != nil {
			return err
		}
		f.envoys, targets = append(f.envoys, e), append(targets, loadtest.Target{Addr: e.Listener})
	}
	r := ring.New(on)
	var keys []string // of a, the hot one first
	for i := 0; len(keys) <= a.keys; i++ {
		if r.At(r.Owner(ring.Hash(keyName(i)))).ID == "a" {
			keys = append(keys, keyName(i))
		}
	}
	for _, e := range f.envoys[:3] {
		if err := runIdle(e.PID()); err != nil {
			return err
		}
	}
	f.key = floodLoad{Key: keys[0], Targets: targets[:3], Conns: a.conns, Rate: a.flood, Seconds: a.seconds}
	f.others, err = startFlood(ctx, "/", keys[1:], targets[3:], a.conns)
	return err
}

// printed returns the configuration that `keyward envoy-config` prints, changed, and with a route for the control.
func (f *flooded) printed(a *arena, app string, args []string) (string, error) {
	args = append([]string{"envoy-config", "--shape", "owner-direct", "--rules", filepath.Join(f.lab.Sidecars[0].Runtime, "ratelimit", "config"),
		"--upstream", app, "--listen", "127.0.0.1:1", "--envoy-admin", "127.0.0.1:2"}, args...)
	text, err := exec.Command(filepath.Join(a.bin, "keyward"), args...).Output()
	if err != nil {
		return "", fmt.Errorf("keyward envoy-config: %w", err)
	}
	config := f.controlRoute(string(text))
	if f.change != nil {
		config = f.change(config)
	}
	if !strings.Contains(config, controlPath) || f.change != nil && !strings.Contains(config, "hash_balance_factor") {
		return "", errors.New("the printed configuration is not as expected")
	}
	return strings.NewReplacer(
		`{address: "127.0.0.1", port_value: 1}`, `{address: "@HOST@", port_value: @PORT@}`,
		`{address: "127.0.0.1", port_value: 2}`, `{address: "@ADMINHOST@", port_value: @ADMINPORT@}`,
	).Replace(config), nil
}

func (f *flooded) close() (err error) {
	if f.others != nil {
		f.others.Close()
	}
	if f.app != nil {
		err = f.app.Stop(time.Second)
	}
	if f.lab != nil {
		err = errors.Join(err, f.lab.Stop())
	}
	f.others, f.app, f.lab = nil, nil, nil
	return err
}

// round measures once.
func (f *flooded) round(ctx context.Context, o options) (r floodRound, err error) {
	length := time.Duration(o.seconds * float64(time.Second))
	if _, err := runOnly(ctx, f.others, o.rate, time.Second); err != nil { // warm up
		return r, err
	}
	idle, err1 := f.watch(ctx, length, o.rate)
	control, unlimited, err2 := f.under(ctx, o, controlPath)
	hot, sent, err3 := f.under(ctx, o, "/")
	return floodRound{
		Idle: idle.p99, Control: control.p99, Hot: hot.p99, Unlimited: unlimited.Sent, Sent: sent.Sent, Admitted: sent.Admitted,
		Calls: hot.calls, Misrouted: hot.misrouted, Stray: idle.misrouted / max(1, idle.calls), Owner: hot.cpu,
		Failed: idle.failed + control.failed + hot.failed + unlimited.Failed + sent.Failed,
	}, errors.Join(err1, err2, err3)
}

// under measures the other keys while three Envoys get requests for path as fast as asked for.
func (f *flooded) under(ctx context.Context, o options, path string) (g floodGlance, r floodResult, err error) {
	l := f.key
	if l.Path = path; path == controlPath {
		l.Key = ""
	}
	r, err = l.during(ctx, f.self, f.others, o.rate, func(length time.Duration) (err error) {
		g, err = f.watch(ctx, length, o.rate)
		return err
	})
	return g, r, err
}

// floodGlance is the cluster over a time; all but failed and p99 are per second.
type floodGlance struct {
	p99, calls, misrouted, cpu float64
	failed                     int
}

func (f *flooded) watch(ctx context.Context, length time.Duration, rate float64) (g floodGlance, err error) {
	calls1, misrouted1, cpu1, err1 := f.totals(ctx)
	m, err2 := runOnly(ctx, f.others, rate, length)
	calls2, misrouted2, cpu2, err3 := f.totals(ctx)
	took := m.Elapsed.Seconds()
	return floodGlance{microseconds(m.Latency.Quantile(0.99)), (calls2 - calls1) / took, (misrouted2 - misrouted1) / took, (cpu2 - cpu1) / took, m.Errors},
		errors.Join(err1, err2, err3)
}

func (f *flooded) totals(ctx context.Context) (calls, misrouted, cpu float64, err error) {
	for _, e := range f.envoys {
		hosts, err := e.Requests(ctx, "keyward")
		if err != nil {
			return 0, 0, 0, err
		}
		for _, n := range hosts {
			calls += float64(n)
		}
	}
	for _, s := range f.lab.Sidecars {
		body, err := lab.Get(ctx, "http://"+s.Metrics+"/metrics")
		if err != nil {
			return 0, 0, 0, err
		}
		misrouted += series(body, "keyward_misrouted_total{")
	}
	spent, err := f.lab.Sidecars[0].CPU()
	return calls, misrouted, spent.Seconds(), err
}

// print reports the medians of the rounds.
func (f *flooded) print(out io.Writer) {
	if len(f.rounds) == 0 {
		return
	}
	of := func(what func(r floodRound) float64) float64 { return medianOf(f.rounds, what) }
	ratio := of(func(r floodRound) float64 { return r.Hot / r.Control })
	fmt.Fprintf(out, "\n%s, medians: %.0f requests per second for the key, %.0f admitted, limit %d; %.0f calls per second, %.0f misrouted (%.2f %% without the key); owner %.0f %% of a CPU\n",
		f.title, of(func(r floodRound) float64 { return r.Sent }), of(func(r floodRound) float64 { return r.Admitted }), f.limit,
		of(func(r floodRound) float64 { return r.Calls }), of(func(r floodRound) float64 { return r.Misrouted }),
		of(func(r floodRound) float64 { return r.Stray * 100 }), of(func(r floodRound) float64 { return r.Owner * 100 }))
	fmt.Fprintf(out, "p99 of the owner's other keys: %.2f ms on the idle machine, %.2f ms during %.0f requests per second without a rate limit, %.2f ms during those for the key: %.2f x",
		of(func(r floodRound) float64 { return r.Idle / 1000 }), of(func(r floodRound) float64 { return r.Control / 1000 }),
		of(func(r floodRound) float64 { return r.Unlimited }), of(func(r floodRound) float64 { return r.Hot / 1000 }), ratio)
	if f.aim {
		fmt.Fprintf(out, " (aim: at most %.1f x), %s", aimFlood, met(ratio, aimFlood))
	}
	fmt.Fprintln(out)
}
