package rls

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/keyward/keyward/internal/stats"
)

// healthName is the service whose gRPC health follows HealthServer. The service "" is always SERVING, others are not
// found.
const healthName = "ratelimit"

// HealthServer is healthy while all its parts are. It serves GET /healthcheck and gRPC's health service. Create it
// with NewHealthServer.
type HealthServer struct {
	grpc *health.Server

	mu      sync.Mutex
	failing []string // guarded by mu
}

// NewHealthServer returns a HealthServer with the named parts. Each part fails until Set reports that it is healthy.
func NewHealthServer(parts ...string) *HealthServer {
	h := &HealthServer{grpc: health.NewServer(), failing: slices.Clone(parts)}
	h.publishLocked()
	return h
}

// Set records whether a part is healthy. The parts of a sidecar are: no SIGTERM yet, the cluster joined, and rules
// with at least one domain (if HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED is set).
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

// Failing returns the parts that are not healthy.
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

// countedHealth is gRPC's health service. Its calls are counted in stats, like those of every method.
type countedHealth struct {
	*health.Server
	stats *stats.StatStore
}

func (c countedHealth) Check(ctx context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse,
	error) {
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
