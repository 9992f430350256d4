package rlqs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/test/rlqs/model"
)

// fraction returns a runtime fraction of n percent.
func fraction(n int) string {
	return fmt.Sprintf("{default_value: {numerator: %d}, runtime_key: k}", n)
}

var (
	notEnabled  = shared(listener{name: "not-enabled", assign: denies, filter: "filter_enabled: " + fraction(0) + ","})
	notEnforced = shared(listener{name: "not-enforced", assign: denies, filter: "filter_enabled: " + fraction(100) + ", filter_enforced: " + fraction(0) +
		", request_headers_to_add_when_not_enforced: [{header: {key: x-over, value: \"1\"}}],"})
)

// Envoy ignores filter_enabled and filter_enforced.
func TestFractionsAreIgnored(t *testing.T) {
	t.Parallel()
	for _, l := range []*listener{notEnabled, notEnforced} {
		t.Run(l.name, func(t *testing.T) {
			l.each(t, func(s *site) { s.want("admitted", s.hits(s.dial(1), "a", 15), 0) })
		})
	}
}

// onRoute returns a per-route configuration of the RLQS filter.
func onRoute(config string) string {
	return "typed_per_filter_config: {" + filterName + ": " + config + "},"
}

func filterConfig(fields string) string {
	return lab.TypedConfig("envoy.config.route.v3.FilterConfig", fields)
}

var (
	enabled  = shared(listener{name: "enabled", assign: denies, disabled: true, route: onRoute(filterConfig("config: {}"))})
	offChain = shared(listener{name: "off-chain", assign: denies, disabled: true})
	offRoute = shared(listener{name: "off-route", assign: denies, route: onRoute(filterConfig("disabled: true"))})
	offHost  = shared(listener{name: "off-host", assign: denies, host: onRoute(filterConfig("disabled: true"))})
)

// The filter can be switched for a route or a virtual host: a FilterConfig with an empty configuration enables one that is disabled in
// the chain, and disabled: true disables it.
func TestRoutesSwitchTheFilter(t *testing.T) {
	t.Parallel()
	for l, want := range map[*listener]int{enabled: 0, offChain: 15, offRoute: 15, offHost: 15} {
		t.Run(l.name, func(t *testing.T) {
			l.each(t, func(s *site) { s.want("admitted", s.hits(s.dial(1), "a", 15), want) })
		})
	}
}

// Envoy rejects disabled: false, and the override that the filter's documentation has.
func TestRejectedOverrides(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]string{
		"disabled false": filterConfig("disabled: false"),
		"override":       lab.TypedConfig("envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaOverride", "domain: x"),
		"accepted":       filterConfig("config: {}"),
	} {
		for _, r := range releases {
			t.Run(name+"/"+r.version, func(t *testing.T) {
				t.Parallel()
				file := filepath.Join(t.TempDir(), "envoy.yaml")
				addr := "127.0.0.1:1"
				text := bootstrap("", map[string]string{"l": "1"}, []*listener{{name: "l", assign: denies, disabled: true, route: onRoute(config)}}, lab.StaticCluster("quota", addr, true))
				text = strings.NewReplacer("@ADMINHOST@", "127.0.0.1", "@ADMINPORT@", "1").Replace(text)
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				out, err := exec.CommandContext(t.Context(), program(r.version), "--mode", "validate", "-c", file).CombinedOutput()
				if (err == nil) != (name == "accepted") {
					t.Errorf("accepted: %v\n%s", err == nil, out)
				}
			})
		}
	}
}

var (
	primed = shared(listener{name: "primed", assign: denies, upstream: true})
	primer = shared(listener{name: "primer", domain: "primed", assign: denies})
)

// An id that was introduced through another listener of the domain has its lease when the first requests come.
func TestPrimedIds(t *testing.T) {
	primed.each(t, func(s *site) {
		conns := s.dial(16)
		s.introduce(dial("127.0.0.1:"+s.ports[primer.name]), "a")
		s.fenced(conns, model.Pair("a", 50, minute)...)
		s.want("admitted one after the other", s.hits(conns[:1], "a", 20), 20)
		s.want("admitted of 80 in all", 20+s.hits(conns, "a", 60), 50)
	})
}

var moving = shared(listener{name: "moving", assign: denies, moves: true})

// A change of the listener keeps the ids, their leases and the stream.
func TestListenerChanges(t *testing.T) {
	moving.each(t, func(s *site) {
		conns := s.dial(2)
		s.until("the listener", func() bool { return conns[0].get("a") == 429 })
		s.introduce(conns[0], "a")
		s.fenced(conns, model.Pair("a", 100, minute)...)
		s.want("the lease", s.hits(conns, "a", 30), 30)
		stream := s.server.stream(s, s.domainName()).id
		changed := *moving
		changed.filter = "request_headers_to_add_when_not_enforced: [{header: {key: x-over, value: \"1\"}}],"
		if err := s.move(2, []*listener{&changed}); err != nil {
			s.Fatal(err)
		}
		s.until("the change", func() bool {
			b, err := lab.Get(s.Context(), "http://"+s.envoy.Admin+"/config_dump?resource=dynamic_listeners")
			return err == nil && strings.Contains(string(b), "x-over")
		})
		var later []*conn
		s.until("the listener that is new", func() bool {
			for _, c := range later {
				c.client.CloseIdleConnections()
			}
			later = s.dial(2)
			return later[0].get(markerID) == 200 && later[1].get(markerID) == 200
		})
		s.want("the rest of the lease", s.hits(later, "a", 100), 70)
		all := s.tick()
		s.want("the stream", all[len(all)-1].stream, stream)
		s.want("reported", int(total(all, "a").Allowed), 100)
	})
}

// A stopped Envoy decides the requests that waited before its main thread ends their assignment: at most one of each connection gets
// the lease that has ended.
func TestStoppedOverTheEnd(t *testing.T) {
	t.Parallel()
	versions := releases[2:]
	if long() {
		versions = releases
	}
	for _, r := range versions {
		t.Run(r.version, func(t *testing.T) {
			t.Parallel()
			s := own(t, r.version, &listener{name: "own", assign: denies})
			conns := s.dial(64)
			s.introduce(conns[0], "a")
			for range rounds(1, 5) {
				s.pausedOverTheEnd(conns)
			}
		})
	}
}

// pausedOverTheEnd stops Envoy while a lease ends. Workers may decide a second request of a connection before the main thread runs:
// then it tries again.
func (s *site) pausedOverTheEnd(conns []*conn) {
	s.Helper()
	for range 5 {
		s.fenced(conns, model.Pair("a", 1000, 2*time.Second)...)
		if err := s.envoy.Pause(); err != nil {
			s.Fatal(err)
		}
		load, stop := crowd(conns, "a")
		time.Sleep(3 * time.Second) // the lease ends meanwhile
		if err := s.envoy.Signal(syscall.SIGCONT); err != nil {
			s.Fatal(err)
		}
		s.until("refusals", func() bool { return load.refused.Load() > 640 })
		stop()
		s.want("requests without an answer", int(load.other.Load()), 0)
		s.Logf("%d of %d requests that waited were admitted", load.admitted.Load(), len(conns))
		if load.admitted.Load() <= int64(len(conns)) {
			return
		}
	}
	s.Error("more than one request of each connection was admitted in 5 runs")
}
