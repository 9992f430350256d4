package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// An edge as many people have it: a static cluster with the legacy ring settings, whose hosts are hashed by address, and
// a route that hashes the API key. Its ring is not the sidecars' own.
const usersEdge = `
admin: {address: {socket_address: {address: @ADMINHOST@, port_value: @ADMINPORT@}}}
static_resources:
  listeners:
  - name: edge
    address: {socket_address: {address: @HOST@, port_value: @PORT@}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: edge
          route_config:
            virtual_hosts:
            - name: api
              domains: ["*"]
              routes:
              - match: {prefix: "/"}
                route:
                  cluster: rate-limit-service
                  hash_policy:
                  - header: {header_name: "X-API-Key"}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
  - name: rate-limit-service
    connect_timeout: 1s
    lb_policy: RING_HASH
    ring_hash_lb_config:
      minimum_ring_size: 1024
      maximum_ring_size: 8388608
    load_assignment:
      cluster_name: rate-limit-service
      endpoints:
      - lb_endpoints:
@HOSTS@`

// TestUsersOwnRing puts an edge with a ring of its own in front: most requests reach a pod whose sidecar does not own the
// key, which forwards the request. The limits hold all the same.
func TestUsersOwnRing(t *testing.T) {
	const limit = 100 // of longRules
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": longRules}, Expect: 3, Args: []string{"--decision-timeout", "1s"}})
	members := names(3)
	start(t, l, members...)
	up := startUpstream(t)
	hosts := ""
	for _, s := range l.Sidecars {
		pod, err := l.AddEnvoy(lab.EnvoyOptions{
			Name: s.Name + "-envoy", Path: envoyBinary(t), Shape: "plain", Upstream: up.addr,
			Args: []string{"--from", "api_key=header:x-api-key", "--sidecar", s.RLS, "--routed", "--failure-mode-deny", "--timeout", "5s", "--listen", s.Route},
		})
		if err != nil {
			t.Fatal(err)
		}
		awaitReady(t, pod)
		hosts += fmt.Sprintf("        - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %s}}}\n", port(s.Route))
	}
	edge, err := l.AddEnvoy(lab.EnvoyOptions{Name: "edge", Path: envoyBinary(t), Config: strings.ReplaceAll(usersEdge, "@HOSTS@", hosts)})
	if err != nil {
		t.Fatal(err)
	}
	awaitReady(t, edge)
	var keys []string
	for k := range 20 {
		for range 2 * limit {
			keys = append(keys, fmt.Sprintf("customer-%d", k))
		}
	}
	for _, s := range l.Sidecars {
		if n := value(metrics(t, s.Metrics), "keyward_direct_total"); n != 0 {
			t.Fatalf("%s: %v direct requests before the first", s.Name, n)
		}
	}
	admitted := map[string]int{}
	for _, a := range sendKeys(edge.Listener, keys, 12) {
		switch a.status {
		case 200:
			admitted[a.key]++
		case 429:
		default:
			t.Errorf("%+v", a)
		}
	}
	for k := range 20 {
		if n := admitted[fmt.Sprintf("customer-%d", k)]; n != limit {
			t.Errorf("customer-%d: %d admitted, limit %d", k, n, limit)
		}
	}
	if n := sum(t, l, "keyward_keys", "table", "owned"); n != 20 {
		t.Errorf("%v counters for 20 keys", n)
	}
	direct, misrouted := sum(t, l, "keyward_direct_total"), sum(t, l, "keyward_misrouted_total", "cause", "ring")
	t.Logf("with a ring of the user's own: %v direct, %v forwarded", direct, misrouted)
	if misrouted == 0 || direct+misrouted != float64(len(keys)) {
		t.Errorf("%v direct and %v misrouted of %d: the rings should differ", direct, misrouted, len(keys))
	}
}

func awaitReady(t *testing.T, e *lab.Envoy) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := lab.Await(ctx, e.Name, func(ctx context.Context) error {
		_, err := lab.Get(ctx, "http://"+e.Admin+"/ready")
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
