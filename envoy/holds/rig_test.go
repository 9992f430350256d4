package holds

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/stats"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

const rules = `
domain: llm
descriptors:
- key: tenant
  rate_limit: {name: tokens, unit: hour, requests_per_unit: 1000}
  metadata: {keyward: {reserve: 100}}
- key: streams
  rate_limit: {name: streams, unit: hour, requests_per_unit: 2}
  metadata: {keyward: {algorithm: in_flight, window: 10m}}
- key: plain
  rate_limit: {name: plain, unit: hour, requests_per_unit: 5}
- key: dark
  shadow_mode: true
  rate_limit: {name: dark, unit: hour, requests_per_unit: 10}
  metadata: {keyward: {reserve: 10}}
`

// lone is a Decider over a real owner.Node in a cluster of one, at a time set by the test.
type lone struct {
	node *owner.Node
	now  atomic.Int64 // Unix nanoseconds
}

func (l *lone) Decide(_ policy.Deadline, stop bool, qs []owner.Request, as []owner.Result) {
	l.node.DecideAll(l.now.Load(), stop, qs, as)
}

func (l *lone) advance(d time.Duration) { l.node.Tick(l.now.Add(int64(d))) }

// fuzzCaller is the caller of calls without a connection.
var fuzzCaller = rls.Caller{Hold: rls.HoldCaller{Identity: "me"}}

// rig is a server with its own sockets.
type rig struct {
	*HoldServer
	lone  *lone
	stats *stats.StatStore
	addrs []net.Addr // gRPC, then HTTP
}

func start(t testing.TB, change ...func(*rls.StartOptions)) *rig {
	t.Helper()
	at := time.Unix(3600*1000+60, 0)
	l := &lone{node: owner.New(owner.Options{Self: "a"})}
	l.now.Store(at.UnixNano())
	l.node.Tick(at.UnixNano())
	l.node.SetMembership(at.UnixNano(), &membership.View{Self: "a", Ring: ring.New([]ring.Member{{ID: "a"}}), NRef: 1, Joined: true})
	r := &rig{lone: l, stats: stats.New(stats.Options{})}
	service := rls.New(rls.Options{Decider: l, Stats: r.stats, Self: "a"})
	loaded, err := config.Load([]config.File{{Name: "rules.yaml", Content: []byte(rules)}}, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	service.SetRules(loaded, rls.Switches{})
	r.HoldServer = New(Options{Service: service})
	o := rls.StartOptions{
		Service: service, Health: rls.NewHealthServer(), Listeners: []rls.Listener{{Address: "127.0.0.1:0"}}, HTTP: "127.0.0.1:0",
		Methods: r.Methods(), JSON: r.Handlers(),
	}
	for _, c := range change {
		c(&o)
	}
	s, err := rls.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	r.addrs = s.Addrs
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		r.Close()
		s.Stop(ctx)
	})
	return r
}

func (r *rig) dial(t testing.TB, creds credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient(r.addrs[0].String(), grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}
