package xds

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	ringhash "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/ring_hash/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/keyward/keyward/envoy/internal/names"
	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/ringcheck"
	"github.com/keyward/keyward/ring"
)

var update = flag.Bool("update", false, "write the golden files")

// full returns a state with a value in every field.
func full() ServedState {
	m := members(4)
	m[1].Weight = 3
	m[2].Draining = true
	m[3] = Endpoint{ID: "pod-v6", RLS: "[2001:db8::1]:8082", Route: "[2001:db8::1]:10000"}
	return ServedState{
		Members: m, TLS: true, ServerNames: []string{"spiffe://example.org/keyward", "keyward.prod.svc"},
		RouteAddress: ":10000", RouteHeader: "x-user", Rules: []*rlsconf.RateLimitConfig{{Name: "app", Domain: "app"}},
		Upstream: "application", Hot: []hotkey.Route{
			{Domain: "app", Name: "user=busy", Owner: "busy", Author: "pod-a", Mode: hotkey.Cap, Limit: 1000, Window: int64(time.Minute), Version: 1,
				Entries: []hotkey.RouteEntry{{Key: "user", Value: "busy"}}},
			{Domain: "app", Name: "remote_address=10.1.2.3", Owner: "10.1.2.3", Author: "pod-b", Mode: hotkey.Spread, Subs: subs("10.1.2.3", 2), Version: 4,
				Entries: []hotkey.RouteEntry{{Key: "remote_address", Value: "10.1.2.3"}}},
			{Domain: "web", Name: "user=busy", Owner: "busy", Author: "pod-b", Mode: hotkey.Spread, Subs: subs("busy", 2), Version: 2},
			{Domain: "app", Name: "user=100%", Owner: "100%", Author: "pod-b", Mode: hotkey.Dedicated, Subs: subs("100%", 1), Version: 3},
		},
	}
}

// subs returns n sub-keys of a key.
func subs(key string, n int) (s []hotkey.SubKey) {
	for i := range n {
		s = append(s, hotkey.SubKey{Key: fmt.Sprint(key, "#", i), Member: ring.ID(fmt.Sprint("pod-", i))})
	}
	return s
}

func mustResources(t testing.TB, s ServedState) map[string][]types.Resource {
	t.Helper()
	s.setDefaults()
	res, _, err := s.resources()
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// TestGolden compares each resource with its golden file.
func TestGolden(t *testing.T) {
	for typeURL, list := range mustResources(t, full()) {
		name, _ := shortTypeName(typeURL)
		var got bytes.Buffer
		for _, r := range list {
			raw, err := protojson.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			// protojson varies its white space on purpose; this removes it.
			if err := json.Indent(&got, raw, "", "  "); err != nil {
				t.Fatal(err)
			}
			got.WriteByte('\n')
		}
		file := filepath.Join("testdata", name+".json")
		if *update {
			if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want) {
			t.Errorf("%s differs from its golden file (-update writes it):\n%s", file, got.String())
		}
	}
}

// validate checks a message, and every message packed into it, against the constraints of Envoy's API.
func validate(m proto.Message) error {
	if v, ok := m.(interface{ ValidateAll() error }); ok {
		if err := v.ValidateAll(); err != nil {
			return err
		}
	}
	var fault error
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		each := func(v protoreflect.Value) bool {
			inner := v.Message().Interface()
			if a, ok := inner.(*anypb.Any); ok {
				if inner, fault = a.UnmarshalNew(); fault != nil {
					return false
				}
			}
			fault = validate(inner)
			return fault == nil
		}
		switch {
		case f.IsMap() && f.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool { return each(v) })
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				if !each(v.List().Get(i)) {
					break
				}
			}
		case !f.IsMap() && !f.IsList() && f.Message() != nil:
			each(v)
		}
		return fault == nil
	})
	return fault
}

func TestEnvoyAcceptsEverything(t *testing.T) {
	for name, s := range map[string]ServedState{
		"full": full(), "nothing": {}, "no members": {TLS: true, RouteAddress: "[::]:1"}, "many": {Members: members(26), Capacity: ring.MaxCapacity},
		"many hot keys": {Members: members(2), Hot: manyHot(2 * hotkey.MaxRoutes)}, "smallest": {Members: members(1), Capacity: 2}, "in the clear": {Members: members(2)},
	} {
		for _, list := range mustResources(t, s) {
			names := map[string]bool{}
			for _, r := range list {
				if err := validate(r); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if n := cache.GetResourceName(r); n == "" || names[n] {
					t.Errorf("%s: the name %q is used twice or empty", name, n)
				} else {
					names[n] = true
				}
			}
		}
	}
	if err := validate(&endpoint.ClusterLoadAssignment{}); err == nil {
		t.Error("the check itself finds nothing")
	}
}

// assignment returns the endpoints of a cluster.
func assignment(t testing.TB, res map[string][]types.Resource, name string) *endpoint.ClusterLoadAssignment {
	t.Helper()
	for _, r := range res[resource.EndpointType] {
		if cache.GetResourceName(r) == name {
			return r.(*endpoint.ClusterLoadAssignment)
		}
	}
	t.Fatalf("no endpoints of %s", name)
	return nil
}

// asEnvoy builds the ring as Envoy does from its resources.
func asEnvoy(t testing.TB, s *ServedState, la *endpoint.ClusterLoadAssignment) (*ringcheck.EnvoyRing, []ringcheck.Host) {
	t.Helper()
	var policy ringhash.RingHash
	if err := s.OwnerDirect().GetLoadBalancingPolicy().GetPolicies()[0].GetTypedExtensionConfig().GetTypedConfig().UnmarshalTo(&policy); err != nil {
		t.Fatal(err)
	}
	none := 0.0
	c := ringcheck.EnvoyCluster{
		MinimumRingSize: policy.GetMinimumRingSize().GetValue(), MaximumRingSize: policy.GetMaximumRingSize().GetValue(),
		LocalityWeighted: policy.GetLocalityWeightedLbConfig() != nil, PanicThreshold: &none,
	}
	if got := s.OwnerDirect().GetCommonLbConfig().GetHealthyPanicThreshold(); got == nil || got.GetValue() != 0 {
		t.Fatalf("panic threshold %v", got)
	}
	for _, l := range la.GetEndpoints() {
		for _, e := range l.GetLbEndpoints() {
			a := e.GetEndpoint().GetAddress().GetSocketAddress()
			c.Hosts = append(c.Hosts, ringcheck.Host{
				HashKey: e.GetMetadata().GetFilterMetadata()["envoy.lb"].GetFields()["hash_key"].GetStringValue(),
				Address: netip.AddrPortFrom(netip.MustParseAddr(a.GetAddress()), uint16(a.GetPortValue())).String(),
				Health:  ringcheck.HostHealth(e.GetHealthStatus()), LocalityWeight: l.GetLoadBalancingWeight().GetValue(),
				Locality: ringcheck.Locality{Region: l.GetLocality().GetRegion(), Zone: l.GetLocality().GetZone(), SubZone: l.GetLocality().GetSubZone()},
			})
		}
	}
	r, err := c.Build()
	if err != nil {
		t.Fatal(err)
	}
	return r, c.Hosts
}

// TestEnvoysRingIsOurs checks that Envoy's algorithm builds the ring of the members from what is served, if any of them are
// leaving, have other weights, or have the last places.
func TestEnvoysRingIsOurs(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 25 {
		capacity := []int{0, 2, 27, 100, 1024}[i%5]
		s := ServedState{Members: members(min(1+rnd.IntN(25), ring.EnvoyCapacity(capacity)-1)), Capacity: capacity}
		if capacity == 2 {
			s.Members = s.Members[:1]
		}
		for n := range s.Members {
			if capacity == 1024 {
				s.Members[n].Weight = rnd.Uint32N(5)
			}
			s.Members[n].Draining = n > 0 && rnd.IntN(4) == 0
		}
		var on []ring.Member
		for _, m := range s.Members {
			if !m.Draining {
				on = append(on, ring.Member{ID: m.ID, Weight: m.Weight})
			}
		}
		res := mustResources(t, s)
		s.setDefaults()
		name := s.OwnerDirect().GetEdsClusterConfig().GetServiceName()
		la := assignment(t, res, name)
		if !slices.EqualFunc(la.GetEndpoints(), assignment(t, res, names.OwnerCluster).GetEndpoints(), func(a, b *endpoint.LocalityLbEndpoints) bool { return proto.Equal(a, b) }) {
			t.Errorf("the endpoints of %s and %s differ", name, names.OwnerCluster)
		}
		theirs, hosts := asEnvoy(t, &s, la)
		ours := ring.New(on)
		for k := range 500 {
			h := ring.Hash(fmt.Sprint("key-", i, "-", k))
			if got, want := hosts[theirs.Owner(h)].HashKey, string(ours.At(ours.Owner(h)).ID); got != want {
				t.Fatalf("capacity %d, %d members of which %d stay: Envoy asks %q, the owner is %q", capacity, len(s.Members), len(on), got, want)
			}
			if len(on) > 1 {
				if got, want := hosts[theirs.Successor(h)].HashKey, string(ours.At(ours.Successor(h)).ID); got != want {
					t.Fatalf("capacity %d, %d members: Envoy retries at %q, the successor is %q", capacity, len(on), got, want)
				}
			}
		}
	}
}

func TestWhoIsServed(t *testing.T) {
	cases := []struct {
		name    string
		members []Endpoint
		want    string // id=address, ! when draining
		omitted string
	}{
		{"all on one machine", []Endpoint{{ID: "a", RLS: "127.0.0.1:1"}, {ID: "b", RLS: "[::1]:1"}}, "a=127.0.0.1:1 b=[::1]:1", ""},
		{"one of them is not", []Endpoint{{ID: "a", RLS: "127.0.0.1:1"}, {ID: "b", RLS: "10.0.0.1:1"}}, "b=10.0.0.1:1", "a"},
		{"no address", []Endpoint{{ID: "a"}, {ID: "b", RLS: "10.0.0.1:1"}}, "b=10.0.0.1:1", "a"},
		{"no address that Envoy takes", []Endpoint{
			{ID: "a", RLS: "host:1"}, {ID: "b", RLS: "0.0.0.0:1"}, {ID: "c", RLS: "[::]:1"}, {ID: "d", RLS: "10.0.0.1"}, {ID: "e", RLS: "10.0.0.1:0"},
			{ID: "f", RLS: "[fe80::1%eth0]:1"}, {ID: "g", RLS: "10.0.0.1:99999"}, {ID: "h", RLS: ":1"},
		}, "", "a b c d e f g h"},
		{"no name for a ring", []Endpoint{
			{ID: "", RLS: "10.0.0.1:1"}, {ID: "a\xff", RLS: "10.0.0.2:1"}, {ID: ring.ID(strings.Repeat("x", 192)), RLS: "10.0.0.3:1"}, {ID: "b", RLS: "10.0.0.4:1"},
		}, "b=10.0.0.4:1", " a\xff " + strings.Repeat("x", 192)},
		{"mapped", []Endpoint{{ID: "a", RLS: "[::ffff:10.0.0.1]:1"}}, "a=10.0.0.1:1", ""},
		{"leaving", []Endpoint{{ID: "a", RLS: "10.0.0.1:1", Draining: true}, {ID: "b", RLS: "10.0.0.2:1"}}, "a=10.0.0.1:1! b=10.0.0.2:1", ""},
		{"one address, another name", []Endpoint{{ID: "new", RLS: "10.0.0.1:1"}, {ID: "a-old", RLS: "10.0.0.1:1", Draining: true}}, "new=10.0.0.1:1", "a-old"},
		{"one address, both stay", []Endpoint{{ID: "b", RLS: "10.0.0.1:1"}, {ID: "a", RLS: "10.0.0.1:1"}}, "a=10.0.0.1:1", "b"},
		{"one address, both go", []Endpoint{{ID: "b", RLS: "10.0.0.1:1", Draining: true}, {ID: "a", RLS: "10.0.0.1:1", Draining: true}}, "a=10.0.0.1:1!", "b"},
	}
	for _, c := range cases {
		s := ServedState{Members: c.members}
		s.setDefaults()
		in, out := s.hosts(names.OwnerCluster, func(m Endpoint) string { return m.RLS })
		var got, omitted []string
		for _, h := range in {
			text := fmt.Sprintf("%s=%s", h.ID, h.addr)
			if h.Draining {
				text += "!"
			}
			got = append(got, text)
		}
		for _, o := range out {
			omitted = append(omitted, string(o.id))
		}
		if strings.Join(got, " ") != c.want || strings.Join(omitted, " ") != c.omitted {
			t.Errorf("%s: %v without %v, want %s without %s", c.name, got, omitted, c.want, c.omitted)
		}
	}
}

// TestFullRing: leaving members make room, and members beyond the capacity change nothing.
func TestFullRing(t *testing.T) {
	r := newRig(t)
	m := members(4)
	m[1].Draining = true
	r.set(t, ServedState{Members: m, Capacity: 4})
	served := r.Status().Versions["ClusterLoadAssignment"]
	m[1].Draining = false
	if err := r.Set(ServedState{Members: m, Capacity: 4}); err == nil || !strings.Contains(err.Error(), "at most 3") {
		t.Errorf("4 members on a ring of capacity 4: %v", err)
	}
	err := r.Set(ServedState{Members: m, RouteAddress: "nonsense", Capacity: 1})
	if err == nil || !strings.Contains(err.Error(), "capacity 1") {
		t.Errorf("a bad capacity: %v", err)
	}
	err = r.Set(ServedState{Members: m, RouteHeader: "x y", ServerNames: []string{"a\xff"}, Connect: -1})
	for _, want := range []string{"x y", `a\xff`, "-1ns"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("not all faults are said: no %s in %v", want, err)
		}
	}
	if err := r.Set(ServedState{Members: m, RouteAddress: "nonsense"}); err == nil {
		t.Error("a listener without a port is served")
	}
	if got := r.Status().Versions["ClusterLoadAssignment"]; got != served {
		t.Error("what was served did not stay")
	}
}

func TestOmissionsAreSaidOnce(t *testing.T) {
	r := newRig(t)
	m := members(3)
	m[1].RLS = "127.0.0.1:8082"
	for range 3 {
		r.set(t, ServedState{Members: m})
	}
	if n := strings.Count(r.log.String(), "pod-b"); n != 1 {
		t.Errorf("said %d times:\n%s", n, r.log)
	}
	r.set(t, ServedState{Members: members(3)})
	r.set(t, ServedState{Members: m})
	if n := strings.Count(r.log.String(), "pod-b"); n != 2 {
		t.Errorf("when it came back: said %d times", n)
	}
}

func FuzzSet(f *testing.F) {
	f.Add("pod-a", "10.0.0.1:1", "pod-b", "[::1]:65535", uint32(1), 0, "x-api-key", "name", "0.0.0.0:1")
	f.Add("", "", "", "", uint32(0), -1, "", "", "")
	f.Add("a\xff", "1.1.1.1:1", "a", "1.1.1.1:1", uint32(1<<31), 1<<40, "x\n", "spiffe://\x00", "\xff:1")
	f.Fuzz(func(t *testing.T, id1, a1, id2, a2 string, weight uint32, capacity int, header, san, listen string) {
		s := ServedState{
			Members:  []Endpoint{{ID: ring.ID(id1), RLS: a1, Route: a2, Weight: weight}, {ID: ring.ID(id2), RLS: a2, Route: a1, Draining: true}},
			Capacity: capacity, TLS: true, ServerNames: []string{san}, RouteHeader: header, RouteAddress: listen,
			Upstream: header, Hot: []hotkey.Route{
				{Domain: "d", Name: "k=" + id1, Owner: id1, Author: "a", Version: 1, Mode: hotkey.Cap, Limit: weight, Window: int64(capacity)},
				{Domain: san, Owner: header, Author: ring.ID(id1), Version: 1, Mode: hotkey.Spread, Subs: []hotkey.SubKey{{Key: header + "#1", Member: "a"}}},
			},
		}
		s.setDefaults()
		res, _, err := s.resources()
		if err != nil {
			return
		}
		for _, list := range res {
			if _, err := versionOf(list); err != nil {
				t.Fatalf("served, but cannot be encoded: %v", err)
			}
			for _, r := range list {
				if err := validate(r); err != nil {
					t.Fatalf("served, but refused by every Envoy: %v", err)
				}
			}
		}
	})
}
