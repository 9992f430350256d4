package e2e

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/lab"
)

// ringHashSample is the configuration that articles about key-owner routing print.
//
//go:embed testdata/ring-hash.yaml
var ringHashSample string

// sampleEdge is an Envoy around the sample. Its name server is that of the test.
const sampleEdge = `
admin: {address: {socket_address: {address: @ADMINHOST@, port_value: @ADMINPORT@}}}
typed_dns_resolver_config:
  name: envoy.network.dns_resolver.cares
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig
    resolvers: [{socket_address: {address: 127.0.0.1, port_value: @DNS@}}]
    dns_resolver_options: {no_default_search_domain: true}
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
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
          route_config:
            virtual_hosts:
            - name: api
              domains: ["*"]
@ROUTES@
@CLUSTERS@`

// edgeOfSample returns an Envoy's configuration with the sample. Envoy rejects the sample as printed: the field is called
// port_value, a load assignment needs a name, and only a cluster that resolves names may have them. Nothing else changes.
func edgeOfSample(nameServer string) string {
	clusters, routes, _ := strings.Cut(ringHashSample, "\nroutes:")
	indent := func(text, by string) string { return by + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+by) }
	clusters = strings.NewReplacer(
		"port: 8080", "port_value: 8080",
		"    lb_policy:", "    type: STRICT_DNS\n    lb_policy:",
		"    load_assignment:\n", "    load_assignment:\n      cluster_name: rate-limit-service\n",
	).Replace(clusters)
	return strings.NewReplacer(
		"@DNS@", port(nameServer), "@CLUSTERS@", indent(clusters, "  "), "@ROUTES@", indent("routes:"+routes, "              "),
	).Replace(sampleEdge)
}

// serveNames answers each of the names with its address, and returns the address of the name server.
func serveNames(t *testing.T, names map[string]string) string {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &dns.Server{PacketConn: pc, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg).SetReply(r)
		ip, known := names[strings.TrimSuffix(r.Question[0].Name, ".")]
		if !known {
			m.Rcode = dns.RcodeNameError
		} else if r.Question[0].Qtype == dns.TypeA {
			h := dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}
			m.Answer = append(m.Answer, &dns.A{Hdr: h, A: net.ParseIP(ip)})
		}
		_ = w.WriteMsg(m)
	})}
	go func() { _ = srv.ActivateAndServe() }()
	t.Cleanup(func() { _ = srv.Shutdown() })
	return pc.LocalAddr().String()
}

// shardHosts returns one loopback address for each shard, on which port 8080 is free.
func shardHosts(t *testing.T, names []string) map[string]string {
	t.Helper()
	hosts := map[string]string{}
	for i, n := range names {
		ip := fmt.Sprintf("127.80.80.%d", 10+i)
		l, err := net.Listen("tcp", ip+":8080")
		if err != nil {
			t.Skipf("port 8080 of loopback: %v", err)
		}
		_ = l.Close()
		hosts[n] = ip
	}
	return hosts
}

// sendThroughEdges sends 2 x 100 requests of each of n keys through all edges, and requires that each key is admitted
// as often as its limit, in total. It returns the number of requests.
func sendThroughEdges(t *testing.T, edges []*lab.Envoy, prefix string, n int) int {
	t.Helper()
	const limit = 100 // of longRules
	admitted := map[string]int{}
	for i, e := range edges {
		var keys []string
		for k := range n {
			for range 2 * limit / len(edges) {
				keys = append(keys, fmt.Sprintf("%s-%d", prefix, k))
			}
		}
		for _, a := range sendKeys(e.Listener+"/api", keys, 8) {
			switch a.status {
			case 200:
				admitted[a.key]++
			case 429:
			default:
				t.Fatalf("edge %d: %+v", i, a)
			}
		}
	}
	for k, got := range admitted {
		if got != limit {
			t.Errorf("%s: %d admitted, limit %d", k, got, limit)
		}
	}
	if len(admitted) != n {
		t.Errorf("%d keys admitted, want %d", len(admitted), n)
	}
	return n * (2 * limit / len(edges)) * len(edges)
}

// TestAdoptedRing puts three Envoys with the sample in front of three members that adopt its ring: every request reaches
// the owner of its key without a hop. A member without that configuration makes all members use Keyward's own ring: the
// limits hold, with hops, until it has the configuration of the others.
func TestAdoptedRing(t *testing.T) {
	shards := []string{"shard-0", "shard-1", "shard-2"}
	hosts := shardHosts(t, shards)
	l := newLab(t, lab.Options{
		Rules: map[string]string{"app.yaml": longRules}, Expect: 3, Args: []string{"--decision-timeout", "1s", "--xds="},
	})
	adopt := func(shard string) []string { return []string{"--ring", "envoy", "--ring-host", hosts[shard] + ":8080"} }
	for _, s := range shards {
		if _, err := l.AddSidecar(s, adopt(s)...); err != nil {
			t.Fatal(err)
		}
	}
	awaitRing(t, l, shards...)
	up := startUpstream(t)
	for _, s := range l.Sidecars {
		pod, err := l.AddEnvoy(lab.EnvoyOptions{
			Name: s.Name + "-envoy", Path: envoyBinary(t), Shape: "plain", Upstream: up.addr,
			Args: []string{"--from", "api_key=header:x-api-key", "--sidecar", s.RLS, "--routed", "--failure-mode-deny", "--timeout", "5s",
				"--listen", hosts[s.Name] + ":8080"},
		})
		if err != nil {
			t.Fatal(err)
		}
		awaitReady(t, pod)
	}
	nameServer := serveNames(t, hosts)
	var edges []*lab.Envoy
	for i := range 3 {
		e, err := l.AddEnvoy(lab.EnvoyOptions{
			Name: fmt.Sprintf("edge-%d", i), Path: envoyBinary(t), Config: edgeOfSample(nameServer),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Await(t.Context(), "rate-limit-service", 3); err != nil {
			t.Fatal(err)
		}
		edges = append(edges, e)
	}

	sent := sendThroughEdges(t, edges, "direct", 40)
	direct, misrouted := sum(t, l, "keyward_direct_total"), sum(t, l, "keyward_misrouted_total")
	if direct != float64(sent) || misrouted != 0 {
		t.Errorf("%v direct and %v misrouted of %d requests", direct, misrouted, sent)
	}
	for _, path := range []string{"forwarded", "lease", "degraded"} {
		if n := sum(t, l, "keyward_decisions_total", "path", path); n != 0 {
			t.Errorf("%v requests decided by the path %s", n, path)
		}
	}
	if n := sum(t, l, "keyward_keys", "table", "owned"); n != 40 {
		t.Errorf("%v counters for 40 keys", n)
	}
	for _, s := range l.Sidecars {
		if n := value(metrics(t, s.Metrics), "keyward_direct_total"); n == 0 {
			t.Errorf("%s owns no key", s.Name)
		}
	}

	// One member without the configuration.
	last := l.Sidecars[2]
	if err := last.Stop(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	if err := l.Restart(last); err != nil {
		t.Fatal(err)
	}
	awaitRing(t, l, shards...)
	if r := clusterOf(t, l.Sidecars[0]).Ring; r.Parameters != "" || len(r.Differ) != 1 || r.Differ[0] != last.Name {
		t.Errorf("with a member that is not configured: parameters %q, %v differ", r.Parameters, r.Differ)
	}
	differs := plant{"another kind of ring", "ring", "warn", "is configured for another kind of ring than " + last.Name, "--ring-hash"}
	differs.await(t, "--member", l.Sidecars[0].Metrics)
	sendThroughEdges(t, edges, "hops", 10)
	if n := sum(t, l, "keyward_misrouted_total", "cause", "ring"); n == 0 {
		t.Error("the rings of Envoys and members should differ")
	}

	// Configured again.
	if err := last.Stop(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	if err := l.Restart(last, adopt(last.Name)...); err != nil {
		t.Fatal(err)
	}
	awaitRing(t, l, shards...)
	if r := clusterOf(t, l.Sidecars[0]).Ring; r.Parameters != "envoy/1024/8388608/xx" || len(r.Differ) != 0 {
		t.Errorf("configured again: parameters %q, %v differ", r.Parameters, r.Differ)
	}
	before := sum(t, l, "keyward_misrouted_total")
	sendThroughEdges(t, edges, "again", 10)
	if n := sum(t, l, "keyward_misrouted_total") - before; n != 0 {
		t.Errorf("%v requests misrouted after the ring is adopted again", n)
	}
}

// clusterOf returns the /cluster document of a member.
func clusterOf(t *testing.T, s *lab.Sidecar) (c api.ClusterStatus) {
	t.Helper()
	body, err := lab.Get(t.Context(), "http://"+s.Metrics+"/cluster")
	if err == nil {
		err = json.Unmarshal(body, &c)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}
