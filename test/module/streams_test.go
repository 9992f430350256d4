package module

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/envoy/snippet"
	"github.com/keyward/keyward/internal/lab"
)

// TestKindsOfRequests checks that each kind of request takes one hit of a lease, or makes one call.
func TestKindsOfRequests(t *testing.T) {
	each(t, func(t *testing.T, r release) {
		p := listen(t, ordinary(64))
		add := "{name: envoy.filters.http.header_mutation, typed_config: " + lab.TypedConfig("envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
			`mutations: {request_mutations: [{append: {header: {key: x-key, value: "%REQ(x-raw-key)%"}, append_action: OVERWRITE_IF_EXISTS_OR_ADD}}]}`) + "}"
		s := start(t, r, setup{socket: p.path, before: []string{add}})
		l := p.link(0)
		for name, send := range map[string]func(*http.Request){
			"another filter writes the key": func(*http.Request) {},
			"a body and trailers": func(req *http.Request) {
				req.Method, req.URL.Path = http.MethodPost, "/body"
				req.Body, req.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat("b", 1<<20))), -1
				req.Trailer = http.Header{"X-Trailer": {"t"}}
			},
			"a body after 100": func(req *http.Request) {
				req.Method, req.URL.Path = http.MethodPost, "/body"
				req.Header.Set("Expect", "100-continue")
				req.Body, req.ContentLength = io.NopCloser(strings.NewReader("b")), 1
			},
			"an upgrade": func(req *http.Request) {
				req.URL.Path = "/upgrade"
				req.Header.Set("Connection", "Upgrade")
				req.Header.Set("Upgrade", "websocket")
			},
			"a retry": func(req *http.Request) { req.URL.Path = "/second" },
		} {
			for tokens := range uint32(2) {
				lease := l.segment.lend(0, 10*tokens, time.Minute, "app", "api_key=k")
				s.service.allow(1)
				if s.served.Load()%2 == 1 {
					s.served.Add(1)
				}
				s.service.take()
				req, err := http.NewRequest(http.MethodGet, "http://"+s.envoy.Listener+"/", nil)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("x-raw-key", "k")
				send(req)
				res, err := http.DefaultTransport.RoundTrip(req)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusSwitchingProtocols {
					t.Errorf("%s: status %d", name, res.StatusCode)
				}
				res.Body.Close()
				s.want(name+": calls", len(s.service.take()), 1-int(tokens))
				s.want(name+": left", int(lease.left()), 9*int(tokens))
			}
		}
	})
}

// TestDisabledFilter checks that a route which disables the rate limit filter has no limit. Of the module's filter, it takes hits unless
// it disables that one as well.
func TestDisabledFilter(t *testing.T) {
	each(t, func(t *testing.T, r release) {
		disabled := lab.TypedConfig("envoy.config.route.v3.FilterConfig", "disabled: true, config: {}")
		for _, c := range []struct {
			filters      string
			left, filter int
		}{
			{"envoy.filters.http.ratelimit: " + disabled, 10, 9},
			{"envoy.filters.http.ratelimit: " + disabled + ", keyward.lease: " + disabled, 10, 10},
		} {
			p := listen(t, ordinary(64))
			s := start(t, r, setup{socket: p.path, route: "typed_per_filter_config: {" + c.filters + "}"})
			l := p.link(0)
			lease := l.segment.lend(0, 10, time.Minute, "app", "api_key=k")
			s.want("status", s.get("/", "x-key", "k"), http.StatusOK)
			s.want("calls", len(s.service.take()), 0)
			if !r.matcher {
				c.left = c.filter
			}
			s.want("left", int(lease.left()), c.left)
		}
	})
}

// TestSeveralDomains compares what the rate limit filters of two domains count with the module and without: when the first one
// refuses a request, the second one takes nothing, and when the second one does, the first one has taken its hit.
func TestSeveralDomains(t *testing.T) {
	const rules = "domain: %s\ndescriptors:\n- key: %s\n  rate_limit: {unit: hour, requests_per_unit: 100}\n"
	each(t, func(t *testing.T, r release) {
		p := listen(t, ordinary(64))
		as := snippet.ModuleFilter
		if r.matcher {
			as = snippet.ModuleMatcher
		}
		s := start(t, r, generated(t, r, as, p, fmt.Sprintf(rules, "a", "api_key"), fmt.Sprintf(rules, "b", "tenant")))
		l := p.link(0)
		for _, c := range []struct {
			name                string
			a, b                uint32 // tokens
			admit               int    // calls
			status, calls, x, y int    // and what the request takes of the leases
		}{
			{"both leased", 5, 5, 0, 200, 0, 1, 1},
			{"the first leased, the second refused", 5, 0, 0, 429, 1, 1, 0},
			{"the first leased, the second admitted", 5, 0, 1, 200, 1, 1, 0},
			{"the first refused", 0, 5, 0, 429, 1, 0, 0},
			{"the first admitted, the second leased", 0, 5, 1, 200, 1, 0, 1},
			{"both admitted", 0, 0, 2, 200, 2, 0, 0},
		} {
			x, y := l.segment.lend(0, c.a, time.Minute, "a", "api_key=k"), l.segment.lend(0, c.b, time.Minute, "b", "tenant=t")
			s.service.allow(c.admit)
			s.want(c.name+": status", s.get("/", "x-key", "k", "x-tenant", "t"), c.status)
			s.want(c.name+": calls", len(s.service.take()), c.calls)
			s.want(c.name+": of the first", int(c.a-x.left()), c.x)
			s.want(c.name+": of the second", int(c.b-y.left()), c.y)
		}
	})
}
