package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/ops/loadtest"
	"github.com/keyward/keyward/ring"
)

// aimMove is how many times their CPU decisions may cost while counters are moved.
const aimMove = 1.2

// newcomerWeight gives the newcomer nearly all keys of a member of weight 1.
const newcomerWeight = 100

// moved is the result of one move.
type moved struct {
	Counters float64       // that the newcomer got
	Took     time.Duration // from the first that was sent to the last
	Giver    time.Duration // CPU that the giver spent meanwhile
	Taker    time.Duration // CPU that the newcomer spent meanwhile
	Before   paced         // decisions of the giver's own keys before
	During   paced         // and meanwhile
}

// paced is decisions over a time.
type paced struct {
	decisions float64
	cpu       time.Duration
	latency   loadtest.Histogram
}

func (p paced) each() float64 {
	if p.decisions == 0 {
		return 0
	}
	return float64(p.cpu) / p.decisions / float64(time.Microsecond)
}

func (p paced) String() string {
	ms := func(q float64) float64 { return float64(p.latency.Quantile(q)) / float64(time.Millisecond) }
	return fmt.Sprintf("%6.1f us CPU/decision, p50 %.2f ms, p99 %.2f ms, p99.9 %.2f ms", p.each(), ms(0.5), ms(0.99), ms(0.999))
}

// move has counters moved twice: with nothing else to do, which says what the move itself costs, and under load on keys
// that stay, whose decisions must hardly cost more.
func move(ctx context.Context, out io.Writer, o options) error {
	if err := o.validate(); err != nil {
		return err
	}
	if o.rate <= 0 {
		return errors.New("-move needs a -rate")
	}
	a, done, err := newArena(o)
	defer done()
	if err != nil {
		return err
	}
	idle, err := moveOnce(ctx, a, "idle", 0)
	if err != nil {
		return fmt.Errorf("without load: %w", err)
	}
	loaded, err := moveOnce(ctx, a, "loaded", o.rate)
	if err != nil {
		return fmt.Errorf("under load: %w", err)
	}
	printMoves(out, o.rate, idle, loaded)
	return nil
}

func printMoves(out io.Writer, rate float64, idle, loaded moved) {
	for _, m := range []struct {
		what string
		moved
	}{{"without load", idle}, {fmt.Sprintf("at %g calls a second", rate), loaded}} {
		fmt.Fprintf(out, "%s: %.0f counters in %.2f s; CPU %.2f s of the giver, %.2f s of the newcomer\n", m.what, m.Counters, m.Took.Seconds(), m.Giver.Seconds(), m.Taker.Seconds())
	}
	net := loaded.During
	net.cpu -= time.Duration(float64(idle.Giver) * loaded.Counters / max(1, idle.Counters))
	fmt.Fprintf(out, "before the move:  %v\nduring the move:  %v\n", loaded.Before, loaded.During)
	r := net.each() / loaded.Before.each()
	fmt.Fprintf(out, "aim: decisions during the move cost at most %.1f x their CPU, the cost of the move without load apart: %.2f x (%.1f us), %s; with it %.2f x\n",
		aimMove, r, net.each(), met(r, aimMove), loaded.During.each()/loaded.Before.each())
}

// moveOnce fills a member, has another join that takes nearly all of its keys, and watches.
func moveOnce(ctx context.Context, a *arena, name string, rate float64) (m moved, err error) {
	l, err := lab.New(lab.Options{
		Dir: filepath.Join(a.dir, name), Bin: a.bin, Rules: map[string]string{"bench.yaml": rules},
		Args: []string{"--max-keys", strconv.Itoa(3 * a.move), "--domain-quota", strconv.Itoa(3 * a.move)},
	})
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, l.Stop()) }()
	giver, err := l.AddSidecar("a")
	if err != nil {
		return m, err
	}
	ready, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := l.AwaitRing(ready, "a"); err != nil {
		return m, err
	}
	ld, err := stayingLoad(ctx, a.options, giver.RLS)
	if err != nil {
		return m, err
	}
	defer ld.Close()
	filler, err := newAudit([]target{{addr: giver.RLS}}, 0)
	if err != nil {
		return m, err
	}
	defer filler.close()
	if err := fill(ctx, filler.conns[0], a.move+a.move/newcomerWeight); err != nil {
		return m, err
	}
	var driven driver
	if rate > 0 {
		driven.start(ctx, ld, rate)
		defer driven.stop()
	}
	if m.Before, err = driven.over(ctx, giver, time.Duration(a.seconds*float64(time.Second))); err != nil {
		return m, err
	}
	taker, err := l.AddSidecar("b", "--weight", strconv.Itoa(newcomerWeight))
	if err != nil {
		return m, err
	}
	return m, m.watch(ctx, giver, taker, &driven, 0.97*float64(a.move))
}

// stayingLoad is a load on keys that the giver owns before and after.
func stayingLoad(ctx context.Context, o options, addr string) (*loadtest.Load, error) {
	r := ring.New([]ring.Member{{ID: "a", Weight: 1}, {ID: "b", Weight: newcomerWeight}})
	return loadOf(ctx, []target{{addr: addr}}, o.conns, r, o.keys, request)
}

// fill charges n keys once each, many in a request.
func fill(ctx context.Context, conn *grpc.ClientConn, n int) error {
	const each = 100
	client := pb.NewRateLimitServiceClient(conn)
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for w := range errs {
		wg.Go(func() {
			for first := w * each; first < n && errs[w] == nil; first += each * len(errs) {
				req := &pb.RateLimitRequest{Domain: "bench"}
				for i := range each {
					req.Descriptors = append(req.Descriptors, &ratelimitv3.RateLimitDescriptor{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{
						{Key: "route", Value: "search"}, {Key: "api_key", Value: fmt.Sprintf("moving-%08d", first+i)},
					}})
				}
				c, cancel := context.WithTimeout(ctx, 10*time.Second)
				_, errs[w] = client.ShouldRateLimit(c, req)
				cancel()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// driver asks all the time and keeps the latencies by when they were seen.
type driver struct {
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu    sync.Mutex
	parts []part // guarded by mu
}

type part struct {
	begin, end time.Time
	latency    loadtest.Histogram
}

func (d *driver) start(ctx context.Context, l *loadtest.Load, rate float64) {
	ctx, d.cancel = context.WithCancel(ctx)
	d.done.Go(func() {
		for ctx.Err() == nil {
			p := part{begin: time.Now()}
			got, _ := l.Run(ctx, loadtest.Phase{Rate: rate}, 250*time.Millisecond) // what fails has no latency
			p.latency, p.end = got.Latency, time.Now()
			d.mu.Lock()
			d.parts = append(d.parts, p)
			d.mu.Unlock()
		}
	})
}

func (d *driver) stop() {
	d.cancel()
	d.done.Wait()
}

// between adds up the latencies of the parts that lie completely between two times.
func (d *driver) between(begin, end time.Time) (sum loadtest.Histogram) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.parts {
		if p := &d.parts[i]; !p.begin.Before(begin) && !p.end.After(end) {
			sum.Merge(&p.latency)
		}
	}
	return sum
}

// over accounts for a time in which nothing else happens.
func (d *driver) over(ctx context.Context, s *lab.Sidecar, length time.Duration) (paced, error) {
	if d.cancel == nil {
		return paced{}, nil
	}
	begin, err1 := account(ctx, s)
	select {
	case <-ctx.Done():
	case <-time.After(length):
	}
	end, err2 := account(ctx, s)
	return d.since(begin, end), errors.Join(err1, err2, ctx.Err())
}

// since is the decisions between two accounts.
func (d *driver) since(begin, end accounted) paced {
	return paced{decisions: end.decisions - begin.decisions, cpu: end.cpu - begin.cpu, latency: d.between(begin.at, end.at)}
}

// accounted is a process at an instant.
type accounted struct {
	at             time.Time
	cpu            time.Duration
	decisions      float64
	sent, received float64 // counters, copies ahead of the change included
}

func account(ctx context.Context, s *lab.Sidecar) (a accounted, err error) {
	body, err := lab.Get(ctx, "http://"+s.Metrics+"/metrics")
	if err != nil {
		return a, err
	}
	a.at = time.Now()
	a.decisions = series(body, "keyward_decisions_total{")
	a.sent = series(body, `keyward_handoff_keys_total{direction="sent"`)
	a.received = series(body, `keyward_handoff_keys_total{direction="received"`)
	a.cpu, err = s.CPU()
	return a, err
}

// series adds up the series of a scrape that begin so.
func series(scrape []byte, prefix string) (sum float64) {
	for line := range strings.Lines(string(scrape)) {
		if !strings.HasPrefix(line, prefix) {
			continue
		}
		text := strings.TrimSpace(line)
		if v, err := strconv.ParseFloat(text[strings.LastIndexByte(text, ' ')+1:], 64); err == nil {
			sum += v
		}
	}
	return sum
}

// watch follows the move from the first counter that is sent until none is any more and the newcomer has enough.
func (m *moved) watch(ctx context.Context, giver, taker *lab.Sidecar, d *driver, enough float64) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var begin, end accounted // of the giver
	var took, given accounted
	last := "nothing was seen"
	err := lab.Await(ctx, fmt.Sprintf("%.0f counters to be moved", enough), func(ctx context.Context) error {
		g, err1 := account(ctx, giver)
		t, err2 := account(ctx, taker)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if begin.at.IsZero() || g.sent == 0 {
			begin, end, took = g, g, t
		}
		if g.sent > end.sent {
			end, given = g, t
		}
		if t.received < enough || g.at.Sub(end.at) < time.Second {
			last = fmt.Sprintf("%.0f sent, %.0f received", g.sent, t.received)
			return errors.New(last)
		}
		m.Counters = t.received
		return nil
	})
	m.Took, m.Giver, m.Taker = end.at.Sub(begin.at), end.cpu-begin.cpu, given.cpu-took.cpu
	m.During = d.since(begin, end)
	if err != nil {
		return fmt.Errorf("%w; at last %s", err, last)
	}
	return nil
}
