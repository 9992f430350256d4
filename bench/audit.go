package main

import (
	"context"
	"fmt"
	"net"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/ops/loadtest"
	"github.com/keyward/keyward/ring"
)

// callTimeout is long: a call that a busy machine delays must be answered, not degraded, or it would look cheaper.
const callTimeout = time.Second

// audit calls a contestant with grpc-go, apart from the load: it checks that every target applies the rules, and reads how many hits are
// counted.
type audit struct {
	conns  []*grpc.ClientConn // one for each target
	owners []int              // the index of each key's owner among the targets; nil if any target may be called
	keys   int
}

// newAudit prepares a connection to each target.
func newAudit(targets []target, keys int) (*audit, error) {
	a := &audit{keys: keys}
	for _, t := range targets {
		secure := insecure.NewCredentials()
		if t.tls != nil {
			secure = credentials.NewTLS(t.tls)
		}
		conn, err := grpc.NewClient("passthrough:///"+t.addr, grpc.WithTransportCredentials(secure))
		if err != nil {
			return nil, err
		}
		a.conns = append(a.conns, conn)
	}
	if targets[0].member != "" {
		a.owners = ownersOf(targets, keys)
	}
	return a, nil
}

// ownersOf returns the index of each key's owner on Envoy's ring of the targets.
func ownersOf(targets []target, keys int) (owners []int) {
	index := map[ring.ID]int{}
	var members []ring.Member
	for i, t := range targets {
		index[t.member] = i
		members = append(members, ring.Member{ID: t.member, Weight: 1})
	}
	r := ring.New(members)
	for i := range keys {
		owners = append(owners, index[r.At(r.Owner(ring.Hash(keyName(i)))).ID])
	}
	return owners
}

func keyName(key int) string { return fmt.Sprintf("client-%06d", key) }

func request(key int) *pb.RateLimitRequest {
	return &pb.RateLimitRequest{Domain: "bench", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
		Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "route", Value: "search"}, {Key: "api_key", Value: keyName(key)}},
	}}}
}

// calls returns the load's calls, one for each key. As Envoy does, a call to a key's owner has the key in a header.
func (a *audit) calls() ([]loadtest.LoadCall, error) {
	calls := make([]loadtest.LoadCall, a.keys)
	for i := range calls {
		m, err := proto.Marshal(request(i))
		if err != nil {
			return nil, err
		}
		calls[i].Message = m
		if a.owners != nil {
			calls[i].Target = a.owners[i]
			calls[i].Headers = []hpack.HeaderField{{Name: "x-keyward-key", Value: keyName(i)}}
		}
	}
	return calls, nil
}

func (a *audit) close() {
	for _, c := range a.conns {
		_ = c.Close()
	}
}

// probe calls every target once and requires the rules' limit in each response.
func (a *audit) probe(ctx context.Context) error {
	for _, c := range a.conns {
		res, err := call(ctx, c, 0)
		if err != nil {
			return err
		}
		if got := res.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit(); got != limitPerYear {
			return fmt.Errorf("the response has limit %d", got)
		}
	}
	return nil
}

func call(ctx context.Context, c *grpc.ClientConn, key int) (*pb.RateLimitResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := pb.NewRateLimitServiceClient(c).ShouldRateLimit(ctx, request(key))
	if err == nil && len(res.GetStatuses()) != 1 {
		err = fmt.Errorf("the response has %d statuses", len(res.GetStatuses()))
	}
	return res, err
}

// counted returns the hits counted for all keys, with the one that it adds to each.
func (a *audit) counted(ctx context.Context) (int, error) {
	sum := 0
	for key := range a.keys {
		conn := a.conns[key%len(a.conns)]
		if a.owners != nil {
			conn = a.conns[a.owners[key]]
		}
		res, err := call(ctx, conn, key)
		if err != nil {
			return 0, err
		}
		sum += limitPerYear - int(res.GetStatuses()[0].GetLimitRemaining())
	}
	return sum, nil
}

// loadOf is a load on the first n keys that member a owns on r. about makes the call for a key.
func loadOf(ctx context.Context, targets []target, conns int, r *ring.Ring, n int, about func(i int) *pb.RateLimitRequest) (*loadtest.Load, error) {
	o := loadtest.Options{Service: loadtest.RLS(), Conns: conns}
	for _, t := range targets {
		o.Targets = append(o.Targets, loadtest.Target{Addr: t.addr})
	}
	for i := 0; len(o.Calls) < n; i++ {
		if r.At(r.Owner(ring.Hash(keyName(i)))).ID != "a" {
			continue
		}
		m, err := proto.Marshal(about(i))
		if err != nil {
			return nil, err
		}
		o.Calls = append(o.Calls, loadtest.LoadCall{Message: m})
	}
	return loadtest.New(ctx, o)
}

// runOnly runs a load at a rate and fails if no call was answered.
func runOnly(ctx context.Context, l *loadtest.Load, rate float64, length time.Duration) (loadtest.Calls, error) {
	got, err := l.Run(ctx, loadtest.Phase{Rate: rate}, length)
	if err == nil && got.Answered() == 0 {
		err = fmt.Errorf("no call was answered, %d failed: %w", got.Errors, got.Err)
	}
	return got, err
}

func awaitTCP(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return lab.Await(ctx, addr+" to accept connections", func(ctx context.Context) error {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err == nil {
			c.Close()
		}
		return err
	})
}
