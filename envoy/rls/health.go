package rls

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/keyward/keyward/internal/stats"
)

// healthName is the service whose gRPC health follows Health; "" is always SERVING, and any other is not found.
const healthName = "ratelimit"

// HealthServer is healthy while every one of its parts is. It answers GET /healthcheck and gRPC's health service. Make it with
// NewHealthServer.
type HealthServer struct {
	grpc *health.Server

	mu      sync.Mutex
	failing []string // guarded by mu
}

// NewHealthServer waits for the named parts: each fails until Set says otherwise.
func NewHealthServer(parts ...string) *HealthServer {
	h := &HealthServer{grpc: health.NewServer(), failing: slices.Clone(parts)}
	h.publishLocked()
	return h
}

// Set says how one part is: no SIGTERM yet, the cluster joined, rules with at least one domain in force (where
// HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED asks for it).
func (h *HealthServer) Set(part string, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.Index(h.failing, part)
	switch {
	case ok && i >= 0:
		h.failing = slices.Delete(h.failing, i, i+1)
	case !ok && i < 0:
		h.failing = append(h.failing, part)
	default:
		return
	}
	h.publishLocked()
}

// Failing are the parts that fail now; none when healthy.
func (h *HealthServer) Failing() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.failing)
}

// serveHTTP answers 200 "OK" or 500.
func (h *HealthServer) serveHTTP(w http.ResponseWriter, _ *http.Request) {
	if len(h.Failing()) > 0 {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_, _ = w.Write([]byte("OK"))
}

// register puts gRPC's health service on g. Its calls are counted in st, as every method's are.
func (h *HealthServer) register(g *grpc.Server, st *stats.Store) {
	healthpb.RegisterHealthServer(g, countedHealth{h.grpc, st})
}

type countedHealth struct {
	*health.Server
	stats *stats.Store
}

func (c countedHealth) Check(ctx context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	defer c.count("Check", time.Now())
	return c.Server.Check(ctx, r)
}

func (c countedHealth) List(ctx context.Context, r *healthpb.HealthListRequest) (*healthpb.HealthListResponse, error) {
	defer c.count("List", time.Now())
	return c.Server.List(ctx, r)
}

func (c countedHealth) count(method string, begin time.Time) {
	m := c.stats.Method(method)
	m.TotalRequests.Add(1)
	m.ResponseTime.Observe(time.Since(begin))
}

func (h *HealthServer) publishLocked() {
	status := healthpb.HealthCheckResponse_SERVING
	if len(h.failing) > 0 {
		status = healthpb.HealthCheckResponse_NOT_SERVING
	}
	h.grpc.SetServingStatus(healthName, status)
}
