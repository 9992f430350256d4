package remote

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/federation/federationtest"
	"github.com/keyward/keyward/internal/limit"
)

const testEpoch = 7

// epochOf returns a function that returns epoch.
func epochOf(epoch uint32) func() uint32 { return func() uint32 { return epoch } }

// layoutOf returns the schedule of one layout with those regions.
func layoutOf(regions ...string) func() *federation.LayoutSchedule {
	l := &federation.Layout{Name: "test", Epoch: testEpoch, Coordinator: "home"}
	for _, name := range regions {
		l.Regions = append(l.Regions, federation.LayoutRegion{Name: name})
	}
	s, err := federation.NewLayoutSchedule("", time.Minute, []*federation.Layout{l}, 0)
	if err != nil {
		panic(err)
	}
	return func() *federation.LayoutSchedule { return s }
}

// serve starts a server on a loopback port, which ends with the test.
func serve(t testing.TB, o ServeOptions) *CoordinatorServer {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if o.Schedule == nil {
		o.Schedule = layoutOf("a", "b")
	}
	s := Serve(ln, o)
	t.Cleanup(func() { stop(t, s) })
	return s
}

// stop ends a server without waiting for its clients.
func stop(t testing.TB, s *CoordinatorServer) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.Shutdown(ctx)
}

// dial returns a client of region a, which ends with the test.
func dial(t testing.TB, address string, change func(*DialOptions)) *CoordinatorClient {
	t.Helper()
	o := DialOptions{Address: address, Region: "a", Epoch: epochOf(testEpoch)}
	if change != nil {
		change(&o)
	}
	c := Dial(o)
	t.Cleanup(c.Close)
	return c
}

// request returns the first request of a boot, for tokens of a pool of 1000 hits per year.
func request(tokens uint64) federation.PoolRequest {
	return federation.PoolRequest{
		Key: federation.Key{1, 2}, Rule: limit.Rule{Limit: 1000, Window: 365 * 24 * time.Hour}, Pool: 1000, Epoch: testEpoch,
		Boot: 1, Seq: 1, Tokens: tokens,
	}
}

// bounded returns a context for calls that must not hang.
func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func memory() federation.Coordinator {
	return federation.NewMemory(federation.Always(testEpoch), 0, func() int64 { return time.Now().UnixNano() })
}

// anyRegion is a Coordinator with a client for each region, as a federation has.
type anyRegion struct {
	federation.Coordinator // for Healthy
	t                      *testing.T
	address                string
	epoch                  uint32

	mu      sync.Mutex
	clients map[string]*CoordinatorClient // guarded by mu
}

func (r *anyRegion) client(region string) *CoordinatorClient {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.clients[region] == nil {
		r.clients[region] = dial(r.t, r.address, func(o *DialOptions) { o.Region, o.Epoch = region, epochOf(r.epoch) })
	}
	return r.clients[region]
}

func (r *anyRegion) Lease(ctx context.Context, region string, rs []federation.PoolRequest) ([]federation.PoolGrant, error) {
	return r.client(region).Lease(ctx, region, rs)
}

func (r *anyRegion) Reconcile(ctx context.Context, region string, rs []federation.PoolRequest) error {
	return r.client(region).Reconcile(ctx, region, rs)
}

// remotely opens a Coordinator behind a server.
func remotely(open federationtest.Open) federationtest.Open {
	return func(t *testing.T, o federationtest.Options) federation.Coordinator {
		t.Helper()
		regions := []string{"a", "b", "c", "d", "one-more"}
		for i := range 256 {
			regions = append(regions, fmt.Sprintf("region-%d", i), fmt.Sprintf("region \x01%d", i))
		}
		s := serve(t, ServeOptions{Coordinator: open(t, o), Schedule: layoutOf(regions...)})
		r := &anyRegion{t: t, address: s.Addr().String(), epoch: o.Epoch, clients: map[string]*CoordinatorClient{}}
		r.Coordinator = r.client("a")
		return r
	}
}

func TestContract(t *testing.T) { federationtest.Run(t, remotely(federationtest.Memory)) }

func TestEqualsReference(t *testing.T) {
	for seed := range uint64(2) {
		federationtest.Compare(t, remotely(federationtest.Memory), seed)
	}
}
