package main

import (
	"context"
	"net"
	"os"
	"os/signal"
	"syscall"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
)

// constantCommand is the argument that turns this program into the constant server.
const constantCommand = "constant"

// constant is the least that a grpc-go server can do for an RLS call: decode it, and give the same answer to everyone.
type constant struct {
	pb.UnimplementedRateLimitServiceServer
}

func (constant) ShouldRateLimit(context.Context, *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	return &pb.RateLimitResponse{
		OverallCode: pb.RateLimitResponse_OK,
		Statuses: []*pb.RateLimitResponse_DescriptorStatus{{
			Code:               pb.RateLimitResponse_OK,
			CurrentLimit:       &pb.RateLimitResponse_RateLimit{RequestsPerUnit: limitPerYear, Unit: pb.RateLimitResponse_RateLimit_YEAR},
			LimitRemaining:     limitPerYear - 1,
			DurationUntilReset: &durationpb.Duration{Seconds: 1_000_000},
		}},
	}, nil
}

// serveConstant serves until SIGTERM.
func serveConstant(addr string) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	g := grpc.NewServer()
	pb.RegisterRateLimitServiceServer(g, constant{})
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	context.AfterFunc(ctx, g.Stop)
	return g.Serve(ln)
}
