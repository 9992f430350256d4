package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/ops/loadtest"
)

// benchOptions are the flags of `keyward bench`.
type benchOptions struct {
	compare, descriptor, pids, names []string
	domain                           string
	keys, conns                      int
	inflight                         []int
	rate                             float64
	plan                             loadtest.Plan
	remote                           bool
	tls                              certs.Files
}

// The limits of a run: it compares servers and must not exhaust them.
const (
	mostInflight = 1024
	mostMinutes  = 30
)

func newBench() *cobra.Command {
	var o benchOptions
	var output *string
	cmd := &cobra.Command{
		Use:     "bench --compare ADDRESS,ADDRESS --domain D --descriptor NAME=VALUE",
		Short:   "Load rate limit services in turns and compare CPU per decision, throughput and latency",
		Long:    helpText("bench"),
		Example: helpExamples("bench"),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			rep, err := o.run(ctx, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return show(cmd.OutOrStdout(), *output, rep, rep.Text)
		},
	}
	o.define(cmd)
	output = outputFlag(cmd)
	return cmd
}

func (o *benchOptions) define(cmd *cobra.Command) {
	s := cmd.Flags()
	s.SortFlags = false
	s.StringSliceVar(&o.compare, "compare", nil, "`addresses` of rate limit services, host:port, separated by commas")
	s.StringVar(&o.domain, "domain", "", "`domain` of the rules")
	s.StringArrayVar(&o.descriptor, "descriptor", nil, "`NAME=VALUE` of an entry of the descriptor; repeat it for each entry, in order")
	s.IntVar(&o.keys, "keys", 1000, "number of random values of {}")
	s.IntSliceVar(&o.inflight, "inflight", []int{1, 16, 64}, "calls that are open at a time; each `number` is measured separately")
	s.Float64Var(&o.rate, "rate", 500, "calls per second of a further measurement; 0: none")
	s.Float64Var(&o.plan.Seconds, "seconds", 2, "duration of each measurement of each server in each round")
	s.IntVar(&o.plan.Rounds, "rounds", 3, "number of rounds")
	s.IntVar(&o.conns, "connections", 4, "number of connections for each server")
	s.StringArrayVar(&o.pids, "pid", nil, "`ADDRESS=PID` of a process whose CPU time counts (default: the one that listens there); repeat it for each")
	s.BoolVar(&o.remote, "yes-remote", false, "allow calls to hosts other than this one")
	s.StringVar(&o.tls.Cert, "tls-cert", "", "`file` of the client certificate")
	s.StringVar(&o.tls.Key, "tls-key", "", "`file` of its key")
	s.StringVar(&o.tls.CA, "tls-ca", "", "`file` of the CA that signs the services")
	s.StringSliceVar(&o.names, "tls-peer-name", nil, "URI or DNS `names`, one of which the services' certificates must carry (default: any certificate of the CA)")
	for _, name := range []string{"compare", "domain", "descriptor"} {
		_ = cmd.MarkFlagRequired(name) // the flag exists
	}
}

// validate returns all faults of the flags, joined.
func (o *benchOptions) validate() error {
	var faults []error
	fail := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	for _, a := range o.compare {
		host, _, err := net.SplitHostPort(a)
		if err != nil {
			fail("--compare %s: want host:port", a)
		} else if ip := net.ParseIP(host); !o.remote && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			fail("--compare %s: this would load another host: confirm with --yes-remote", a)
		}
	}
	for _, n := range o.inflight {
		if n < 1 || n > mostInflight {
			fail("--inflight %d: want 1 to %d", n, mostInflight)
		}
	}
	if o.keys < 1 || o.keys > 1_000_000 || o.conns < 1 || o.conns > mostInflight || o.plan.Rounds < 1 || o.plan.Seconds <= 0 || o.rate < 0 {
		fail("--keys (at most a million), --connections, --rounds and --seconds must be positive, --rate not negative")
	}
	if len(o.phases()) == 0 {
		fail("--inflight and --rate are empty: nothing to measure")
	}
	if t := o.lasts(); t > mostMinutes*time.Minute {
		fail("this would take %v: at most %d minutes", t, mostMinutes)
	}
	return errors.Join(faults...)
}

func (o *benchOptions) phases() []loadtest.Phase {
	var all []loadtest.Phase
	for _, n := range o.inflight {
		all = append(all, loadtest.Phase{Inflight: n})
	}
	if o.rate > 0 {
		all = append(all, loadtest.Phase{Rate: o.rate})
	}
	return all
}

// lasts returns the duration of the comparison.
func (o *benchOptions) lasts() time.Duration {
	each := o.plan.Seconds*float64(len(o.phases())) + benchWarm
	return time.Duration(each * float64(len(o.compare)*o.plan.Rounds) * float64(time.Second))
}

// benchWarm is the warm-up before each server's turn, in seconds.
const benchWarm = 0.5

func (o *benchOptions) run(ctx context.Context, messages io.Writer) (*loadtest.Report, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	calls, err := o.calls()
	if err != nil {
		return nil, err
	}
	var secure *tls.Config
	if !o.tls.Empty() {
		if secure, err = certs.Client(o.tls, certs.ClientOptions{ServerSANs: o.names}); err != nil {
			return nil, err
		}
	}
	processes, err := o.processes(messages)
	if err != nil {
		return nil, err
	}
	var all []*loadtest.Contender
	for _, a := range o.compare {
		l, err := loadtest.New(ctx, loadtest.Options{Service: loadtest.RLS(), Targets: []loadtest.Target{{Addr: a, TLS: secure}}, Calls: calls, Conns: o.conns})
		if err != nil {
			return nil, err
		}
		defer l.Close()
		if err := l.Once(ctx); err != nil {
			return nil, err
		}
		all = append(all, &loadtest.Contender{Name: a, Load: l, CPU: cpuOf(processes[a])})
	}
	o.plan.Phases, o.plan.Warm = o.phases(), benchWarm
	fmt.Fprintf(messages, "%d rounds, %v in all\n", o.plan.Rounds, o.lasts().Round(time.Second))
	rows, err := loadtest.Compare(ctx, o.plan, all, func(round int, r *loadtest.Measurement, f loadtest.Figures) {
		fmt.Fprintf(messages, "round %d/%d  %s  %v: %.0f calls/s, p99 %.2f ms\n", round, o.plan.Rounds, r.Name, r.Phase, f.Throughput, f.P99/1000)
	})
	if err != nil {
		return nil, err
	}
	return loadtest.NewReport(o.plan, rows), nil
}

// calls returns the calls, one for each key.
func (o *benchOptions) calls() ([]loadtest.LoadCall, error) {
	n := 1
	if strings.Contains(strings.Join(o.descriptor, ""), "{}") {
		n = o.keys
	}
	calls := make([]loadtest.LoadCall, n)
	for i := range calls {
		d := &common.RateLimitDescriptor{}
		for _, text := range o.descriptor {
			key, value, ok := strings.Cut(text, "=")
			if !ok || key == "" {
				return nil, fmt.Errorf("--descriptor %s: want NAME=VALUE", text)
			}
			d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: key, Value: strings.ReplaceAll(value, "{}", strconv.Itoa(i))})
		}
		m, err := proto.Marshal(&pb.RateLimitRequest{Domain: o.domain, Descriptors: []*common.RateLimitDescriptor{d}})
		if err != nil {
			return nil, fmt.Errorf("--descriptor: %w", err)
		}
		calls[i].Message = m
	}
	return calls, nil
}

// processes returns the processes whose CPU time counts, by address: those of --pid, or else the one that listens
// there.
func (o *benchOptions) processes(messages io.Writer) (map[string][]int, error) {
	all := map[string][]int{}
	for _, text := range o.pids {
		i := strings.LastIndexByte(text, '=')
		pid, err := strconv.Atoi(text[i+1:])
		if i < 1 || err != nil || pid < 1 {
			return nil, fmt.Errorf("--pid %s: want ADDRESS=PID", text)
		}
		if _, err := loadtest.CPUOf(pid); err != nil {
			return nil, fmt.Errorf("--pid %s: %w", text, err)
		}
		all[text[:i]] = append(all[text[:i]], pid)
	}
	for _, a := range o.compare {
		pid, err := loadtest.Listener(a)
		switch host, _, _ := net.SplitHostPort(a); {
		case host != "localhost" && !net.ParseIP(host).IsLoopback():
		case err == nil:
			all[a] = append(all[a], pid)
		case all[a] == nil:
			fmt.Fprintf(messages, "the CPU time of %s is unknown: %v\n", a, err)
		}
	}
	return all, nil
}

// cpuOf returns a function that sums the CPU time of processes, or nil without processes.
func cpuOf(pids []int) func() (time.Duration, error) {
	if len(pids) == 0 {
		return nil
	}
	return func() (sum time.Duration, err error) {
		for _, pid := range pids {
			d, e := loadtest.CPUOf(pid)
			sum, err = sum+d, errors.Join(err, e)
		}
		return sum, err
	}
}
