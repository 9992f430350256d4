package connguard

import (
	"net"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// BenchmarkCall makes a small call with and without a Guard: the cost of limiting and counting.
func BenchmarkCall(b *testing.B) {
	for name, gated := range map[string]bool{"bare": false, "gated": true} {
		b.Run(name, func(b *testing.B) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			var opts []grpc.ServerOption
			if gated {
				s := New(prometheus.NewRegistry()).Guard("test")
				l, opts = s.Listen(l, 100), append(opts, grpc.Creds(s.Credentials(nil)))
			}
			g := grpc.NewServer(opts...)
			healthpb.RegisterHealthServer(g, health.NewServer())
			go func() { _ = g.Serve(l) }()
			defer g.Stop()
			c, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			client := healthpb.NewHealthClient(c)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := client.Check(b.Context(), &healthpb.HealthCheckRequest{}); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
