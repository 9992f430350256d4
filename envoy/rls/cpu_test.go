package rls

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/keyward/keyward/envoy/internal/names"
	"github.com/keyward/keyward/owner"
)

// benchServer is the environment variable that turns the test binary into a server. Only in a separate process can
// the CPU time of a server be separated from that of its callers.
const benchServer = "KEYWARD_BENCH_SERVER"

func TestMain(m *testing.M) {
	if kind := os.Getenv(benchServer); kind != "" {
		serveBench(kind)
		return
	}
	os.Exit(m.Run())
}

// constant is the least work for a grpc-go server: it returns the same response to every call.
type constant struct {
	pb.UnimplementedRateLimitServiceServer
}

func (constant) ShouldRateLimit(context.Context, *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	return &pb.RateLimitResponse{
		OverallCode: pb.RateLimitResponse_OK,
		Statuses: []*pb.RateLimitResponse_DescriptorStatus{{
			Code: pb.RateLimitResponse_OK, LimitRemaining: 4_000_000_000, DurationUntilReset: &durationpb.Duration{Seconds: 1000},
			CurrentLimit: &pb.RateLimitResponse_RateLimit{RequestsPerUnit: 1 << 31, Unit: pb.RateLimitResponse_RateLimit_YEAR},
		}},
	}, nil
}

// serveBench serves until its standard input is closed.
func serveBench(kind string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	r := newRig(new(testing.B), basic)
	r.lone.now.Store(time.Now().UnixNano())
	r.lone.after = func([]owner.Request, []owner.Result) { r.lone.now.Store(time.Now().UnixNano()) }
	var server interface{ Serve(net.Listener) error } = newOracle(r.Service, grpcOptions{}, nil)
	switch kind {
	case "constant":
		g := grpc.NewServer()
		pb.RegisterRateLimitServiceServer(g, constant{})
		server = g
	case "inline":
		server = r.newInlineServer(grpcOptions{}, nil)
	}
	go func() { _ = server.Serve(l) }()
	fmt.Fprintln(os.Stdout, l.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// BenchmarkCPU reports the CPU time per call of a server's process: a constant server, grpc-go and the inline server.
// Compare the ratios: they are stable even on a busy machine.
func BenchmarkCPU(b *testing.B) {
	for _, kind := range []string{"constant", "grpc-go", "inline", "constant again", "grpc-go again", "inline again"} {
		b.Run(kind, func(b *testing.B) {
			server := exec.Command(os.Args[0])
			server.Env = append(os.Environ(), benchServer+"="+strings.Fields(kind)[0])
			stdin, err := server.StdinPipe()
			if err != nil {
				b.Fatal(err)
			}
			stdout, err := server.StdoutPipe()
			if err != nil {
				b.Fatal(err)
			}
			if err := server.Start(); err != nil {
				b.Fatal(err)
			}
			addr, err := bufio.NewReader(stdout).ReadString('\n')
			if err != nil {
				b.Fatal(err)
			}
			drive(b, strings.TrimSpace(addr))
			_ = stdin.Close()
			_ = server.Wait()
			used := server.ProcessState.UserTime() + server.ProcessState.SystemTime()
			b.ReportMetric(float64(used.Microseconds())/float64(b.N), "cpu-us/op")
		})
	}
}

// drive makes b.N calls, 32 at a time over two connections, like a busy Envoy.
func drive(b *testing.B, addr string) {
	message := encodeRequest(b, request("basic", descriptor("huge", "alice")))
	var left atomic.Int64
	left.Store(int64(b.N))
	b.ResetTimer()
	var callers sync.WaitGroup
	for range 2 {
		conn := dial(b, addr, nil)
		for range 16 {
			callers.Go(func() {
				ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(b.Context(), names.KeyHeader, "alice"), time.Minute)
				defer cancel()
				for left.Add(-1) >= 0 {
					if _, err := send(ctx, conn, message); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
	}
	callers.Wait()
	b.StopTimer()
}
