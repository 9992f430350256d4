package xds

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	xdsmatcher "github.com/cncf/xds/go/xds/type/matcher/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	matching "github.com/envoyproxy/go-control-plane/envoy/extensions/common/matching/v3"
	local "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	extensionservice "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"github.com/keyward/keyward/envoy/internal/names"
	"github.com/keyward/keyward/hotkey"
)

// filtersOf formats the filters of a state: the rows of caps, and the keys of filters that spread.
func filtersOf(t testing.TB, s ServedState) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, r := range mustResources(t, s)[resource.ExtensionConfigType] {
		x := r.(*core.TypedExtensionConfig)
		m, err := x.GetTypedConfig().UnmarshalNew()
		if err != nil {
			t.Fatal(err)
		}
		var parts []string
		switch m := m.(type) {
		case *local.LocalRateLimit:
			for _, d := range m.GetDescriptors() {
				var row []string
				for _, e := range d.GetEntries() {
					row = append(row, e.GetKey()+"="+e.GetValue())
				}
				b := d.GetTokenBucket()
				parts = append(parts, fmt.Sprintf("%s %d/%d/%v", strings.Join(row, ","), b.GetMaxTokens(), b.GetTokensPerFill().GetValue(), b.GetFillInterval().AsDuration()))
			}
			if len(parts) > 0 {
				parts = append(parts, "retry after "+m.GetResponseHeadersToAdd()[0].GetHeader().GetValue())
			}
		case *matching.ExtensionWithMatcher:
			for k, on := range m.GetXdsMatcher().GetMatcherTree().GetExactMatchMap().GetMap() {
				parts = append(parts, fmt.Sprintf("%s>%d", k, choices(on)))
			}
			slices.Sort(parts)
		}
		all[x.GetName()] = strings.Join(parts, "; ")
	}
	return all
}

// choices returns the number of sub-keys that a match chooses from.
func choices(on *xdsmatcher.Matcher_OnMatch) int {
	if on.GetAction() != nil {
		return 1
	}
	return len(on.GetMatcher().GetMatcherList().GetMatchers()) + 1
}

func TestFilters(t *testing.T) {
	minute := int64(time.Minute)
	entries := func(kv ...string) (all []hotkey.RouteEntry) {
		for i := 0; i < len(kv); i += 2 {
			all = append(all, hotkey.RouteEntry{Key: kv[i], Value: kv[i+1]})
		}
		return all
	}
	s := ServedState{Members: members(2), Hot: []hotkey.Route{
		{Domain: "app", Owner: "a", Mode: hotkey.Cap, Limit: 10, Window: minute, Entries: entries("user", "a")},
		{Domain: "app", Owner: "free", Mode: hotkey.Cap, Limit: 5, Window: int64(time.Second), Entries: entries("plan", "free", "user", "b,c=d")},
		{Domain: "web", Owner: "a", Mode: hotkey.Spread, Limit: 7, Window: minute, Entries: entries("user", "a"), Subs: subs("a", 3)},
		{Domain: "web", Owner: "10.0.0.1", Mode: hotkey.Dedicated, Entries: entries("remote_address", "10.0.0.1"), Subs: subs("10.0.0.1", 1)},
		{Domain: "app", Owner: "unknown", Name: "user=unknown", Mode: hotkey.Cap, Limit: 10, Window: minute},
		{Domain: "app", Owner: "fast", Mode: hotkey.Cap, Limit: 10, Window: int64(minFill) - 1, Entries: entries("user", "fast")},
		{Domain: "app", Owner: "never", Mode: hotkey.Never, Manual: true, Limit: 10, Window: minute, Entries: entries("user", "never")},
		{Domain: "app", Owner: "any", Mode: hotkey.Cap, Limit: 10, Window: minute, Entries: entries("user", "")},
	}}
	for i := range s.Hot {
		s.Hot[i].Author, s.Hot[i].Version = "pod-a", int64(i+1)
	}
	want := map[string]string{
		"keyward-caps/app":       "plan=free,user=b,c=d 10/5/1s; user=a 20/10/1m0s; retry after 1",
		"keyward-caps/web":       "user=a 14/7/1m0s; retry after 60",
		"keyward-spread-header":  "a>3",
		"keyward-spread-address": "10.0.0.1>1",
	}
	if got := filtersOf(t, s); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
	s.Hot = manyHot(3 * hotkey.MaxRoutes)
	for i := range s.Hot {
		s.Hot[i].Limit, s.Hot[i].Window, s.Hot[i].Entries = 1, minute, entries("user", s.Hot[i].Owner)
	}
	got := filtersOf(t, s)
	if n, m := strings.Count(got["keyward-caps/app"], "user="), strings.Count(got["keyward-spread-header"], ">4"); n != hotkey.MaxRoutes || m != hotkey.MaxRoutes {
		t.Errorf("%d caps and %d spread keys", n, m)
	}
}

// TestCapsAreTakenBack: Envoy keeps the last filter of a resource that is no longer served, so a domain that had caps
// remains, without any.
func TestCapsAreTakenBack(t *testing.T) {
	r := newRig(t)
	st := state(2)
	st.Rules = nil
	st.Hot = []hotkey.Route{{Domain: "app", Owner: "a", Author: "pod-a", Version: 1, Mode: hotkey.Cap, Limit: 10, Window: int64(time.Minute),
		Entries: []hotkey.RouteEntry{{Key: "user", Value: "a"}}}}
	r.set(t, st)
	s := r.sotw(t, "envoy")
	rows := func(x *discovery.DiscoveryResponse) int {
		t.Helper()
		var c core.TypedExtensionConfig
		var l local.LocalRateLimit
		if len(x.GetResources()) != 1 || x.GetResources()[0].UnmarshalTo(&c) != nil || c.GetTypedConfig().UnmarshalTo(&l) != nil {
			t.Fatalf("was sent %v", x)
		}
		return len(l.GetDescriptors())
	}
	s.ask(resource.ExtensionConfigType, "keyward-caps/app")
	first := s.next()
	if n := rows(first); n != 1 {
		t.Errorf("%d rows", n)
	}
	s.ack(first, "keyward-caps/app")
	st.Hot = nil
	r.set(t, st)
	if n := rows(s.next()); n != 0 {
		t.Errorf("%d rows without hot keys", n)
	}
	until(t, "what the client takes is known", func() bool {
		c := r.Status().Clients
		return len(c) == 1 && slices.Equal(c[0].Hot, []string{"keyward-caps/app"})
	})
}

// TestFiltersAlone: an Envoy whose aggregated stream is that of another control plane uses the service of filters.
func TestFiltersAlone(t *testing.T) {
	r := newRig(t)
	r.set(t, state(2))
	c, err := extensionservice.NewExtensionConfigDiscoveryServiceClient(r.conn).DeltaExtensionConfigs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"keyward-caps/app", names.SpreadByHeader}
	if err := c.Send(&discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: want}); err != nil {
		t.Fatal(err)
	}
	x, err := c.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, res := range x.GetResources() {
		got = append(got, res.GetName())
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("was sent %v, want %v", got, want)
	}
}
