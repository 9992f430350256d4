// Command bench compares what a decision costs, side by side in one run: a grpc-go server that answers a constant, Keyward
// as one node and as three, and envoyproxy/ratelimit with Redis.
//
// Every contestant runs as processes of its own and is driven by the same load, in interleaved rounds. The figure to look
// at is CPU per decision, the CPU time of the server's processes over the calls they answered: it survives a noisy
// machine, which throughput and latency do not.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	bin      string
	seconds  float64
	rounds   int
	inflight int
	conns    int
	keys     int
	rate     float64
	only     string
	out      string
	profile  string
	keep     string
	micro    bool
	move     int
	hot      float64
}

func (o *options) define(f *flag.FlagSet) {
	f.StringVar(&o.bin, "bin", "../bin", "`directory` of sidecar and keyward (make build); the competitor is built into its folder bench")
	f.Float64Var(&o.seconds, "seconds", 5, "how long each contestant is measured in each round, and as long again at -rate")
	f.IntVar(&o.rounds, "rounds", 3, "how often each contestant is measured")
	f.IntVar(&o.inflight, "inflight", 64, "calls in flight")
	f.IntVar(&o.conns, "conns", 6, "connections they are spread over")
	f.IntVar(&o.keys, "keys", 1000, "different keys")
	f.Float64Var(&o.rate, "rate", 1000, "calls a second of the second measurement, at a fixed pace; 0 leaves it out")
	f.StringVar(&o.only, "only", "", "contestants to run, comma separated (default all): "+strings.Join(names(), ","))
	f.StringVar(&o.out, "o", "report/bench.json", "`file` for the report as JSON; empty: none")
	f.StringVar(&o.profile, "profile", "", "`directory` for CPU profiles, taken in one more round that is not measured")
	f.StringVar(&o.keep, "keep", "", "keep logs and configuration in this `directory`")
	f.IntVar(&o.move, "move", 0, "have so many counters moved from one process to another, under a load of -rate, and measure nothing else")
	f.Float64Var(&o.hot, "hot", 0, "ask so many times a second for one key, beside others of its owner at -rate, with leases and without, and measure nothing else")
	f.BoolVar(&o.micro, "micro", false, "measure the decision path without the transport, and nothing else")
}

func (o *options) validate() error {
	if o.move < 0 || o.hot < 0 {
		return errors.New("-move and -hot must not be negative")
	}
	if o.seconds <= 0 || o.rounds <= 0 || o.inflight <= 0 || o.conns <= 0 || o.keys <= 0 || o.rate < 0 {
		return errors.New("-seconds, -rounds, -inflight, -conns and -keys must be positive, -rate not negative")
	}
	return nil
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == constantCommand {
		fail(serveConstant(os.Args[2]))
		return
	}
	var o options
	o.define(flag.CommandLine)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.micro {
		fail(microbench(os.Stdout))
		return
	}
	if o.move > 0 {
		fail(move(ctx, os.Stdout, o))
		return
	}
	if o.hot > 0 {
		fail(hot(ctx, os.Stdout, o))
		return
	}
	fail(run(ctx, os.Stdout, o))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run starts the contestants, measures them in turns and reports.
func run(ctx context.Context, out io.Writer, o options) (err error) {
	if err := o.validate(); err != nil {
		return err
	}
	debug.SetGCPercent(400) // the load's own collector competes with the servers for the same cores
	a, done, err := newArena(o)
	defer done()
	if err != nil {
		return err
	}
	chosen, left, err := choose(o.only, a.redis != "")
	if err != nil {
		return err
	}
	rep := newReport(o)
	rep.LeftOut = left
	for _, l := range left {
		fmt.Fprintln(out, l)
	}
	running, err := startAll(ctx, out, a, chosen)
	defer func() {
		for _, r := range running {
			err = errors.Join(err, r.close())
		}
	}()
	if err != nil {
		return err
	}
	if err := rounds(ctx, out, o, running, rep); err != nil {
		return err
	}
	if err := audit(ctx, running, rep); err != nil {
		return err
	}
	rep.finish()
	rep.print(out)
	if o.profile != "" {
		if err := profile(ctx, out, o, running); err != nil {
			return err
		}
	}
	return rep.write(o.out)
}

// arena is where the contestants are started.
type arena struct {
	options
	dir, bin, self string
	redis          string // path of redis-server; empty when there is none
}

func newArena(o options) (*arena, func(), error) {
	a, done := &arena{options: o, dir: o.keep}, func() {}
	var err1, err2, err3 error
	if a.dir == "" {
		a.dir, err1 = os.MkdirTemp("", "keyward-bench-")
		done = func() { _ = os.RemoveAll(a.dir) }
	}
	a.bin, err2 = filepath.Abs(o.bin)
	a.self, err3 = os.Executable()
	_, err4 := os.Stat(filepath.Join(a.bin, "sidecar"))
	if err4 != nil {
		err4 = fmt.Errorf("run make build first: %w", err4)
	}
	a.redis, _ = exec.LookPath("redis-server")
	return a, done, errors.Join(err1, err2, err3, err4)
}

// choose picks the contestants that are asked for and can be had; left says, in whole sentences, which cannot.
func choose(only string, redis bool) (chosen []contestant, left []string, err error) {
	want := map[string]bool{}
	for name := range strings.SplitSeq(only, ",") {
		want[strings.TrimSpace(name)] = true
	}
	for _, c := range contestants() {
		if only != "" && !want[c.Name] {
			continue
		}
		delete(want, c.Name)
		if c.needsRedis && !redis {
			left = append(left, fmt.Sprintf("LEFT OUT: %s, for there is no redis-server on PATH (Debian: apt-get install redis-server).", c.Title))
			continue
		}
		chosen = append(chosen, c)
	}
	delete(want, "")
	if len(want) > 0 {
		err = fmt.Errorf("no contestant %q: there are %s", slices.Sorted(maps.Keys(want)), strings.Join(names(), ", "))
	}
	return chosen, left, err
}

func startAll(ctx context.Context, out io.Writer, a *arena, chosen []contestant) ([]*running, error) {
	var all []*running
	for _, c := range chosen {
		begin := time.Now()
		r, err := start(ctx, a, c)
		if r != nil {
			all = append(all, r)
		}
		if err != nil {
			return all, fmt.Errorf("start %s: %w", c.Title, err)
		}
		fmt.Fprintf(out, "started %s in %s\n", c.Title, time.Since(begin).Round(100*time.Millisecond))
	}
	return all, nil
}
