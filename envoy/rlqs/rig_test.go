package rlqs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/stats"
	"github.com/keyward/keyward/owner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const quotaRules = `
domain: shop
descriptors:
- key: api_key
  rate_limit: {unit: minute, requests_per_unit: 100}
  metadata: {keyward: {mechanism: quota}}
  descriptors:
  - key: path
    value: /pay
    rate_limit: {unit: minute, requests_per_unit: 10}
    metadata: {keyward: {mechanism: quota}}
- key: user
  value: bob
  rate_limit: {unlimited: true}
- key: dark
  shadow_mode: true
  rate_limit: {unit: minute, requests_per_unit: 1}
  metadata: {keyward: {mechanism: quota}}
- key: calls
  rate_limit: {unit: minute, requests_per_unit: 1}
- key: a
  descriptors:
  - key: b
    rate_limit: {unit: minute, requests_per_unit: 1}
    metadata: {keyward: {mechanism: quota}}
- key: b
  descriptors:
  - key: a
    rate_limit: {unit: minute, requests_per_unit: 1}
    metadata: {keyward: {mechanism: quota}}
`

func loadRules(t testing.TB, yaml string) *config.Rules {
	t.Helper()
	rules, err := config.Load([]config.File{{Name: "rules.yaml", Content: []byte(yaml)}}, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// idle is a Decider that is never asked.
type idle struct{}

func (idle) Decide(policy.Deadline, bool, []owner.Request, []owner.Result) {}

// eventBook passes on what it is called with. With react, it may answer on the goroutine of the connection.
type eventBook struct {
	events chan string
	react  func(stream uint64, usages []BucketUsage)

	mu   sync.Mutex
	last map[string]*QuotaBucket // by name
	open map[uint64]EnvoyStream
}

func (b *eventBook) Opened(_ time.Time, stream uint64, e EnvoyStream) {
	b.mu.Lock()
	b.open[stream] = e
	b.mu.Unlock()
	b.events <- fmt.Sprintf("opened %d %s %s", stream, e.Name, e.Domain)
}

func (b *eventBook) Reported(_ time.Time, stream uint64, usages []BucketUsage) {
	for _, u := range usages {
		name := string(u.Bucket.AppendName(nil))
		b.mu.Lock()
		b.last[name] = u.Bucket
		b.mu.Unlock()
		b.events <- fmt.Sprintf("%d %s %s %d/%d in %v", stream, name, u.Bucket.Fit, u.Allowed, u.Denied, u.Elapsed)
	}
	if b.react != nil {
		b.react(stream, usages)
	}
}

func (b *eventBook) Acked(_ time.Time, stream, serial uint64) {
	b.events <- fmt.Sprintf("acked %d %d", stream, serial)
}

func (b *eventBook) Closed(_ time.Time, stream uint64) {
	b.mu.Lock()
	delete(b.open, stream)
	b.mu.Unlock()
	b.events <- fmt.Sprintf("closed %d", stream)
}

func (b *eventBook) bucket(name string) *QuotaBucket {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last[name]
}

// expect checks the next events.
func (b *eventBook) expect(t testing.TB, want ...string) {
	t.Helper()
	for _, w := range want {
		select {
		case got := <-b.events:
			if got != w {
				t.Fatalf("%q, want %q", got, w)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("never: %q", w)
		}
	}
}

// rig is a server on its own socket.
type rig struct {
	*QuotaServer
	service *rls.Service
	book    *eventBook
	reg     *prometheus.Registry
	server  *rls.Server
	addr    net.Addr
}

func startRig(t testing.TB, yaml string, change ...func(*Options, *rls.StartOptions)) *rig {
	t.Helper()
	r := &rig{reg: prometheus.NewRegistry(), book: &eventBook{
		events: make(chan string, 100_000), last: map[string]*QuotaBucket{}, open: map[uint64]EnvoyStream{},
	}}
	r.service = rls.New(rls.Options{Decider: idle{}, Stats: stats.New(stats.Options{})})
	if yaml != "" {
		r.service.SetRules(loadRules(t, yaml), rls.Switches{})
	}
	o := Options{Service: r.service, Book: r.book, Registerer: r.reg}
	so := rls.StartOptions{Service: r.service, Listeners: []rls.Listener{{Address: "127.0.0.1:0"}}}
	for _, c := range change {
		c(&o, &so)
	}
	r.QuotaServer = NewServer(o)
	so.Methods = r.Methods()
	var err error
	if r.server, err = rls.Start(so); err != nil {
		t.Fatal(err)
	}
	r.addr = r.server.Addrs[0]
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		r.QuotaServer.Close()
		r.server.Stop(ctx)
	})
	return r
}

// metric returns the value of a series by its one label.
func (r *rig) metric(t testing.TB, name, label string) float64 {
	t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || m.GetLabel()[0].GetValue() == label) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no series %s %s", name, label)
	return 0
}

// client is an Envoy played by grpc-go.
type client struct {
	t testing.TB
	pb.RateLimitQuotaService_StreamRateLimitQuotasClient
}

func (r *rig) dial(t testing.TB) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(r.addr.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func openClient(ctx context.Context, t testing.TB, conn *grpc.ClientConn, name string) *client {
	t.Helper()
	if name != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "x-keyward-envoy", name)
	}
	s, err := pb.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return &client{t, s}
}

// usage returns the usage of an id: names and values in turn.
func usage(allowed, denied uint64, elapsed time.Duration, id ...string) *pb.RateLimitQuotaUsageReports_BucketQuotaUsage {
	m := map[string]string{}
	for i := 0; i < len(id); i += 2 {
		m[id[i]] = id[i+1]
	}
	return &pb.RateLimitQuotaUsageReports_BucketQuotaUsage{
		BucketId: &pb.BucketId{Bucket: m}, NumRequestsAllowed: allowed, NumRequestsDenied: denied, TimeElapsed: durationpb.New(elapsed),
	}
}

func (c *client) report(domain string, usages ...*pb.RateLimitQuotaUsageReports_BucketQuotaUsage) {
	c.t.Helper()
	if err := c.Send(&pb.RateLimitQuotaUsageReports{Domain: domain, BucketQuotaUsages: usages}); err != nil && !errors.Is(err, io.EOF) {
		c.t.Fatal(err)
	}
}

// hear returns the actions of the next response in words, or the status of the end.
func (c *client) hear() []string {
	m, err := c.Recv()
	if errors.Is(err, io.EOF) {
		return []string{"end"}
	}
	if err != nil {
		return []string{status.Code(err).String() + ": " + status.Convert(err).Message()}
	}
	var all []string
	for _, a := range m.GetBucketAction() {
		all = append(all, describe(a))
	}
	return all
}

func (c *client) hears(want ...string) {
	c.t.Helper()
	if got := c.hear(); !slices.Equal(got, want) {
		c.t.Fatalf("%q, want %q", got, want)
	}
}

// describe returns an action in words.
func describe(a *pb.RateLimitQuotaResponse_BucketAction) string {
	names := make([]string, 0, 2)
	for k, v := range a.GetBucketId().GetBucket() {
		names = append(names, k+"="+v)
	}
	slices.Sort(names)
	s := fmt.Sprint(names)
	if a.GetAbandonAction() != nil {
		return s + " abandon"
	}
	q := a.GetQuotaAssignmentAction()
	s += " " + q.GetAssignmentTimeToLive().AsDuration().String()
	if b := q.GetRateLimitStrategy().GetTokenBucket(); b != nil {
		return s + fmt.Sprintf(" %d, %d in %v", b.GetMaxTokens(), b.GetTokensPerFill().GetValue(), b.GetFillInterval().AsDuration())
	}
	if q.GetRateLimitStrategy().GetStrategy() == nil {
		return s + " no strategy"
	}
	return s + " " + q.GetRateLimitStrategy().GetBlanketRule().String()
}
