package e2e

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keyward/keyward/envoy/rlqs"
	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/stats"
	"github.com/keyward/keyward/owner"
)

// quotaBook records what an Envoy reports, and assigns what the test wants.
type quotaBook struct {
	acks chan uint64

	mu     sync.Mutex
	opened []rlqs.EnvoyStream // guarded by mu, as are the fields below; all streams, in order
	open   uint64             // the stream that is open; 0: none
	key    string             // of the bucket
	name   string             // of the bucket, for people
	limit  uint32             // of its rule
	// allowed and denied are the reported requests.
	allowed, denied uint64
}

func (b *quotaBook) Opened(_ time.Time, stream uint64, e rlqs.EnvoyStream) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.opened, b.open = append(b.opened, e), stream
}

func (b *quotaBook) Reported(_ time.Time, _ uint64, usages []rlqs.BucketUsage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, u := range usages {
		b.key, b.name, b.limit = u.Bucket.Key, string(u.Bucket.AppendName(nil)), u.Bucket.Request.Rule.Limit
		b.allowed, b.denied = b.allowed+u.Allowed, b.denied+u.Denied
	}
}

func (b *quotaBook) Acked(_ time.Time, _, serial uint64) { b.acks <- serial }

func (b *quotaBook) Closed(_ time.Time, stream uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == stream {
		b.open = 0
	}
}

// await waits until cond holds, and returns the stream that is open then.
func (b *quotaBook) await(t *testing.T, what string, cond func() bool) (stream uint64) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		b.mu.Lock()
		ok := cond()
		stream = b.open
		if time.Now().After(end) {
			t.Fatalf("never: %s; %+v", what, b)
		}
		b.mu.Unlock()
		if ok {
			return stream
		}
	}
}

// noDecider is the Decider of a service that is asked nothing.
type noDecider struct{}

func (noDecider) Decide(policy.Deadline, bool, []owner.Request, []owner.Result) {}

// quotaDoor serves the rate limit quota service for an Envoy.
func quotaDoor(t *testing.T, age time.Duration) (*rlqs.QuotaServer, *quotaBook, net.Addr) {
	t.Helper()
	service := rls.New(rls.Options{Decider: noDecider{}, Stats: stats.New(stats.Options{})})
	rules, err := config.Load([]config.File{{Name: "edge.yaml", Content: []byte(
		"domain: edge\ndescriptors:\n- {key: api_key, rate_limit: {unit: minute, requests_per_unit: 4321}, metadata: {keyward: {mechanism: quota}}}\n",
	)}}, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	service.SetRules(rules, rls.Switches{})
	book := &quotaBook{acks: make(chan uint64, 100)}
	door := rlqs.NewServer(rlqs.Options{Service: service, Book: book})
	s, err := rls.Start(rls.StartOptions{
		Service: service, Listeners: []rls.Listener{{Address: "127.0.0.1:0"}}, Methods: door.Methods(), ConnectionAge: age,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		door.Close()
		s.Stop(ctx)
	})
	return door, book, s.Addrs[0]
}

// quotaEnvoy starts an Envoy that asks the door, and answers requests itself. It returns its address.
func quotaEnvoy(t *testing.T, door net.Addr) string {
	t.Helper()
	l := newLab(t, lab.Options{Insecure: true})
	_, port, _ := net.SplitHostPort(door.String())
	e, err := l.AddEnvoy(lab.EnvoyOptions{Name: "quota", Path: envoyBinary(t), Concurrency: 2, Config: strings.ReplaceAll(quotaEnvoyConfig, "@DOOR@", port)})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Await(t.Context(), "door", 1); err != nil {
		t.Fatal(err)
	}
	return e.Listener
}

const quotaEnvoyConfig = `
admin: {address: {socket_address: {address: @ADMINHOST@, port_value: @ADMINPORT@}}}
static_resources:
  listeners:
  - name: in
    address: {socket_address: {address: @HOST@, port_value: @PORT@}}
    filter_chains:
    - filters:
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          route_config: {virtual_hosts: [{name: v, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200}}]}]}
          http_filters:
          - name: envoy.filters.http.rate_limit_quota
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaFilterConfig
              domain: edge
              rlqs_server: {envoy_grpc: {cluster_name: door}, initial_metadata: [{key: x-keyward-envoy, value: pod-7}]}
              bucket_matchers:
                on_no_match:
                  action:
                    name: quota
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaBucketSettings
                      no_assignment_behavior: {fallback_rate_limit: {blanket_rule: DENY_ALL}}
                      reporting_interval: 5s
                      bucket_id_builder:
                        bucket_id_builder:
                          0.api_key:
                            custom_value:
                              name: key
                              typed_config: {"@type": type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput, header_name: x-key}
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
  - name: door
    type: STATIC
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment: {cluster_name: door, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: @DOOR@}}}}]}]}
`

// fire sends n requests over 16 connections and returns how many were admitted.
func fire(t *testing.T, address string, n int) int {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 16, MaxConnsPerHost: 16}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	var left, admitted atomic.Int64
	left.Store(int64(n))
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/", http.NoBody)
				req.Header.Set("X-Key", "k")
				resp, err := client.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				switch resp.StatusCode {
				case http.StatusOK:
					admitted.Add(1)
				case http.StatusTooManyRequests:
				default:
					t.Errorf("status %d", resp.StatusCode)
				}
			}
		})
	}
	all.Wait()
	return int(admitted.Load())
}

// An Envoy admits exactly the tokens of each pair that it has acknowledged.
func TestQuotaPairsAreExact(t *testing.T) {
	door, book, addr := quotaDoor(t, 0)
	envoy := quotaEnvoy(t, addr)
	if n := fire(t, envoy, 1); n != 0 {
		t.Fatalf("%d admitted without an assignment", n)
	}
	stream := book.await(t, "a report", func() bool { return book.key != "" })
	if e := book.opened[0]; e.Name != "pod-7" || e.Domain != "edge" || e.Address != "127.0.0.1" || book.name != "api_key=k" || book.limit != 4321 {
		t.Errorf("%+v: %s, limit %d", e, book.name, book.limit)
	}
	admitted := 0
	for i, n := range []int{1, 37, 100, 500, 7} {
		serial := uint64(1000 + i)
		assignments := []rlqs.Assignment{{Key: book.key, Kind: rlqs.AssignPair, Tokens: uint32(n), TTL: time.Hour}}
		if err := door.Send(stream, serial, assignments); err != nil {
			t.Fatal(err)
		}
		if got := <-book.acks; got != serial {
			t.Fatalf("serial %d acknowledged, not %d", got, serial)
		}
		got := fire(t, envoy, n+300)
		if got != n {
			t.Errorf("%d of %d admitted", got, n)
		}
		admitted += got
	}
	book.await(t, "reports of all requests", func() bool { return book.allowed >= uint64(admitted) })
	if len(book.opened) != 1 || book.allowed != uint64(admitted) {
		t.Errorf("%d reported, %d admitted, %d streams", book.allowed, admitted, len(book.opened))
	}
}

// When the server ends a stream because its connection is old, Envoy keeps its assignment, opens the stream again on another
// connection and reports all of its usage.
func TestQuotaStreamIsOpenedAgain(t *testing.T) {
	door, book, addr := quotaDoor(t, 8*time.Second)
	envoy := quotaEnvoy(t, addr)
	fire(t, envoy, 1)
	first := book.await(t, "a report", func() bool { return book.key != "" })
	if err := door.Send(first, 1, []rlqs.Assignment{{Key: book.key, Kind: rlqs.AssignPair, Tokens: 60, TTL: time.Hour}}); err != nil {
		t.Fatal(err)
	}
	<-book.acks
	admitted := fire(t, envoy, 20)
	book.await(t, "the end of the stream", func() bool { return book.open != first })
	admitted += fire(t, envoy, 17)
	for {
		second := book.await(t, "another stream, with reports of all requests", func() bool { return book.open > first && book.allowed >= uint64(admitted) })
		err := door.Send(second, 2, []rlqs.Assignment{{Key: book.key, Kind: rlqs.AssignSame, Tokens: 60, TTL: time.Hour}})
		if err == nil {
			break
		}
		if !errors.Is(err, rlqs.ErrClosed) { // that connection is old, too
			t.Fatal(err)
		}
	}
	<-book.acks
	if admitted += fire(t, envoy, 100); admitted != 60 {
		t.Errorf("%d of 60 admitted", admitted)
	}
	if book.allowed < 37 || book.opened[1].Name != "pod-7" {
		t.Errorf("%d reported on %+v", book.allowed, book.opened)
	}
}
