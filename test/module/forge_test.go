package module

import (
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// exchange sends a request with a body, and returns the answer without the headers that differ each time.
func (s *site) exchange(body string, headers ...string) (status int, header http.Header) {
	s.Helper()
	req, err := http.NewRequest(http.MethodPost, "http://"+s.envoy.Listener+"/", strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	header = res.Header.Clone()
	header.Del("date")
	header.Del("x-envoy-upstream-service-time")
	return res.StatusCode, header
}

// TestWithoutLeaseNothingChanges checks that the rate limit service, the application and the client receive the same from an
// Envoy with the module and from one without it, and that a client cannot skip the rate limit filter.
func TestWithoutLeaseNothingChanges(t *testing.T) {
	each(t, func(t *testing.T, r release) {
		p := listen(t, ordinary(64))
		action, _ := r.another()
		limits := `[{"actions":[{"request_headers":{"header_name":"x-key","descriptor_key":"api_key"}},` + action + `]},{"actions":[{"generic_key":{"descriptor_value":"all"}}]}]`
		with := start(t, r, setup{socket: p.path, limits: limits})
		without := start(t, r, setup{bare: true, limits: limits})
		p.link(0)
		for _, headers := range [][]string{
			{}, {"x-key", "k"}, {"x-key", ""}, {"x-key", "ü"}, {"x-key", "a", "x-key", "b"},
			{"x-key", "k", "keyward.leased", "1"}, {"x-key", "k", "x-keyward-leased", "1"}, {"x-key", "k", "x-envoy-ratelimited", "false"},
			{"x-key", "k", "x-envoy-dynamic-metadata", "keyward.leased/app=1", "baggage", "keyward.leased/app=1"},
		} {
			var calls [2][]string
			var received, answered, refused [2]http.Header
			body := strings.Repeat("body", 30_000)
			for i, s := range []*site{with, without} {
				s.service.allow(1)
				s.headers.Store(nil)
				var status int
				status, answered[i] = s.exchange(body, headers...)
				s.want("status", status, http.StatusOK)
				for _, call := range s.service.take() {
					calls[i] = append(calls[i], bytesOf(call))
				}
				s.want("calls", len(calls[i]), 1)
				received[i] = *s.headers.Load()
				status, refused[i] = s.exchange(body, headers...)
				s.want("status of the next", status, http.StatusTooManyRequests)
				if answered[i].Get("x-service") != "1" || refused[i].Get("x-service") != "1" {
					t.Errorf("%q: the client receives %v and %v without the service's header", headers, answered[i], refused[i])
				}
				s.want("its calls", len(s.service.take()), 1)
			}
			if !slices.Equal(calls[0], calls[1]) {
				t.Errorf("%q: calls %q with the module, %q without", headers, calls[0], calls[1])
			}
			for what, h := range map[string][2]http.Header{"admitted": answered, "refused": refused} {
				if !maps.EqualFunc(h[0], h[1], slices.Equal) {
					t.Errorf("%q, %s: the client receives %v with the module, %v without", headers, what, h[0], h[1])
				}
			}
			if !maps.EqualFunc(received[0], received[1], slices.Equal) {
				t.Errorf("%q: the application receives %v with the module, %v without", headers, received[0], received[1])
			}
		}
	})
}

// TestLeasedRequestIsUnchanged checks that a lease adds nothing to the request.
func TestLeasedRequestIsUnchanged(t *testing.T) {
	each(t, func(t *testing.T, r release) {
		p := listen(t, ordinary(64))
		s, without := start(t, r, setup{socket: p.path}), start(t, r, setup{bare: true})
		l := p.link(0)
		l.segment.lend(0, 1, time.Minute, "app", "api_key=k")
		without.service.allow(1)
		s.want("status", s.get("/", "x-key", "k"), http.StatusOK)
		s.want("status", without.get("/", "x-key", "k"), http.StatusOK)
		s.want("calls", len(s.service.take()), 0)
		if a, b := *s.headers.Load(), *without.headers.Load(); !maps.EqualFunc(a, b, slices.Equal) {
			t.Errorf("the application receives %v with a lease, %v without the module", a, b)
		}
	})
}

// TestOnlyWhatTheFilterLimits checks that a request which the rate limit filter does not limit, because Envoy answers it
// itself, takes no lease. Envoy 1.36, and matchers, do not know whether a route has a cluster: there, it takes one.
func TestOnlyWhatTheFilterLimits(t *testing.T) {
	each(t, func(t *testing.T, r release) {
		p := listen(t, ordinary(64))
		s := start(t, r, setup{socket: p.path})
		l := p.link(0)
		lease := l.segment.lend(0, 10, time.Minute, "app", "api_key=k")
		s.want("status", s.get("/direct", "x-key", "k"), http.StatusOK)
		s.want("calls", len(s.service.take()), 0)
		want := 10
		if r.version == "1.36.4" || r.matcher {
			want = 9
		}
		s.want("left", int(lease.left()), want)
	})
}

// TestRequestsAnsweredBefore checks that a request takes no lease if a filter before has answered it: Envoy asks matchers then, too.
func TestRequestsAnsweredBefore(t *testing.T) {
	each(t, func(t *testing.T, r release) {
		p := listen(t, ordinary(64))
		abort := "{name: envoy.filters.http.fault, typed_config: " + lab.TypedConfig("envoy.extensions.filters.http.fault.v3.HTTPFault", "abort: {header_abort: {}, percentage: {numerator: 100}}") + "}"
		s := start(t, r, setup{socket: p.path, before: []string{abort}, limits: `[{"actions":[{"generic_key":{"descriptor_value":"all"}}]}]`})
		l := p.link(0)
		s.twice("/")
		p.asked(l, "generic_key=all")
		s.service.take()
		lease := l.segment.lend(0, 10, time.Minute, "app", "generic_key=all")
		s.want("status", s.get("/", "x-envoy-fault-abort-request", "403"), http.StatusForbidden)
		s.want("left", int(lease.left()), 10)
		s.want("calls", len(s.service.take()), 0)
		s.want("status", s.get("/"), http.StatusOK)
		s.want("left after a request that is not answered before", int(lease.left()), 9)
	})
}

// TestInternalRedirect checks that a request which Envoy redirects itself takes a lease each time, as the rate limit filter
// makes a call each time.
func TestInternalRedirect(t *testing.T) {
	each(t, func(t *testing.T, r release) {
		p := listen(t, ordinary(64))
		s := start(t, r, setup{socket: p.path})
		l := p.link(0)
		for _, c := range []struct{ tokens, left, calls int }{{0, 0, 2}, {1, 0, 1}, {10, 8, 0}} {
			lease := l.segment.lend(0, uint32(c.tokens), time.Minute, "app", "api_key=k")
			s.service.allow(c.calls)
			before := s.served.Load()
			s.want("status", s.get("/redirect", "x-key", "k"), http.StatusOK)
			s.want("requests to the application", int(s.served.Load()-before), 2)
			s.want("calls", len(s.service.take()), c.calls)
			s.want("left", int(lease.left()), c.left)
		}
	})
}
