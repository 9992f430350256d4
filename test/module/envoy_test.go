package module

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/internal/lab"
)

// service is a rate limit service: it records the calls, and admits a number of them.
type service struct {
	ratelimit.UnimplementedRateLimitServiceServer
	addr  string
	mu    sync.Mutex
	calls []*ratelimit.RateLimitRequest // guarded by mu
	admit int                           // guarded by mu; calls to admit from now on
}

func (s *service) ShouldRateLimit(_ context.Context, r *ratelimit.RateLimitRequest) (*ratelimit.RateLimitResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, r)
	code := ratelimit.RateLimitResponse_OVER_LIMIT
	if s.admit > 0 {
		s.admit--
		code = ratelimit.RateLimitResponse_OK
	}
	return &ratelimit.RateLimitResponse{OverallCode: code, ResponseHeadersToAdd: []*corev3.HeaderValue{{Key: "x-service", Value: "1"}}}, nil
}

// take returns the calls since the last take.
func (s *service) take() []*ratelimit.RateLimitRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}

func (s *service) allow(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.admit = n
}

// site is an Envoy with the module, a rate limit service and an application.
type site struct {
	*testing.T
	release
	lab     *lab.Lab
	envoy   *lab.Envoy
	service *service
	headers atomic.Pointer[http.Header] // of the last request that the application has received
	served  atomic.Int64
	lds     string // the file with a dynamic listener
}

// setup describes an Envoy's configuration.
type setup struct {
	socket  string
	limits  string   // JSON of the list of descriptors; empty: the header x-key as api_key
	abi     string   // of the module's file; empty: that of the release
	bare    bool     // without the module
	built   bool     // the rate limit filter is built for each request, and skipped
	before  []string // filters before the module
	broken  bool     // Envoy refuses the rate limit filter
	after   []string // filters behind the rate limit filter
	filters []string // instead of the module and the rate limit filter
	dynamic bool     // the listener comes from a file
	route   string   // more of the route
	workers int
	flags   []string                         // of Envoy
	print   func(service, app string) string // the configuration; nil: that of the other fields
	files   string                           // folder with the module's files; empty: those under test
	service string                           // address of the rate limit service; empty: that of the site
}

const byKey = `[{"actions":[{"request_headers":{"header_name":"x-key","descriptor_key":"api_key"}}]}]`

// start starts an Envoy that must accept its configuration.
func start(t *testing.T, r release, o setup) *site {
	t.Helper()
	s := tryStart(t, r, o)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.envoy.Await(ctx, "app", 1); err != nil {
		t.Fatal(err)
	}
	return s
}

// tryStart starts an Envoy that may refuse its configuration.
func tryStart(t *testing.T, r release, o setup) *site {
	t.Helper()
	s := &site{T: t, release: r, service: &service{}}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.service.addr = ln.Addr().String()
	server := grpc.NewServer()
	ratelimit.RegisterRateLimitServiceServer(server, s.service)
	go func() { _ = server.Serve(ln) }()
	t.Cleanup(server.Stop)
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.served.Add(1)
		answer(w, r, s.served.Load())
		h := r.Header.Clone()
		s.headers.Store(&h)
	}))
	t.Cleanup(app.Close)
	if s.lab, err = lab.New(lab.Options{Dir: t.TempDir(), Insecure: true}); err != nil {
		t.Fatal(err)
	}
	var config string
	if o.print != nil {
		config = o.print(s.service.addr, app.Listener.Addr().String())
	} else {
		config = s.bootstrap(o, app.Listener.Addr().String())
	}
	files := o.files
	if files == "" {
		files = modules()
	}
	s.envoy, err = s.lab.AddEnvoy(lab.EnvoyOptions{
		Name: "envoy", Path: r.program(), Concurrency: max(1, o.workers), Config: config, Flags: o.flags,
		Env: []string{"ENVOY_DYNAMIC_MODULES_SEARCH_PATH=" + files, "RUST_BACKTRACE=1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of Envoy %s: %s", r.version, s.envoy.Tail(6000))
		}
		if s.envoy.Running() {
			if err := s.envoy.Stop(20 * time.Second); err != nil {
				t.Errorf("Envoy %s: %v", r.version, err)
			}
		}
	})
	return s
}

// answer makes the application's answers to paths that a test uses.
func answer(w http.ResponseWriter, r *http.Request, n int64) {
	switch r.URL.Path {
	case "/redirect":
		http.Redirect(w, r, "http://"+r.Host+"/", http.StatusFound)
	case "/second": // every second request fails
		w.WriteHeader(map[bool]int{true: http.StatusServiceUnavailable, false: http.StatusOK}[n%2 == 1])
	case "/upgrade":
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", r.Header.Get("Upgrade"))
		w.WriteHeader(http.StatusSwitchingProtocols)
	case "/body":
		b, err := io.ReadAll(r.Body)
		fmt.Fprint(w, len(b), r.Trailer.Get("x-trailer"), err)
	}
}

// bootstrap returns the configuration of an Envoy. JSON is YAML.
func (s *site) bootstrap(o setup, app string) string {
	if o.limits == "" {
		o.limits = byKey
	}
	if o.abi == "" {
		o.abi = s.abi
	}
	service := o.service
	if service == "" {
		service = s.service.addr
	}
	dynamic, static := "", "listeners: [{"+s.listener(o)+"}]"
	if o.dynamic {
		dir := s.TempDir()
		s.lds = dir + "/lds.yaml"
		if err := os.WriteFile(s.lds, []byte("resources: []"), 0o644); err != nil {
			s.Fatal(err)
		}
		dynamic = fmt.Sprintf("dynamic_resources: {lds_config: {resource_api_version: V3, path_config_source: {path: %s/lds.yaml, watched_directory: {path: %s}}}}\n", dir, dir)
		static = "listeners: []"
	}
	return "node: {id: lab, cluster: lab}\nadmin: {address: {socket_address: {address: @ADMINHOST@, port_value: @ADMINPORT@}}}\n" + dynamic +
		"static_resources:\n  " + static + "\n  clusters:\n" + lab.StaticCluster("app", app, false) + lab.StaticCluster("keyward", service, true)
}

// replace writes the file with the dynamic listener. Envoy reads it when it is renamed.
func (s *site) replace(o setup) {
	s.Helper()
	if o.limits == "" {
		o.limits = byKey
	}
	if o.abi == "" {
		o.abi = s.abi
	}
	host, port, _ := strings.Cut(s.envoy.Listener, ":")
	text := fmt.Sprintf(`resources: [{"@type": type.googleapis.com/envoy.config.listener.v3.Listener, %s}]`, s.listener(o))
	text = strings.NewReplacer("@HOST@", host, "@PORT@", port).Replace(text)
	err := os.WriteFile(s.lds+".new", []byte(text), 0o644)
	if err == nil {
		err = os.Rename(s.lds+".new", s.lds)
	}
	if err != nil {
		s.Fatal(err)
	}
}

// await200 waits until a request is answered by 200.
func (s *site) await200(path string) {
	s.Helper()
	awaitTrue(s.T, "an answer", func() bool { return s.get(path) == http.StatusOK })
}

// router is the last filter of a listener.
var router = "{name: envoy.filters.http.router, typed_config: " + lab.TypedConfig("envoy.extensions.filters.http.router.v3.Router", "") + "}"

// listener returns the fields of the listener.
func (s *site) listener(o setup) string {
	filters := o.filters
	if filters == nil {
		filters = []string{s.limiter(o)}
		if !o.bare && !s.matcher {
			filters = []string{s.module(o), s.limiter(o)}
		}
	}
	filters = slices.Concat(o.before, filters, o.after, []string{router})
	manager := lab.TypedConfig("envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", fmt.Sprintf(
		`stat_prefix: in, generate_request_id: false, upgrade_configs: [{upgrade_type: websocket}], route_config: {name: r, virtual_hosts: [{name: v, domains: ["*"], routes: [{match: {prefix: /direct}, direct_response: {status: 200}}, {match: {path: /redirect}, route: {cluster: app, internal_redirect_policy: {}}}, {match: {path: /second}, route: {cluster: app, retry_policy: {retry_on: 5xx}}}, {match: {prefix: /}, route: {cluster: app, timeout: 0s}, %s}]}]}, http_filters: [%s]`,
		o.route, strings.Join(filters, ", ")))
	return fmt.Sprintf(`name: in, address: {socket_address: {address: @HOST@, port_value: @PORT@}}, filter_chains: [{filters: [{name: hcm, typed_config: %s}]}]`, manager)
}

// moduleConfig returns the module's file and configuration, as Envoy's filter and matcher have them.
func moduleConfig(o setup, kind string) string {
	config := fmt.Sprintf(`{"socket": %q, "node": "lab", "domain": "app", "limits": %s}`, o.socket, o.limits)
	return fmt.Sprintf(`dynamic_module_config: {name: keyward_abi_%s, do_not_close: true}, %s_name: lease, %s_config: {"@type": type.googleapis.com/google.protobuf.StringValue, value: %q}`,
		o.abi, kind, kind, config)
}

// module returns the module's filter.
func (s *site) module(o setup) string {
	return "{name: keyward.lease, typed_config: " + lab.TypedConfig("envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter", moduleConfig(o, "filter")) + "}"
}

// leased returns the part of a matcher that holds for requests whose leases were taken, with the action to skip.
func (s *site) leased(o setup) string {
	skip := "{action: {name: skip, typed_config: " + lab.TypedConfig("envoy.extensions.filters.common.matcher.action.v3.SkipFilter", "") + "}}"
	if !s.matcher {
		input := "{name: leased, typed_config: " + lab.TypedConfig("envoy.extensions.matching.common_inputs.network.v3.FilterStateInput", "key: keyward.leased/app") + "}"
		return fmt.Sprintf(`matcher_tree: {input: %s, exact_match_map: {map: {"1": %s}}}`, input, skip)
	}
	input := "{name: request, typed_config: " + lab.TypedConfig("envoy.extensions.matching.http.dynamic_modules.v3.HttpDynamicModuleMatchInput", "") + "}"
	match := "{name: lease, typed_config: " + lab.TypedConfig("envoy.extensions.matching.input_matchers.dynamic_modules.v3.DynamicModuleMatcher", moduleConfig(o, "matcher")) + "}"
	return fmt.Sprintf(`matcher_list: {matchers: [{predicate: {single_predicate: {input: %s, custom_match: %s}}, on_match: %s}]}`, input, match, skip)
}

// limiter returns the rate limit filter, with the matcher that skips requests whose leases were taken.
func (s *site) limiter(o setup) string {
	filter := "{name: envoy.filters.http.ratelimit, typed_config: " + lab.TypedConfig("envoy.extensions.filters.http.ratelimit.v3.RateLimit", fmt.Sprintf(
		`domain: app, timeout: 10s, failure_mode_deny: true, rate_limits: %s, rate_limit_service: {transport_api_version: V3, grpc_service: {envoy_grpc: {cluster_name: keyward}}}`, o.limits)) + "}"
	if o.broken {
		filter = strings.Replace(filter, "domain: app", `domain: ""`, 1)
	}
	if o.bare {
		return filter
	}
	const matcher = "envoy.extensions.common.matching.v3.ExtensionWithMatcher"
	if o.built {
		return "{name: envoy.filters.http.ratelimit, typed_config: " + lab.TypedConfig(matcher, fmt.Sprintf(`extension_config: %s, xds_matcher: {%s}`, filter, s.leased(o))) + "}"
	}
	execute := "{action: {name: limit, typed_config: " + lab.TypedConfig("envoy.extensions.filters.http.composite.v3.ExecuteFilterAction", "typed_config: "+filter) + "}}"
	composite := "{name: composite, typed_config: " + lab.TypedConfig("envoy.extensions.filters.http.composite.v3.Composite", "") + "}"
	return "{name: envoy.filters.http.ratelimit, typed_config: " + lab.TypedConfig(matcher, fmt.Sprintf(`extension_config: %s, xds_matcher: {%s, on_no_match: %s}`, composite, s.leased(o), execute)) + "}"
}

// get sends a request with headers, and returns the status.
func (s *site) get(path string, headers ...string) int {
	s.Helper()
	return send(http.DefaultClient, "http://"+s.envoy.Listener+path, headers...)
}

// twice sends a request at least twice, the last two times within a second: then the module asks for its leases. It returns
// the number of requests.
func (s *site) twice(path string, headers ...string) (n int) {
	s.Helper()
	for {
		begin := time.Now()
		s.get(path, headers...)
		s.get(path, headers...)
		n += 2
		if time.Since(begin) < time.Second {
			return n
		}
	}
}

// send returns 0 without an answer.
func send(c *http.Client, url string, headers ...string) int {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		panic(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := c.Do(req)
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

// burst sends n requests of a key over several connections, and returns how many were admitted and refused.
func (s *site) burst(conns, n int, headers ...string) (admitted, refused int) {
	s.Helper()
	var left, ok, over atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	for range conns {
		c := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxConnsPerHost: 1, DisableCompression: true}}
		defer c.CloseIdleConnections()
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				switch code := send(c, "http://"+s.envoy.Listener+"/", headers...); code {
				case http.StatusOK:
					ok.Add(1)
				case http.StatusTooManyRequests:
					over.Add(1)
				default:
					s.Errorf("status %d", code)
				}
			}
		})
	}
	wg.Wait()
	return int(ok.Load()), int(over.Load())
}

func (s *site) want(what string, got, want int) {
	s.Helper()
	if got != want {
		s.Errorf("%s: %d, want %d", what, got, want)
	}
}

// descriptors returns a call's descriptors as the module names them.
func descriptors(r *ratelimit.RateLimitRequest) (all []string) {
	for _, d := range r.Descriptors {
		var entries []string
		for _, e := range d.Entries {
			entries = append(entries, e.Key+"="+e.Value)
		}
		all = append(all, strings.Join(entries, ","))
	}
	return all
}

func bytesOf(r *ratelimit.RateLimitRequest) string {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
	if err != nil {
		panic(err)
	}
	return string(b)
}
