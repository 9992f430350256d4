package rls

import (
	"testing"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// Every unary method of the listener is counted, as in envoyproxy/ratelimit's interceptor.
func TestHealthIsCounted(t *testing.T) { eachServer(t, testHealthIsCounted) }

func testHealthIsCounted(t *testing.T, kind serverKind) {
	r := newRig(t, basic)
	client := healthpb.NewHealthClient(dial(t, r.start(t, kind, NewHealthServer()).Addrs[0].String(), nil))
	for range 2 {
		_, _ = client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "other"})
	}
	if _, err := client.List(t.Context(), &healthpb.HealthListRequest{}); err != nil {
		t.Fatal(err)
	}
	for method, want := range map[string]uint64{"Check": 2, "List": 1} {
		if got := r.stats.Method(method).TotalRequests.Value(); got != want {
			t.Errorf("%s: %d calls, want %d", method, got, want)
		}
	}
}

func TestHealth(t *testing.T) { eachServer(t, testHealth) }

func testHealth(t *testing.T, kind serverKind) {
	h := NewHealthServer("cluster", "config")
	s := newRig(t, basic).start(t, kind, h)
	client := healthpb.NewHealthClient(dial(t, s.Addrs[0].String(), nil))
	check := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for service, want := range map[string]healthpb.HealthCheckResponse_ServingStatus{"": healthpb.HealthCheckResponse_SERVING, "ratelimit": want} {
			resp, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
			if err != nil || resp.Status != want {
				t.Errorf("service %q: %v, %v; want %v", service, resp.GetStatus(), err, want)
			}
		}
		code, body := get(t, s.Addrs[1], "/healthcheck")
		if healthy := want == healthpb.HealthCheckResponse_SERVING; healthy != (code == 200 && body == "OK") || !healthy && code != 500 {
			t.Errorf("/healthcheck: %d %q", code, body)
		}
	}
	check(healthpb.HealthCheckResponse_NOT_SERVING)
	h.Set("cluster", true)
	check(healthpb.HealthCheckResponse_NOT_SERVING)
	h.Set("config", true)
	check(healthpb.HealthCheckResponse_SERVING)
	h.Set("sigterm", false)
	check(healthpb.HealthCheckResponse_NOT_SERVING)
	if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "other"}); status.Code(err) != codes.NotFound {
		t.Errorf("another service: %v", err)
	}
}
