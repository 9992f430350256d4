package xds

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"github.com/keyward/keyward/envoy/internal/names"
	"github.com/keyward/keyward/hotkey"
)

func manyHot(n int) (hot []hotkey.Route) {
	for i := range n {
		key := fmt.Sprintf("key-%03d", i)
		hot = append(hot, hotkey.Route{Domain: "app", Owner: key, Author: "pod-a", Mode: hotkey.Spread, Subs: subs(key, 4), Version: int64(i + 1), Manual: i%50 == 49})
	}
	return hot
}

// hotRoutes formats the routes of hot keys in a route configuration as "key>sub,sub max/fill/interval".
func hotRoutes(t testing.TB, s ServedState, name string) (list []string) {
	t.Helper()
	var all []*route.Route
	for _, r := range mustResources(t, s)[resource.RouteType] {
		if c := r.(*route.RouteConfiguration); c.GetName() == name {
			all = c.GetVirtualHosts()[0].GetRoutes()
		}
	}
	if len(all) == 0 || len(all[len(all)-1].GetMatch().GetHeaders()) > 0 {
		t.Fatalf("%s: the last route does not take everything", name)
	}
	s.setDefaults()
	for _, k := range s.hotKeys() {
		text := k.owner + ">"
		for _, sub := range k.subs {
			text += sub.Key + ","
		}
		if b := k.bucket; b != nil {
			text += fmt.Sprintf(" %d/%d/%v", b.GetMaxTokens(), b.GetTokensPerFill().GetValue(), b.GetFillInterval().AsDuration())
		}
		list = append(list, text)
	}
	if len(all) != len(list)+1 {
		t.Fatalf("%s: %d routes for %d hot keys", name, len(all), len(list))
	}
	for i, text := range list {
		if got := all[i].GetMatch().GetHeaders()[0].GetStringMatch().GetExact(); !strings.HasPrefix(text, got+">") {
			t.Errorf("%s: route %d is of %s, want %s", name, i, got, text)
		}
	}
	return list
}

func TestHotKeys(t *testing.T) {
	minute := int64(time.Minute)
	limited := func(r hotkey.Route) hotkey.Route {
		r.Mode, r.Limit, r.Window = hotkey.Cap, 10, minute
		return r
	}
	spread := func(r hotkey.Route, n int) hotkey.Route {
		r.Mode, r.Subs = hotkey.Spread, subs(r.Owner, n)
		return r
	}
	cases := map[string]struct {
		hot  []hotkey.Route
		want string
	}{
		"nothing": {nil, ""},
		"spread":  {[]hotkey.Route{spread(hotkey.Route{Owner: "a"}, 2)}, "a>a#0,a#1,"},
		"dedicated and spread, by name": {[]hotkey.Route{
			{Owner: "b", Mode: hotkey.Dedicated, Subs: subs("b", 1)}, spread(hotkey.Route{Owner: "a"}, 2),
		}, "a>a#0,a#1, b>b#0,"},
		"capped":                   {[]hotkey.Route{limited(hotkey.Route{Owner: "a", Name: "user=a"})}, "a> 20/10/1m0s"},
		"two domains, one capped":  {[]hotkey.Route{limited(hotkey.Route{Domain: "x", Owner: "a", Name: "user=a"}), spread(hotkey.Route{Domain: "y", Owner: "a"}, 1)}, "a>a#0, 20/10/1m0s"},
		"spread and capped":        {[]hotkey.Route{spread(hotkey.Route{Owner: "a", Name: "user=a", Limit: 10, Window: minute}, 1)}, "a>a#0, 20/10/1m0s"},
		"the older of two":         {[]hotkey.Route{spread(hotkey.Route{Domain: "x", Owner: "a", Version: 2}, 2), spread(hotkey.Route{Domain: "y", Owner: "a"}, 1)}, "a>a#0,"},
		"by hand before older":     {[]hotkey.Route{spread(hotkey.Route{Domain: "x", Owner: "a", Version: 2, Manual: true}, 2), spread(hotkey.Route{Domain: "y", Owner: "a"}, 1)}, "a>a#0,a#1,"},
		"nothing is to be done":    {[]hotkey.Route{{Owner: "a", Mode: hotkey.Never, Manual: true, Limit: 1, Window: minute}, {Owner: "b", Mode: hotkey.Auto, Manual: true, Limit: 1, Window: minute}}, ""},
		"a cap of a part":          {[]hotkey.Route{limited(hotkey.Route{Owner: "a", Name: "user=a,path=/"})}, ""},
		"a cap of who knows what":  {[]hotkey.Route{limited(hotkey.Route{Owner: "a", Manual: true})}, ""},
		"a cap of another's value": {[]hotkey.Route{limited(hotkey.Route{Owner: "a|b", Name: "user=a"})}, ""},
		"no header has this value": {[]hotkey.Route{spread(hotkey.Route{Owner: "a\n"}, 1), spread(hotkey.Route{Owner: "\xff"}, 1), spread(hotkey.Route{Owner: ""}, 1)}, ""},
		"too short a window":       {[]hotkey.Route{{Owner: "b", Name: "user=b", Mode: hotkey.Cap, Limit: 1, Window: int64(minFill) - 1}}, ""},
		"beyond the bucket":        {[]hotkey.Route{{Owner: "a", Name: "user=a", Mode: hotkey.Cap, Limit: math.MaxUint32, Window: minute}}, "a> 4294967295/4294967295/1m0s"},
	}
	for name, c := range cases {
		for i := range c.hot {
			r := &c.hot[i]
			r.Domain, r.Author, r.Version = cmp.Or(r.Domain, "app"), "pod-a", max(r.Version, 1)
		}
		s := ServedState{Members: members(2), Hot: c.hot}
		for _, rds := range []string{names.RouteConfig, names.DirectConfig} {
			if got := strings.Join(hotRoutes(t, s, rds), " "); got != c.want {
				t.Errorf("%s, %s: %s, want %s", name, rds, got, c.want)
			}
		}
	}
}

// TestHotKeysAreFew: Envoy matches each request against the route of every hot key, so there are at most 100,
// including manual ones.
func TestHotKeysAreFew(t *testing.T) {
	got := strings.Join(hotRoutes(t, ServedState{Members: members(2), Hot: manyHot(3 * hotkey.MaxRoutes)}, names.RouteConfig), " ")
	if n := strings.Count(got, "#0"); n != hotkey.MaxRoutes {
		t.Errorf("%d routes", n)
	}
	for _, want := range []string{"key-299>", "key-000>", "key-093>"} {
		if !strings.Contains(got, want) {
			t.Errorf("no route of %s", want)
		}
	}
}

// TestHotKeysAnywhereTheSame: every server serves the same versions, whatever the order of the hot keys, and a hot
// key changes only routes and filters.
func TestHotKeysAnywhereTheSame(t *testing.T) {
	r := newRig(t)
	s := full()
	s.Hot = manyHot(2 * hotkey.MaxRoutes)
	r.set(t, s)
	first := r.Status().Versions
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 10 {
		rnd.Shuffle(len(s.Hot), func(i, j int) { s.Hot[i], s.Hot[j] = s.Hot[j], s.Hot[i] })
		r.set(t, s)
		if got := r.Status().Versions; fmt.Sprint(got) != fmt.Sprint(first) {
			t.Fatalf("versions %v, want %v", got, first)
		}
	}
	s.Hot = nil
	r.set(t, s)
	for name, version := range r.Status().Versions {
		if same := version == first[name]; same == (name == "RouteConfiguration" || name == ExtensionConfigs) {
			t.Errorf("without hot keys, %s: the same %v", name, same)
		}
	}
}

// TestSubKeysAreHashed: the ring of the pods hashes the header that the route sets.
func TestSubKeysAreHashed(t *testing.T) {
	s := full()
	s.setDefaults()
	for i, r := range s.routes(s.hotKeys()).GetVirtualHosts()[0].GetRoutes() {
		want := []string{names.SubHeader, names.SubHeader, names.SubHeader, "x-user"}[i]
		if got := r.GetRoute().GetHashPolicy()[0].GetHeader().GetHeaderName(); got != want {
			t.Errorf("route %d hashes %s, want %s", i, got, want)
		}
	}
	for i, r := range s.directRoutes(s.hotKeys()).GetVirtualHosts()[0].GetRoutes() {
		if len(r.GetRoute().GetHashPolicy()) > 0 {
			t.Errorf("owner-direct route %d changes how the application's cluster balances", i)
		}
	}
}

// TestHotQuotaRoute checks that the route of a key enables its filter and disables the calls, in the routes of Envoys that
// have both, and that the listener for priming has the bucket.
func TestHotQuotaRoute(t *testing.T) {
	s := ServedState{
		Members: members(1), PrimeAddress: "127.0.0.1:18002", Primed: []Prime{{Domain: "app", Entry: "api_key", Value: "h\u00f6t", Window: time.Minute, ExpiredShare: 7}},
		Hot: []hotkey.Route{{
			Domain: "app", Name: "api_key=h\u00f6t", Owner: "h\u00f6t", Author: "pod-a", Version: 1, Mode: hotkey.Quota, Entries: []hotkey.RouteEntry{{Key: "api_key", Value: "h\u00f6t"}},
		}},
	}
	if got := hotRoutes(t, s, names.DirectConfig); len(got) != 1 || got[0] != "h\u00f6t>" {
		t.Fatalf("%q", got)
	}
	resources := mustResources(t, s)
	for _, r := range resources[resource.RouteType] {
		if c := r.(*route.RouteConfiguration); c.GetName() == names.DirectConfig {
			on, off := &route.FilterConfig{}, &route.FilterConfig{}
			filters := c.GetVirtualHosts()[0].GetRoutes()[0].GetTypedPerFilterConfig()
			err1 := filters[names.QuotaID("app", "api_key")].UnmarshalTo(on)
			err2 := filters[names.CallsID("app", "api_key")].UnmarshalTo(off)
			if err1 != nil || err2 != nil || on.GetConfig() == nil || on.GetDisabled() || !off.GetDisabled() {
				t.Errorf("the quota's filter: %v, %v; that of calls: %v, %v", on, err1, off, err2)
			}
		}
	}
	listeners := resources[resource.ListenerType]
	if len(listeners) != 1 {
		t.Fatalf("%d listeners, want only the one for priming", len(listeners))
	}
	for _, address := range []string{"0.0.0.0:18002", "127.0.0.1", "localhost:1"} {
		s.PrimeAddress = address
		s.setDefaults()
		if _, _, err := s.resources(); err == nil {
			t.Errorf("%s: accepted", address)
		}
	}
}
