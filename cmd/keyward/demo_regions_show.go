package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/lab"
)

// demoRegion is one region, its traffic and the results.
type demoRegion struct {
	name    string
	budget  federation.Budget
	sidecar *lab.Sidecar
	wan     *lab.WAN
	conn    *grpc.ClientConn
	rate    atomic.Int64 // requests per second
	cut     atomic.Bool

	mu       sync.Mutex
	admitted map[int64]int // by the window in which a request was both sent and answered
	all      int           // admitted requests
	denied   int
	failed   int
}

func (r *demoRegion) dial() (err error) {
	r.admitted = map[int64]int{}
	r.conn, err = grpc.NewClient("passthrough:///"+r.sidecar.RLS, grpc.WithTransportCredentials(insecure.NewCredentials()))
	return err
}

func (r *demoRegion) close() {
	if r.conn != nil {
		_ = r.conn.Close()
	}
	if r.wan != nil {
		r.wan.Close()
	}
}

// ready reports whether the region's member decides.
func (r *demoRegion) ready(ctx context.Context) error {
	if !r.sidecar.Running() {
		return errors.New(r.sidecar.Tail(500))
	}
	_, err := lab.Get(ctx, "http://"+r.sidecar.Metrics+"/readyz")
	return err
}

// send sends the region's traffic until ctx ends, and waits for the last answer.
func (r *demoRegion) send(ctx context.Context) {
	var calls sync.WaitGroup
	defer calls.Wait()
	for pause(ctx, time.Second/time.Duration(r.rate.Load())) {
		calls.Go(func() { r.ask(context.WithoutCancel(ctx)) })
	}
}

// ask sends one request and counts the outcome.
func (r *demoRegion) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	sent := demoWindow(time.Now())
	reply, err := rlsv3.NewRateLimitServiceClient(r.conn).ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{
		Domain: "demo", Descriptors: []*ratelimitv3.RateLimitDescriptor{{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "plan", Value: "gold"}}}},
	})
	answered := demoWindow(time.Now())
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err != nil:
		r.failed++
	case reply.GetOverallCode() == rlsv3.RateLimitResponse_OK:
		r.all++
		if sent == answered {
			r.admitted[sent]++
		}
	default:
		r.denied++
	}
}

// demoWindow returns the index of the window at a time.
func demoWindow(at time.Time) int64 { return at.UnixNano() / int64(regionWindow) }

// counts returns the region's admitted requests of a window, and all results.
func (r *demoRegion) counts(window int64) (admitted, all, denied, failed int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.admitted[window], r.all, r.denied, r.failed
}

func (s *regionStage) draw(out io.Writer) {
	w := demoWindow(time.Now())
	fmt.Fprintf(out, "\n  %-8s %7s %6s  %12s %12s %8s %8s\n", "REGION", "SENT/s", "FLOOR", "LAST WINDOW", "THIS WINDOW", "ALL", "DENIED")
	var before, now int
	for _, r := range s.regions {
		last, _, _, _ := r.counts(w - 1)
		n, all, denied, _ := r.counts(w)
		before, now = before+last, now+n
		state := ""
		if r.cut.Load() {
			state = "  cut off the coordinator"
		}
		fmt.Fprintf(out, "  %-8s %7d %6d  %12d %12d %8d %8d  %s%s\n", r.name, r.rate.Load(), r.budget.Floor, last, n, all, denied, bar(int64(last), regionLimit), state)
	}
	fmt.Fprintf(out, "  %-8s %7s %6s  %12s %12s\n\n", "together", "", "", fmt.Sprintf("%d / %d", before, regionLimit), fmt.Sprintf("%d / %d", now, regionLimit))
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.notes[max(0, len(s.notes)-notesShown):] {
		fmt.Fprintf(out, "  %s\n", n)
	}
	fmt.Fprint(out, "  ")
	for _, a := range regionActs() {
		fmt.Fprintf(out, "[%c] %s   ", a.key, a.what)
	}
	fmt.Fprintln(out, "[q] quit")
}

// verdict prints a summary. It returns an error if a window had more than the limit, or requests failed.
func (s *regionStage) verdict(out io.Writer) error {
	sums := map[int64]int{}
	var all, denied, failed int
	for _, r := range s.regions {
		r.mu.Lock()
		all, denied, failed = all+r.all, denied+r.denied, failed+r.failed
		for w, n := range r.admitted {
			sums[w] += n
		}
		r.mu.Unlock()
	}
	most := 0
	for _, n := range sums {
		most = max(most, n)
	}
	fmt.Fprintf(out, "\r\n  %d requests admitted, %d denied, %d failed. The most of one window: %d of %d.\r\n", all, denied, failed, most, regionLimit)
	if most > regionLimit || failed > 0 {
		return fmt.Errorf("demo failed: %d requests failed, and a window of %d had %d", failed, regionLimit, most)
	}
	return nil
}
