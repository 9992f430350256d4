package dashboards

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/lab"
)

// liveRules has one rule for each kind of data that a panel shows.
const liveRules = `domain: app
descriptors:
- {key: api_key, rate_limit: {unit: minute, requests_per_unit: %d}}
- {key: api_key, value: quiet, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 10}}
- {key: path, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 100}}
- {key: api_key, value: "cap*", rate_limit: {unit: second, requests_per_unit: 2}}
- {key: lone, rate_limit: {unit: minute, requests_per_unit: 100000}}
- {key: busy, rate_limit: {unit: minute, requests_per_unit: 100000}}
- {key: brisk, rate_limit: {unit: second, requests_per_unit: 2000}}
- {key: address, rate_limit: {unit: minute, requests_per_unit: 30000}, metadata: {keyward: {mechanism: approximate, epsilon: 10%%, sync_interval: 1s}}}
- {key: open, rate_limit: {unit: minute, requests_per_unit: 600}, metadata: {keyward: {degraded: fail_open}}}
- {key: closed, rate_limit: {unit: minute, requests_per_unit: 600}, metadata: {keyward: {degraded: fail_closed}}}
- {key: strict, rate_limit: {unit: minute, requests_per_unit: 600}, metadata: {keyward: {durability: strict}}}
- {key: tokens, rate_limit: {unit: minute, requests_per_unit: 600}, metadata: {keyward: {reserve: 10, hold_ttl: 1s}}}
- {key: narrow, rate_limit: {unit: minute, requests_per_unit: 6000}, metadata: {keyward: {reserve: 10, holds: 1}}}
- {key: streams, rate_limit: {unit: hour, requests_per_unit: 1000}, metadata: {keyward: {algorithm: in_flight, window: 10s}}}
- {key: flood, rate_limit: {unit: hour, requests_per_unit: 5}}
- {key: quota, rate_limit: {unit: hour, requests_per_unit: 100}}
- {key: shared, rate_limit: {unit: minute, requests_per_unit: 60000}, metadata: {keyward: {federation: {outage: regional_only}}}}
- {key: spent, rate_limit: {unit: second, requests_per_unit: 20}, metadata: {keyward: {mechanism: quota, window: 10s, degraded: fail_closed}}}
- {key: loose, rate_limit: {unit: minute, requests_per_unit: 6000}, metadata: {keyward: {federation: {outage: fail_open, floor: 0%%}}}}
`

// tables is the members' --max-keys: more than the keys of the load, fewer than those of the flood.
const tables = 4000

// town is a cluster under load: four members, an xDS server, an Envoy that calls owners directly, and an Envoy that
// calls a single member and admits requests without a reply.
type town struct {
	*testing.T
	*lab.Lab
	edge, open *lab.Envoy
	frugal     *lab.Envoy   // makes no calls
	guest      *lab.Sidecar // leaves and returns
	pool       *lab.Coordinator
}

func newTown(t *testing.T, envoy string) *town {
	t.Helper()
	bin, err := filepath.Abs("../bin")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	l, err := lab.New(lab.Options{
		Dir: dir, Bin: bin, Rules: map[string]string{"app.yaml": fmt.Sprintf(liveRules, 300)}, Expect: 4, Regions: []string{"eu", "us"},
		Env:  []string{"LOCAL_CACHE_SIZE_IN_BYTES=1000000"}, // enables the deny cache
		Args: []string{"--hot-rate", "20", "--max-keys", fmt.Sprint(tables), "--decision-timeout", "50ms", "--nref-decay", "10s", "--data", filepath.Join(dir, "data")},
	})
	if err != nil {
		t.Fatalf("%v: run `make build` first", err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	c := &town{T: t, Lab: l}
	t.Cleanup(func() { // faults have killed some Envoys and members, so errors of Stop are expected
		stop()
		_ = l.Stop()
		for _, s := range l.Sidecars {
			if b := s.Tail(1 << 20); strings.Contains(b, "panic:") {
				t.Errorf("%s panicked:\n%s", s.Name, s.Tail(4000))
			}
		}
	})
	c.pool, err = l.AddCoordinator()
	c.must(err)
	l.Args = append(l.Args, l.RegionArgs(c.pool, "eu", c.pool.Addr)...)
	for _, name := range []string{"pod-a", "pod-b", "pod-c", "pod-d"} {
		c.guest, err = l.AddSidecar(name, "--admin", "unix:"+c.socket(name), "--module-socket", c.moduleSocket(name))
		c.must(err)
	}
	xds, err := l.AddXDS("xds")
	c.must(err)
	c.agree("pod-a", "pod-b", "pod-c", "pod-d")
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	t.Cleanup(app.Close)
	addr := app.Listener.Addr().String()
	from := []string{"--from", "api_key=header:x-api-key"}
	for _, other := range []string{"path", "busy", "brisk", "address", "open", "closed", "strict", "flood"} {
		from = append(from, "--from", other+"=header:x-"+other)
	}
	c.edge, err = l.AddEnvoy(lab.EnvoyOptions{
		Name: "edge", Path: envoy, Shape: "owner-direct", XDS: xds.Addr, Upstream: addr, Args: append(from, "--key", "api_key", "--hot-routes"),
	})
	c.must(err)
	c.open, err = l.AddEnvoy(lab.EnvoyOptions{
		Name: "edge-open", Path: envoy, Shape: "plain", Upstream: addr, Args: append(from, "--sidecar", l.Sidecars[2].RLS, "--timeout", "50ms"),
	})
	c.must(err)
	c.frugal, err = l.AddEnvoy(lab.EnvoyOptions{
		Name: "edge-frugal", Path: envoy, Shape: "rlqs", Upstream: addr, Args: append(from, "--sidecar", l.Sidecars[0].RLS, "--from", "spent=header:x-spent"),
	})
	c.must(err)
	c.must(c.edge.Await(ctx, "keyward", 4))
	c.load(ctx)
	c.moduleLoad(ctx, "pod-a") // which is never killed
	return c
}

func (c *town) socket(member string) string { return filepath.Join(c.Dir, member+".sock") }

func (c *town) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

func (c *town) agree(members ...string) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), 60*time.Second)
	defer cancel()
	c.must(c.AwaitRing(ctx, members...))
}

// wait sleeps while the load continues.
func (c *town) wait(d time.Duration) {
	select {
	case <-c.Context().Done():
	case <-time.After(d):
	}
}

// targets returns all targets of Prometheus.
func (c *town) targets() []target {
	all := []target{{"keyward-xds", "/metrics", "xds", c.XDS[0].Metrics}, {"coordinator", "/metrics", "coordinator", c.pool.Metrics}}
	for _, s := range c.Sidecars {
		all = append(all, target{"keyward", "/metrics", s.Name, s.Metrics})
	}
	for _, e := range c.Envoys {
		all = append(all, target{"envoy", "/stats/prometheus", e.Name, e.Admin})
	}
	return all
}

// load sends requests through the Envoys and to every member until the context ends.
func (c *town) load(ctx context.Context) {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 50}}
	get := func(e *lab.Envoy, key string, more ...string) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.Listener, nil)
		if err != nil {
			return
		}
		req.Header.Set("x-api-key", key)
		for _, name := range more {
			req.Header.Set(name, key)
		}
		if res, err := client.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
	}
	every(ctx, 10*time.Millisecond, func() { get(c.edge, fmt.Sprintf("client-%d", rand.IntN(300))) })
	every(ctx, 20*time.Millisecond, func() { get(c.edge, "busy-bee") }) // makes the key hot
	every(ctx, 50*time.Millisecond, func() { get(c.edge, "capped") })
	every(ctx, 100*time.Millisecond, func() { get(c.edge, "quiet") })
	every(ctx, 30*time.Millisecond, func() { get(c.open, fmt.Sprintf("client-%d", rand.IntN(300))) })
	every(ctx, 20*time.Millisecond, func() { get(c.frugal, "both", "x-spent") }) // 50 requests per second; the limit is 20
	every(ctx, time.Second, func() { get(c.frugal, fmt.Sprintf("some-%d", rand.IntN(3)), "x-spent") })
	busy := c.keyOf("busy", "pod-a") // pod-a is never killed, but the holders of its leases are
	owner, lone := c.dial(c.Sidecars[0].RLS, insecure.NewCredentials()), c.keyOf("lone", "pod-a")
	every(ctx, 8*time.Millisecond, func() { _ = say(ctx, owner, "lone", lone) }) // a hot key without relief
	for _, s := range c.Sidecars {
		rls := c.dial(s.RLS, insecure.NewCredentials())
		every(ctx, 15*time.Millisecond, func() { _ = say(ctx, rls, "busy", busy) })
		every(ctx, 15*time.Millisecond, func() { _ = say(ctx, rls, "brisk", "one") })
		every(ctx, 200*time.Millisecond, func() { _ = say(ctx, rls, "path", fmt.Sprint(rand.IntN(3))) })
		every(ctx, 25*time.Millisecond, func() { _ = say(ctx, rls, "address", fmt.Sprint(rand.IntN(20))) })
		every(ctx, 200*time.Millisecond, func() { _ = say(ctx, rls, "quota", fmt.Sprint(rand.IntN(100))) }) // in the journal
		every(ctx, 10*time.Millisecond, func() { _ = say(ctx, rls, "shared", fmt.Sprint(rand.IntN(3))) })
		c.hold(ctx, rls)
		for _, key := range []string{"open", "closed", "strict", "loose"} {
			every(ctx, 40*time.Millisecond, func() { _ = say(ctx, rls, key, fmt.Sprint(rand.IntN(20))) })
		}
	}
}

// hold makes and settles holds in all ways, the wrong ones among them.
func (c *town) hold(ctx context.Context, conn *grpc.ClientConn) {
	request := func(hits uint32, key, value, id, op string) {
		d := &ratelimitv3.RateLimitDescriptor{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: key, Value: value}}}
		for _, e := range [][2]string{{rls.HoldIDEntry, id}, {rls.HoldEntry, op}} {
			if e[1] != "" {
				d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: e[0], Value: e[1]})
			}
		}
		_, _ = rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{
			Domain: "app", HitsAddend: hits, Descriptors: []*ratelimitv3.RateLimitDescriptor{d},
		})
	}
	id := func() string { return fmt.Sprint(rand.Uint64()) }
	tokens := func(first uint32, settle func(value, id string)) {
		value, id := fmt.Sprint(rand.IntN(20)), id()
		request(first, "tokens", value, id, "")
		settle(value, id)
	}
	every(ctx, 20*time.Millisecond, func() { tokens(10, func(v, id string) { request(4, "tokens", v, id, "commit") }) })
	every(ctx, 200*time.Millisecond, func() { tokens(10, func(v, id string) { request(12, "tokens", v, id, "commit") }) })
	every(ctx, 200*time.Millisecond, func() { tokens(10, func(v, id string) { request(10, "tokens", v, id, "") }) }) // repeated, and lapses
	every(ctx, 200*time.Millisecond, func() { tokens(10, func(v, id string) { request(9, "tokens", v, id, "") }) })  // an id in use
	every(ctx, 200*time.Millisecond, func() { tokens(10, func(v, _ string) { request(1, "tokens", v, id(), "commit") }) })
	every(ctx, 200*time.Millisecond, func() { tokens(10, func(v, _ string) { request(0, "tokens", v, id(), "release") }) })
	every(ctx, 200*time.Millisecond, func() { request(10, "tokens", fmt.Sprint(rand.IntN(20)), "", "") })
	every(ctx, 200*time.Millisecond, func() { request(10, "narrow", "one", id(), "") })
	every(ctx, 100*time.Millisecond, func() { request(0, "streams", "one", id(), "") })
}

// keyOf returns a value with the given prefix that the member owns.
func (c *town) keyOf(prefix, member string) string {
	c.Helper()
	for i := range 100 {
		out, err := c.tool("ring", "owner", "--members", "pod-a,pod-b,pod-c,pod-d", fmt.Sprintf("%s-%d", prefix, i))
		c.must(err)
		if key, owner, _ := strings.Cut(strings.TrimSpace(out), "\t"); owner == member {
			return key
		}
	}
	c.Fatalf("%s owns none of a hundred keys", member)
	return ""
}

// tool runs the keyward command.
func (c *town) tool(args ...string) (string, error) {
	out, err := exec.Command(filepath.Join(c.Bin, "keyward"), args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("keyward %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// every calls f periodically, each time in a new goroutine, so that a late reply delays nothing.
func every(ctx context.Context, pause time.Duration, f func()) {
	tick := time.NewTicker(pause)
	go func() {
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				go f()
			}
		}
	}()
}

func (c *town) dial(addr string, creds credentials.TransportCredentials) *grpc.ClientConn {
	c.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(creds))
	c.must(err)
	c.Cleanup(func() { conn.Close() })
	return conn
}

// say sends a member a request for one key.
func say(ctx context.Context, conn *grpc.ClientConn, key, value string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{
		Domain: "app", Descriptors: []*ratelimitv3.RateLimitDescriptor{{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: key, Value: value}}}},
	})
	return err
}

// rules writes new rules for the members.
func (c *town) rules(text string, to ...*lab.Sidecar) {
	c.Helper()
	for _, s := range to {
		c.must(c.WriteRules(s, map[string]string{"app.yaml": text}))
	}
}

// changes performs operations that are not faults: a member leaves gracefully and returns, the rules change, and Envoys
// get a cap for a key.
func (c *town) changes() {
	c.Helper()
	c.must(c.guest.Stop(20 * time.Second))
	c.agree("pod-a", "pod-b", "pod-c")
	c.must(c.Restart(c.guest, "--admin", "unix:"+c.socket("pod-d")))
	c.agree("pod-a", "pod-b", "pod-c", "pod-d")
	c.rules(fmt.Sprintf(liveRules, 305), c.Sidecars...)
	_, err := c.tool("hot", "cap", "--admin", "unix:"+c.socket("pod-a"), "app", "api_key=capped")
	c.must(err)
}

// faults causes the faults that the panels show, one after the other. At the end the cluster has recovered.
func (c *town) faults() {
	c.Helper()
	a, b, victim := c.Sidecars[0], c.Sidecars[1], c.Sidecars[2]
	c.mute(a)
	const window = 10 * time.Second // of the limit that it spends: it is sent the next window's part, and does not acknowledge it
	c.wait(time.Until(time.Now().Add(2 * time.Second).Truncate(window).Add(window - 2*time.Second)))
	c.must(c.frugal.Signal(syscall.SIGSTOP)) // until the end
	c.refusals(a)
	c.rules("domain: app\ndescriptors: [", a) // invalid, while the other member has new rules and waits
	c.rules(fmt.Sprintf(liveRules, 310), b)
	victim.Kill() // a crash: the others decide its keys, and the Envoy that calls only this member gets no reply
	c.wait(7 * time.Second)
	c.must(b.Signal(syscall.SIGSTOP)) // longer than a member may be silent
	c.wait(6 * time.Second)
	c.must(b.Signal(syscall.SIGCONT))
	c.pool.Kill()
	c.outage(a)
	c.must(c.RestartCoordinator(c.pool))
	c.noise(a) // again: Prometheus detects an increase only in an existing series
	c.flood(a) // last: a key without a counter in a full table has no lease
	c.rules(fmt.Sprintf(liveRules, 320), victim)
	c.must(c.Restart(victim)) // it starts with rules that no other member has
	c.wait(5 * time.Second)
	c.must(c.frugal.Signal(syscall.SIGCONT))
}

// outage waits until what the region had leased is used up and a member admits hits of its own above the floors, at the
// latest when the next minute begins, and until Prometheus has seen it.
func (c *town) outage(s *lab.Sidecar) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), 2*time.Minute)
	defer cancel()
	c.must(lab.Await(ctx, "hits above the floors", func(ctx context.Context) error {
		page, err := lab.Get(ctx, "http://"+s.Metrics+"/metrics")
		if err == nil && !aboveFloors.Match(page) {
			err = errors.New("none yet")
		}
		return err
	}))
	c.wait(5 * time.Second)
}

// aboveFloors matches the sample of hits that a member admitted above the floors.
var aboveFloors = regexp.MustCompile(`(?m)^keyward_overadmission_bound_by_cause\{cause="outage"\} [1-9]`)

// refusals sends traffic that is refused: a message that is too long, garbage on the peer port, and the rejection of an
// xDS update.
func (c *town) refusals(s *lab.Sidecar) {
	c.Helper()
	if err := say(c.Context(), c.dial(s.RLS, insecure.NewCredentials()), "flood", strings.Repeat("x", 70<<10)); err != nil {
		c.Errorf("a long value must be answered as over the limit: %v", err)
	}
	c.noise(s)
	own, err := certs.Client(certs.DemoFiles(filepath.Join(c.Dir, "certs"), "envoy"), certs.ClientOptions{ServerName: "localhost"})
	c.must(err)
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(c.dial(c.XDS[0].Addr, credentials.NewTLS(own))).StreamAggregatedResources(c.Context())
	c.must(err)
	ask := &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "sceptic"}, TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster"}
	c.must(stream.Send(ask))
	res, err := stream.Recv()
	c.must(err)
	ask.ResponseNonce, ask.ErrorDetail = res.GetNonce(), &status.Status{Code: 3, Message: "rejected by the test"}
	c.must(errors.Join(stream.Send(ask), stream.CloseSend()))
}

// mute opens a stream as an Envoy does, and reports only once.
func (c *town) mute(s *lab.Sidecar) {
	c.Helper()
	stream, err := rlqsv3.NewRateLimitQuotaServiceClient(c.dial(s.RLS, insecure.NewCredentials())).StreamRateLimitQuotas(c.Context())
	c.must(err)
	c.must(stream.Send(&rlqsv3.RateLimitQuotaUsageReports{Domain: "app", BucketQuotaUsages: []*rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{{
		BucketId: &rlqsv3.BucketId{Bucket: map[string]string{"0.spent": "once"}}, TimeElapsed: durationpb.New(0), NumRequestsDenied: 1,
	}}}))
}

// crowd reports more bucket ids of one Envoy than it may have, one that is too long, and one that fits no rule.
func (c *town) crowd(s *lab.Sidecar) {
	c.Helper()
	stream, err := rlqsv3.NewRateLimitQuotaServiceClient(c.dial(s.RLS, insecure.NewCredentials())).StreamRateLimitQuotas(c.Context())
	c.must(err)
	ids := []*rlqsv3.BucketId{{Bucket: map[string]string{"0.spent": strings.Repeat("x", 20<<10)}}, {Bucket: map[string]string{"0.nothing": "x"}}}
	for i := range 10_010 {
		ids = append(ids, &rlqsv3.BucketId{Bucket: map[string]string{"0.spent": fmt.Sprint(i)}})
	}
	for part := range slices.Chunk(ids, 1000) {
		r := &rlqsv3.RateLimitQuotaUsageReports{Domain: "app"}
		for _, id := range part {
			r.BucketQuotaUsages = append(r.BucketQuotaUsages, &rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{
				BucketId: id, TimeElapsed: durationpb.New(0), NumRequestsDenied: 1,
			})
		}
		c.must(stream.Send(r))
	}
	_, err = stream.Recv() // when it has an answer, the first message has been processed
	c.must(errors.Join(err, stream.CloseSend()))
}

// noise sends what is not the protocol of Envoys, modules and peers.
func (c *town) noise(s *lab.Sidecar) {
	c.Helper()
	c.crowd(s)
	c.moduleFaults(s)
	conn, err := net.Dial("tcp", s.Peer)
	c.must(err)
	_, err = io.WriteString(conn, "GET / HTTP/1.1\r\n\r\n")
	c.must(errors.Join(err, conn.Close()))
}

// flood sends requests for more keys than fit.
func (c *town) flood(s *lab.Sidecar) {
	c.Helper()
	conn := c.dial(s.RLS, insecure.NewCredentials())
	for i := range 4 * tables {
		if err := say(c.Context(), conn, "flood", fmt.Sprint(i)); err != nil {
			c.Fatal(err)
		}
	}
}
