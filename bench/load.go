package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/ops/loadtest"
	"github.com/keyward/keyward/ring"
)

// callTimeout is long: a call that a busy machine delays must be answered, not degraded, or it would look cheaper.
const callTimeout = time.Second

// load asks one contestant with grpc-go, which on two cores costs more than what it measures: the lean load of internal/ops/loadtest is the usual one.
type load struct {
	conns    []*grpc.ClientConn
	messages [][]byte      // one encoded request a key
	headers  []metadata.MD // one a key: its name, as Envoy tells it; nil: not told
	owners   []int         // one a key: the target that owns it; nil: any target is asked
	targets  int           // conns[i] is to target i % targets
	inflight int
}

// newLoad connects to all targets alike.
func newLoad(o options, targets []target) (*load, error) {
	l := &load{inflight: o.inflight, targets: len(targets)}
	each := (o.conns + len(targets) - 1) / len(targets)
	for range each {
		for _, t := range targets {
			secure := insecure.NewCredentials()
			if t.tls != nil {
				secure = credentials.NewTLS(t.tls)
			}
			conn, err := grpc.NewClient("passthrough:///"+t.addr, grpc.WithTransportCredentials(secure))
			if err != nil {
				return nil, err
			}
			l.conns = append(l.conns, conn)
		}
	}
	for i := range o.keys {
		m, err := proto.Marshal(request(i))
		if err != nil {
			return nil, err
		}
		l.messages = append(l.messages, m)
	}
	if targets[0].member != "" {
		l.place(targets)
	}
	return l, nil
}

// place finds the owner of every key on Envoy's ring.
func (l *load) place(targets []target) {
	index := map[ring.ID]int{}
	var members []ring.Member
	for i, t := range targets {
		index[t.member] = i
		members = append(members, ring.Member{ID: t.member, Weight: 1})
	}
	r := ring.New(members)
	for i := range l.messages {
		l.owners = append(l.owners, index[r.At(r.Owner(ring.Hash(keyName(i)))).ID])
		l.headers = append(l.headers, metadata.Pairs("x-keyward-key", keyName(i)))
	}
}

func keyName(key int) string { return fmt.Sprintf("client-%06d", key) }

func request(key int) *pb.RateLimitRequest {
	return &pb.RateLimitRequest{Domain: "bench", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
		Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "route", Value: "search"}, {Key: "api_key", Value: keyName(key)}},
	}}}
}

func (l *load) close() {
	for _, c := range l.conns {
		_ = c.Close()
	}
}

// probe asks once over every connection and wants to see the rules' limit in each answer.
func (l *load) probe(ctx context.Context) error {
	for _, c := range l.conns {
		res, err := l.ask(ctx, c, 0)
		if err != nil {
			return err
		}
		if got := res.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit(); got != limitPerYear {
			return fmt.Errorf("limit %d in the answer", got)
		}
	}
	return nil
}

func (l *load) ask(ctx context.Context, c *grpc.ClientConn, key int) (*pb.RateLimitResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := pb.NewRateLimitServiceClient(c).ShouldRateLimit(ctx, request(key))
	if err == nil && len(res.GetStatuses()) != 1 {
		err = fmt.Errorf("%d statuses in the answer", len(res.GetStatuses()))
	}
	return res, err
}

// counted is the sum of what is counted of all keys, by asking once more for each.
func (l *load) counted(ctx context.Context) (int, error) {
	sum := 0
	for key := range l.messages {
		conn := l.conns[key%len(l.conns)]
		if l.owners != nil {
			conn = l.conns[l.owners[key]]
		}
		res, err := l.ask(ctx, conn, key)
		if err != nil {
			return 0, err
		}
		sum += limitPerYear - int(res.GetStatuses()[0].GetLimitRemaining())
	}
	return sum, nil
}

// measurement is what the load saw.
type measurement struct {
	OK, Over, Errors int
	Elapsed          time.Duration
	latencies        []time.Duration // of those answered, sorted
	err              error           // one of the errors
}

// run asks for a time: as fast as the answers come, or rate calls a second in all.
func (l *load) run(ctx context.Context, length time.Duration, rate float64) measurement {
	parts := make([]measurement, l.inflight)
	begin := time.Now()
	var workers sync.WaitGroup
	for i := range parts {
		w := worker{load: l, number: i, end: begin.Add(length), random: rand.New(rand.NewPCG(1, uint64(i)))}
		if rate > 0 {
			w.every = time.Duration(float64(l.inflight) / rate * float64(time.Second))
			w.next = begin.Add(w.every / time.Duration(l.inflight) * time.Duration(i))
		}
		workers.Go(func() { w.run(ctx, &parts[i]) })
	}
	workers.Wait()
	return merge(parts, time.Since(begin))
}

// Run is run as a comparison wants it.
func (l *load) Run(ctx context.Context, p loadtest.Phase, length time.Duration) (loadtest.Result, error) {
	l.inflight = p.Inflight
	if p.Rate > 0 {
		l.inflight = 256
	}
	m := l.run(ctx, length, p.Rate)
	r := loadtest.Result{OK: m.OK, Over: m.Over, Errors: m.Errors, Elapsed: m.Elapsed, Err: m.err}
	for _, d := range m.latencies {
		r.Latency.Add(d)
	}
	return r, ctx.Err()
}

func merge(parts []measurement, elapsed time.Duration) measurement {
	sum := measurement{Elapsed: elapsed}
	for _, p := range parts {
		sum.OK += p.OK
		sum.Over += p.Over
		sum.Errors += p.Errors
		sum.latencies = append(sum.latencies, p.latencies...)
		if sum.err == nil {
			sum.err = p.err
		}
	}
	slices.Sort(sum.latencies)
	return sum
}

// answered is the calls that got a decision.
func (m *measurement) answered() int { return m.OK + m.Over }

// worker has one call in flight at a time.
type worker struct {
	load   *load
	number int
	end    time.Time
	random *rand.Rand
	every  time.Duration // 0: without a pause
	next   time.Time     // when the next call is due
}

func (w *worker) run(ctx context.Context, m *measurement) {
	for ctx.Err() == nil {
		begin := w.wait()
		if begin.After(w.end) {
			return
		}
		code, err := w.call(ctx)
		switch {
		case err != nil:
			m.Errors++
			m.err = err
			continue
		case code == uint64(pb.RateLimitResponse_OK):
			m.OK++
		default:
			m.Over++
		}
		m.latencies = append(m.latencies, time.Since(begin))
	}
}

// wait waits for the next call's turn and returns its beginning. A call that the one before it has delayed began when it
// was due: the server's slowness must not hide behind fewer calls. The timer's own lateness is nobody's.
func (w *worker) wait() time.Time {
	now := time.Now()
	if w.every == 0 {
		return now
	}
	due := w.next
	w.next = due.Add(w.every)
	if due.Before(now) {
		return due
	}
	time.Sleep(due.Sub(now))
	return time.Now()
}

func (w *worker) call(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout) // Envoy, too, tells its timeout with every call
	defer cancel()
	l := w.load
	key := w.random.IntN(len(l.messages))
	conn := l.conns[w.number%len(l.conns)]
	if l.owners != nil {
		ctx = metadata.NewOutgoingContext(ctx, l.headers[key])
		conn = l.conns[w.number%(len(l.conns)/l.targets)*l.targets+l.owners[key]]
	}
	var code uint64
	err := conn.Invoke(ctx, pb.RateLimitService_ShouldRateLimit_FullMethodName, l.messages[key], &code, grpc.ForceCodecV2(lean{}))
	return code, err
}

// lean is a codec that costs the load little: requests are encoded before, and of responses only the code is read.
type lean struct{}

func (lean) Name() string { return "proto" }

func (lean) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

var errResponse = errors.New("the response is no RateLimitResponse")

func (lean) Unmarshal(data mem.BufferSlice, v any) error {
	b := data.Materialize()
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errResponse
		}
		b = b[n:]
		if num == 1 && typ == protowire.VarintType {
			*v.(*uint64), n = protowire.ConsumeVarint(b)
		} else {
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return errResponse
		}
		b = b[n:]
	}
	return nil
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
