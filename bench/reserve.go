package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"google.golang.org/grpc/metadata"

	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/ops/loadtest"
	"github.com/keyward/keyward/ring"
)

// reserveRules add a limit with holds to the usual ones. A key may have as many holds as possible.
var reserveRules = rules + "  - {key: budget, rate_limit: {unit: year, requests_per_unit: 2000000000}, metadata: {keyward: {reserve: 10, hold_ttl: 10m, holds: 16384}}}\n"

// reserveFor is how long a hold is open until its Commit.
const reserveFor = 300 * time.Millisecond

// aimReserve is how many times the p99 of a decision that of a Reserve may take.
const aimReserve = 1.5

// reserveLab sends Reserves and Commits, and as many decisions, to the owner of their keys.
type reserveLab struct {
	clients []pb.RateLimitServiceClient
	keys    []string
	rate    float64
	ids     int
}

// reserve measures what a Reserve takes, relative to a decision of a rule without holds: first with no other hold, then with o.fill
// open ones. Each call is timed by the client, from when it was due.
func reserve(ctx context.Context, out io.Writer, o options) (err error) {
	if err := o.validate(); err != nil {
		return err
	}
	a, done, err := newArena(o)
	defer done()
	if err != nil {
		return err
	}
	l, err := lab.New(lab.Options{
		Dir: filepath.Join(a.dir, "reserve"), Bin: a.bin, Expect: 3, Rules: map[string]string{"bench.yaml": reserveRules},
		Args: []string{"--max-holds", "2000000"},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Stop()) }()
	x := &reserveLab{rate: o.reserve}
	if err := x.start(ctx, l, o); err != nil {
		return err
	}
	if err := x.compare(ctx, out, o, "no other hold"); err != nil || o.fill == 0 {
		return err
	}
	if err := x.open(ctx, o.fill); err != nil {
		return err
	}
	return x.compare(ctx, out, o, fmt.Sprintf("%d open holds", o.fill))
}

// start starts three members, and connects to the one that owns the keys.
func (x *reserveLab) start(ctx context.Context, l *lab.Lab, o options) error {
	names := []string{"a", "b", "c"}
	var all []ring.Member
	for _, m := range names {
		if _, err := l.AddSidecar(m); err != nil {
			return err
		}
		all = append(all, ring.Member{ID: ring.ID(m), Weight: 1})
	}
	ready, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := l.AwaitRing(ready, names...); err != nil {
		return err
	}
	r := ring.New(all)
	for i := 0; len(x.keys) < o.keys; i++ {
		if k := keyName(i); r.At(r.Owner(ring.Hash(k))).ID == "a" {
			x.keys = append(x.keys, k)
		}
	}
	a, err := newAudit(slices.Repeat([]target{{addr: l.Sidecars[0].RLS}}, o.conns), o.keys)
	if err != nil {
		return err
	}
	for _, c := range a.conns {
		x.clients = append(x.clients, pb.NewRateLimitServiceClient(c))
	}
	return nil
}

// compare measures decisions and Reserves in turns.
func (x *reserveLab) compare(ctx context.Context, out io.Writer, o options, title string) error {
	length := time.Duration(o.seconds * float64(time.Second))
	if _, err := x.run(ctx, time.Second, true); err != nil { // warm up
		return err
	}
	var p50, p99 []float64
	for round := range o.rounds {
		var h [2]loadtest.Histogram
		for i := range h {
			kind := (round + i) % 2
			var err error
			if h[kind], err = x.run(ctx, length, kind == 1); err != nil {
				return err
			}
		}
		for q, list := range map[float64]*[]float64{0.5: &p50, 0.99: &p99} {
			*list = append(*list, float64(h[1].Quantile(q))/float64(h[0].Quantile(q)))
		}
		fmt.Fprintf(out, "round %d/%d  %s: decision p50 %v, p99 %v; Reserve p50 %v, p99 %v\n", round+1, o.rounds, title,
			h[0].Quantile(0.5), h[0].Quantile(0.99), h[1].Quantile(0.5), h[1].Quantile(0.99))
	}
	s := loadtest.SpreadOf(p99)
	fmt.Fprintf(out, "%s, %.0f a second and as many Commits: a Reserve takes %.2f times the p99 of a decision (%.2f to %.2f), the aim is %.1f; p50: %.2f times\n",
		title, x.rate, s.Median, s.Min, s.Max, aimReserve, loadtest.SpreadOf(p50).Median)
	return nil
}

// run sends requests at random times, and a second call for each after reserveFor: its Commit, or another request. It returns the
// times of the first ones.
func (x *reserveLab) run(ctx context.Context, length time.Duration, holds bool) (h loadtest.Histogram, err error) {
	var mu sync.Mutex
	var calls sync.WaitGroup
	next := time.Now()
	for end := next.Add(length); next.Before(end) && ctx.Err() == nil; x.ids++ {
		time.Sleep(time.Until(next))
		due, id := next, x.ids
		calls.Go(func() {
			first := x.call(ctx, id, holds, "")
			took := time.Since(due)
			mu.Lock()
			h.Add(took)
			mu.Unlock()
			time.Sleep(reserveFor)
			if second := x.call(ctx, id, holds, "commit"); first != nil || second != nil {
				mu.Lock()
				err = cmp.Or(err, first, second)
				mu.Unlock()
			}
		})
		next = next.Add(time.Duration(rand.ExpFloat64() / x.rate * float64(time.Second)))
	}
	calls.Wait()
	return h, err
}

// open makes that many holds, which stay open.
func (x *reserveLab) open(ctx context.Context, n int) error {
	var calls sync.WaitGroup
	errs := make([]error, 64)
	for i := range errs {
		first := x.ids + i
		calls.Go(func() {
			for id := first; id < first+n && errs[i] == nil; id += len(errs) {
				errs[i] = x.call(ctx, id, true, "")
			}
		})
	}
	calls.Wait()
	x.ids += n + len(errs)
	return errors.Join(errs...)
}

// call sends one request. It fails if it is refused.
func (x *reserveLab) call(ctx context.Context, id int, holds bool, op string) error {
	e := []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "budget", Value: x.keys[id%len(x.keys)]}}
	if !holds {
		e = []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "route", Value: "search"}, {Key: "api_key", Value: x.keys[id%len(x.keys)]}}
	} else if op != "" {
		e = append(e, &ratelimitv3.RateLimitDescriptor_Entry{Key: rls.HoldEntry, Value: op})
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, rls.HoldIDHeader, fmt.Sprint("bench-", id), rls.CallerHeader, "bench")
	res, err := x.clients[id%len(x.clients)].ShouldRateLimit(ctx, &pb.RateLimitRequest{Domain: "bench", HitsAddend: 1, Descriptors: []*ratelimitv3.RateLimitDescriptor{{Entries: e}}})
	if err == nil && res.GetOverallCode() != pb.RateLimitResponse_OK {
		err = fmt.Errorf("%v %s: %v", e, op, res)
	}
	return err
}
