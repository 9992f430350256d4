// Command bench compares what a decision costs, side by side in one run: a grpc-go server that answers a constant, the floor
// under any server in Go, Keyward as one node and as three, envoyproxy/ratelimit with Redis, and Envoy with each of them.
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
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// options are the flags.
type options struct {
	bin        string
	seconds    float64
	rounds     int
	levels     []int
	conns      int
	keys       int
	fill       int
	rate       float64
	only       string
	quick      bool
	envoy      string
	limitador  string
	gubernator string
	out        string
	html       string
	docs       bool
	check      string
	worse      float64
	profile    string
	keep       string
	micro      bool
	move       int
	hot        float64
	flood      float64
	reserve    float64
	noCall     bool
	workers    int
	zipf       float64
}

func (o *options) define(f *flag.FlagSet) {
	o.levels = []int{1, 16, 64, 256}
	f.StringVar(&o.bin, "bin", "../bin", "`directory` of sidecar and keyward (make build); the competitor is built into its folder bench")
	f.Float64Var(&o.seconds, "seconds", 1.5, "how long each contestant is measured in each round, for each number of calls in flight and at -rate")
	f.IntVar(&o.rounds, "rounds", 3, "how often each contestant is measured")
	f.Func("inflight", "calls in flight: `numbers` with commas, each measured apart (default 1,16,64,256)", o.setLevels)
	f.IntVar(&o.conns, "conns", 6, "connections they are spread over")
	f.IntVar(&o.keys, "keys", 1000, "different keys")
	f.IntVar(&o.fill, "fill", 200_000, "keys that are counted at the end, to tell the memory of one; 0 leaves it out")
	f.Float64Var(&o.rate, "rate", 1000, "calls a second of the last measurement, each timed from when it was due; 0 leaves it out")
	f.StringVar(&o.only, "only", "", "contestants to run, comma separated: "+strings.Join(names(), ","))
	f.BoolVar(&o.quick, "quick", false, "a first impression in about a minute: fewer contestants, 1 and 64 calls in flight, half a second each")
	f.StringVar(&o.envoy, "envoy", os.Getenv("ENVOY_BIN"), "`path` of Envoy (default $ENVOY_BIN, then what scripts/envoy finds)")
	f.StringVar(&o.limitador, "limitador", "", "`path` of limitador-server 2, to measure it, too")
	f.StringVar(&o.gubernator, "gubernator", "", "`path` of gubernator 2, to measure it, too")
	f.StringVar(&o.out, "o", "report/bench.json", "`file` for the report as JSON; empty: none")
	f.StringVar(&o.html, "html", "report/bench.html", "`file` for the report as a page; empty: none")
	f.BoolVar(&o.docs, "docs", false, "put the tables of the report at -o into ../docs/benchmarks.md, make its page again, and measure nothing")
	f.StringVar(&o.check, "check", "", "compare two commits, `OLD..NEW`, and fail when the newer one costs more by -worse")
	f.Float64Var(&o.worse, "worse", 0.10, "with -check: the share that a decision may cost more")
	f.StringVar(&o.profile, "profile", "", "`directory` for CPU profiles, taken in one more round that is not measured")
	f.StringVar(&o.keep, "keep", "", "keep logs and configuration in this `directory`")
	f.IntVar(&o.move, "move", 0, "have so many counters moved from one process to another, under a load of -rate, and measure nothing else")
	f.Float64Var(&o.hot, "hot", 0, "calls per second for one hot key, in addition to other keys of its owner at -rate, with leases and without; measure nothing else")
	f.Float64Var(&o.flood, "flood", 0, "requests per second for one key through three Envoys with routes of their own, with each kind of relief; measure nothing else")
	f.Float64Var(&o.reserve, "reserve", 0, "holds per second: compare the time of a Reserve with that of a decision, also with -fill open holds; measure nothing else")
	f.BoolVar(&o.noCall, "nocall", false, "what a request costs an Envoy without a limit, with its own, with a call and without one, at -rate, with 1 and 4 workers and 100 to 10,000 keys, or with -workers and -keys; measure nothing else")
	f.IntVar(&o.workers, "workers", 1, "worker threads of an Envoy")
	f.Float64Var(&o.zipf, "zipf", 0, "exponent, above 1, of the frequency of keys behind an Envoy; 0: all alike, and 1.1 with -nocall")
	f.BoolVar(&o.micro, "micro", false, "measure the decision path without the transport, and nothing else")
}

func (o *options) setLevels(text string) error {
	o.levels = nil
	for s := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > 1000 {
			return fmt.Errorf("%q: want numbers from 1 to 1000", s)
		}
		o.levels = append(o.levels, n)
	}
	return nil
}

// hasten makes the run one of about a minute.
func (o *options) hasten() {
	if o.quick {
		o.levels, o.seconds, o.fill = []int{1, 64}, 0.5, 50_000
	}
}

func (o *options) validate() error {
	if o.move < 0 || o.hot < 0 || o.flood < 0 || o.reserve < 0 || o.fill < 0 {
		return errors.New("-move, -hot, -flood, -reserve and -fill must not be negative")
	}
	if o.seconds <= 0 || o.rounds <= 0 || o.conns <= 0 || o.keys <= 0 || o.rate < 0 {
		return errors.New("-seconds, -rounds, -conns and -keys must be positive, -rate not negative")
	}
	if o.workers <= 0 || o.zipf != 0 && o.zipf <= 1 {
		return errors.New("-workers must be positive, -zipf above 1")
	}
	return nil
}

func main() {
	if len(os.Args) == 3 {
		serve := map[string]func(addr string) error{
			constantCommand: serveConstant,
			floorCommand:    func(addr string) error { return serveConns(addr, serveFloor) },
			upstreamCommand: func(addr string) error { return serveConns(addr, serveUpstream) },
			floodCommand:    sendFlood,
		}[os.Args[1]]
		if serve != nil {
			fail(serve(os.Args[2]))
			return
		}
	}
	var o options
	o.define(flag.CommandLine)
	flag.Parse()
	o.hasten()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch {
	case o.micro:
		fail(microbench(os.Stdout))
	case o.docs:
		fail(render(o))
	case o.check != "":
		fail(check(ctx, os.Stdout, o))
	case o.move > 0:
		fail(move(ctx, os.Stdout, o))
	case o.hot > 0:
		fail(hot(ctx, os.Stdout, o))
	case o.noCall:
		if o.zipf == 0 {
			o.zipf = 1.1
		}
		workers, keys := []int{1, 4}, []int{100, 1000, 10_000}
		flag.Visit(func(f *flag.Flag) {
			switch f.Name {
			case "workers":
				workers = []int{o.workers}
			case "keys":
				keys = []int{o.keys}
			}
		})
		fail(noCall(ctx, os.Stdout, o, workers, keys))
	case o.reserve > 0:
		fail(reserve(ctx, os.Stdout, o))
	case o.flood > 0:
		fail(flood(ctx, os.Stdout, o))
	default:
		fail(run(ctx, os.Stdout, o))
	}
}

// render shows a report that is there: in the manual, and as a page.
func render(o options) error {
	rep, err := readReport(o.out)
	if err != nil {
		return err
	}
	return errors.Join(rep.writeDocs("../docs/benchmarks.md"), rep.writeHTML(o.html))
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
	chosen, left, err := choose(a)
	if err != nil {
		return err
	}
	rep := newReport(o)
	rep.LeftOut = left
	running, err := startAll(ctx, out, a, chosen)
	defer func() {
		for _, r := range running {
			err = errors.Join(err, r.close())
		}
	}()
	if err != nil {
		return err
	}
	if err := rep.measure(ctx, out, o, running); err != nil {
		return err
	}
	rep.print(out)
	if o.profile != "" {
		if err := profile(ctx, out, o, running); err != nil {
			return err
		}
	}
	if o.html != "" {
		fmt.Fprintf(out, "\nas a page: %s\n", o.html)
	}
	return errors.Join(rep.write(o.out), rep.writeHTML(o.html))
}

// arena is where the contestants are started.
type arena struct {
	options
	dir, bin, self string
	redis          string // path of redis-server; empty when there is none
	noEnvoy        string // why there is no Envoy
}

func newArena(o options) (*arena, func(), error) {
	a, done := &arena{options: o, dir: o.keep}, func() {}
	var errs [5]error
	if a.dir == "" {
		a.dir, errs[0] = lab.TempDir("keyward-bench-")
		done = func() { _ = os.RemoveAll(a.dir) }
	} else {
		a.dir, errs[0] = filepath.Abs(a.dir)
	}
	a.bin, errs[1] = filepath.Abs(o.bin)
	a.self, errs[2] = os.Executable()
	if _, errs[3] = os.Stat(filepath.Join(a.bin, "sidecar")); errs[3] != nil {
		errs[3] = fmt.Errorf("run make build first: %w", errs[3])
	}
	a.redis, _ = exec.LookPath("redis-server")
	a.envoy, a.noEnvoy = findEnvoy(o.envoy)
	for _, path := range []*string{&a.limitador, &a.gubernator} {
		if *path != "" && errs[4] == nil {
			*path, errs[4] = exec.LookPath(*path)
		}
	}
	return a, done, errors.Join(errs[:]...)
}

// choose picks the contestants that are asked for and can be had; left says, in whole sentences, which cannot.
func choose(a *arena) (chosen []contestant, left []string, err error) {
	want := map[string]bool{}
	for name := range strings.SplitSeq(a.only, ",") {
		want[strings.TrimSpace(name)] = true
	}
	for _, c := range contestants() {
		named := want[c.Name]
		if !named && (a.only != "" || c.extra || a.quick && !c.quick) {
			continue
		}
		delete(want, c.Name)
		why := ""
		switch {
		case c.envoy && a.envoy == "":
			why = "there is no Envoy: " + a.noEnvoy
		case c.lacks != nil:
			why = c.lacks(a)
		}
		if why != "" {
			left = append(left, fmt.Sprintf("LEFT OUT: %s (%s): %s.", c.Name, c.Title, why))
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
	for i, c := range chosen {
		begin := time.Now()
		r, err := start(ctx, a, c)
		if r != nil {
			all = append(all, r)
		}
		if err != nil {
			return all, fmt.Errorf("start %s: %w", c.Name, err)
		}
		fmt.Fprintf(out, "%d/%d  started %s in %s\n", i+1, len(chosen), c.Name, time.Since(begin).Round(100*time.Millisecond))
	}
	return all, nil
}
