package xds

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	client "github.com/envoyproxy/go-control-plane/pkg/client/sotw/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	rlsconfservice "github.com/envoyproxy/go-control-plane/ratelimit/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keyward/keyward/envoy/internal/names"
)

// served are all types, in the order in which Envoy requests them.
var served = []string{resource.ClusterType, resource.EndpointType, resource.ListenerType, resource.RouteType, resource.ExtensionConfigType, resource.RateLimitConfigType}

func state(n int) ServedState {
	return ServedState{Members: members(n), RouteAddress: "0.0.0.0:10000", Rules: []*rlsconf.RateLimitConfig{{Name: "app", Domain: "app"}}}
}

// TestMembershipTouchesEndpointsOnly: a change of anything other than endpoints would reset calls in flight.
func TestMembershipTouchesEndpointsOnly(t *testing.T) {
	r := newRig(t)
	r.set(t, state(3))
	d, s := r.delta(t, "delta"), r.sotw(t, "sotw")
	for _, typeURL := range served {
		d.ask(typeURL, "*")
		d.ack(d.next())
		s.ask(typeURL)
		s.ack(s.next())
	}
	changes := map[string]func(*ServedState){
		"join":              func(st *ServedState) { st.Members = members(4) },
		"leaving":           func(st *ServedState) { st.Members = members(4); st.Members[0].Draining = true },
		"gone":              func(st *ServedState) { st.Members = members(4)[1:] },
		"weight":            func(st *ServedState) { st.Members = members(4)[1:]; st.Members[0].Weight = 5 },
		"another order":     nil, // no change at all
		"no member is left": func(st *ServedState) { st.Members = nil },
	}
	for _, name := range []string{"join", "leaving", "gone", "weight", "another order", "no member is left"} {
		before := r.Status().Versions
		st := state(3)
		if change := changes[name]; change != nil {
			change(&st)
		} else {
			changes["weight"](&st)
			slices.Reverse(st.Members)
		}
		r.set(t, st)
		after := r.Status().Versions
		for typeName := range before {
			want := typeName == "ClusterLoadAssignment" && name != "another order"
			if changed := before[typeName] != after[typeName]; changed != want {
				t.Errorf("%s: the version of %s changed: %v, want %v", name, typeName, changed, want)
			}
		}
		if name == "another order" {
			continue
		}
		dr, sr := d.next(), s.next()
		if dr.GetTypeUrl() != resource.EndpointType || sr.GetTypeUrl() != resource.EndpointType {
			t.Errorf("%s: clients were sent %s and %s", name, dr.GetTypeUrl(), sr.GetTypeUrl())
		}
		d.ack(dr)
		s.ack(sr)
	}
	// Any other response would arrive before this one.
	last := state(0)
	last.RouteHeader = "x-other"
	r.set(t, last)
	if dr, sr := d.next(), s.next(); dr.GetTypeUrl() != resource.RouteType || sr.GetTypeUrl() != resource.RouteType {
		t.Errorf("a change of routes: clients were sent %s and %s", dr.GetTypeUrl(), sr.GetTypeUrl())
	}
}

func TestVersionsAreHashesOfContent(t *testing.T) {
	a, b := newRig(t), newRig(t)
	st := state(5)
	st.Rules = append(st.Rules, &rlsconf.RateLimitConfig{Name: "more", Domain: "more"})
	b.set(t, state(2)) // another past
	a.set(t, st)
	slices.Reverse(st.Members)
	slices.Reverse(st.Rules)
	b.set(t, st)
	if va, vb := a.Status().Versions, b.Status().Versions; !maps.Equal(va, vb) || len(va) != len(served) {
		t.Errorf("servers of one state: versions %v and %v", va, vb)
	}
	// Also per resource: a delta client that switches from a to b needs no update.
	da := a.delta(t, "envoy")
	da.ask(resource.EndpointType, names.OwnerCluster, names.RouteCluster)
	first := da.next()
	has := map[string]string{}
	for _, x := range first.GetResources() {
		has[x.GetName()] = x.GetVersion()
	}
	if len(has) != 2 {
		t.Fatalf("was sent %v", has)
	}
	db := b.delta(t, "envoy")
	db.send(&discovery.DeltaDiscoveryRequest{TypeUrl: resource.EndpointType, ResourceNamesSubscribe: slices.Collect(maps.Keys(has)), InitialResourceVersions: has})
	until(t, "b knows that the client is up to date", func() bool {
		st := b.Status()
		return len(st.Clients) == 1 && st.Clients[0].Types["ClusterLoadAssignment"].Accepted == st.Versions["ClusterLoadAssignment"]
	})
	db.ask(resource.ClusterType)
	if r := db.next(); r.GetTypeUrl() != resource.ClusterType {
		t.Errorf("coming back with everything: was sent %s", r.GetTypeUrl())
	}

	// A client that is behind does not count as up to date.
	old := b.delta(t, "old")
	has[names.OwnerCluster] = "something else"
	old.send(&discovery.DeltaDiscoveryRequest{TypeUrl: resource.EndpointType, ResourceNamesSubscribe: slices.Collect(maps.Keys(has)), InitialResourceVersions: has})
	if r := old.next(); len(r.GetResources()) != 1 || r.GetResources()[0].GetName() != names.OwnerCluster {
		t.Errorf("coming back with one old resource: was sent %v", r)
	}
}

// refused returns the clients of the type in Status: node to refused version.
func refused(r *rig, typeName string) map[string]string {
	out := map[string]string{}
	for _, c := range r.Status().Clients {
		if v := c.Types[typeName].Refused; v != "" {
			out[c.Node] = v + " " + c.Types[typeName].Why + " uses " + c.Types[typeName].Accepted
		}
	}
	return out
}

func TestRefusals(t *testing.T) {
	r := newRig(t)
	st := state(3)
	r.set(t, st)
	v1 := r.Status().Versions["Cluster"]
	s, d := r.sotw(t, "sotw"), r.delta(t, "delta")
	s.ask(resource.ClusterType)
	s.ack(s.next())
	d.ask(resource.ClusterType)
	d.ack(d.next())

	st.TLS = true
	r.set(t, st)
	v2 := r.Status().Versions["Cluster"]
	s.nack(s.next(), "no such secret")
	d.nack(d.next(), "no such secret")
	want := v2 + " no such secret uses " + v1
	until(t, "both refusals are known", func() bool {
		got := refused(r, "Cluster")
		return got["sotw"] == want && got["delta"] == want
	})

	// A refused version is not sent again, even if the client changes its subscription. First another version must be
	// served.
	s.ask(resource.ClusterType)
	s.ask(resource.EndpointType, names.OwnerCluster)
	if x := s.next(); x.GetTypeUrl() != resource.EndpointType {
		t.Errorf("after a refusal: was sent %s %s", x.GetTypeUrl(), x.GetVersionInfo())
	}
	d.ask(resource.EndpointType, names.OwnerCluster)
	if x := d.next(); x.GetTypeUrl() != resource.EndpointType {
		t.Errorf("after a refusal: was sent %s", x.GetTypeUrl())
	}

	// Another version is sent, and so is the last accepted one.
	st.Connect = 1e9
	r.set(t, st)
	if x := s.next(); x.GetVersionInfo() != r.Status().Versions["Cluster"] {
		t.Errorf("after the refusal: was sent %s", x)
	}
	s.nack(s.last[resource.ClusterType], "still no such secret")
	d.nack(d.next(), "still no such secret")
	until(t, "both refusals are known", func() bool { return strings.Contains(refused(r, "Cluster")["sotw"], "still") })
	r.set(t, state(3))
	if x := s.next(); x.GetVersionInfo() != v1 {
		t.Errorf("going back: was sent %s", x.GetVersionInfo())
	}
	s.ack(s.last[resource.ClusterType])
	x := d.next()
	if x.GetSystemVersionInfo() != v1 {
		t.Errorf("going back: was sent %s", x.GetSystemVersionInfo())
	}
	d.ack(x)
	until(t, "both use the first version", func() bool {
		n := 0
		for _, c := range r.Status().Clients {
			if c.Types["Cluster"].Accepted == v1 && c.Types["Cluster"].Sent == v1 {
				n++
			}
		}
		return n == 2
	})

	if n := testutil.ToFloat64(r.metrics.nacks.WithLabelValues("Cluster")); n != 4 {
		t.Errorf("%v refusals were counted, want 4", n)
	}
	if n := testutil.ToFloat64(r.metrics.pushes.WithLabelValues("Cluster")); n != 8 {
		t.Errorf("%v responses with clusters were counted, want 8", n)
	}
	if n := strings.Count(r.log.String(), "no such secret"); n != 4 {
		t.Errorf("the refusals were logged %d times:\n%s", n, r.log)
	}
}

// TestLateRefusal: a refusal that crosses a newer version must not hide the newer one.
func TestLateRefusal(t *testing.T) {
	r := newRig(t)
	st := state(3)
	r.set(t, st)
	s := r.sotw(t, "envoy")
	s.ask(resource.ClusterType)
	first := s.next()
	st.TLS = true
	r.set(t, st) // no client waits for it now
	s.nack(first, "bad")
	if x := s.next(); x.GetVersionInfo() != r.Status().Versions["Cluster"] {
		t.Errorf("was sent %s after a late refusal", x.GetVersionInfo())
	}
	s.nack(first, "bad, and said twice")
	s.ack(s.last[resource.ClusterType])
	until(t, "the new one is accepted", func() bool {
		c := r.Status().Clients
		return len(c) == 1 && c[0].Types["Cluster"].Accepted == r.Status().Versions["Cluster"]
	})
}

// TestNothingKnownYet: before the first state, and for rules before they are known, clients wait: an empty response
// would remove what they have.
func TestNothingKnownYet(t *testing.T) {
	r := newRig(t)
	s := r.sotw(t, "envoy")
	for _, typeURL := range served {
		s.ask(typeURL)
	}
	st := state(2)
	st.Rules = nil
	r.set(t, st)
	got := map[string]bool{}
	for range len(served) - 1 {
		got[s.next().GetTypeUrl()] = true
	}
	if _, known := r.Status().Versions["RateLimitConfig"]; known || got[resource.RateLimitConfigType] || len(got) != len(served)-1 {
		t.Errorf("was sent %v", got)
	}
	st.Rules = []*rlsconf.RateLimitConfig{}
	r.set(t, st)
	if x := s.next(); x.GetTypeUrl() != resource.RateLimitConfigType || len(x.GetResources()) != 0 {
		t.Errorf("no rules at all: was sent %v", x)
	}
}

// TestSeparateStreams uses each service separately, as envoyproxy/ratelimit and Envoys without ADS do.
func TestSeparateStreams(t *testing.T) {
	r := newRig(t)
	r.set(t, state(3))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	rules, err := rlsconfservice.NewRateLimitConfigDiscoveryServiceClient(r.conn).StreamRlsConfigs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := rules.Send(&discovery.DiscoveryRequest{Node: &core.Node{Id: "ratelimit"}}); err != nil {
		t.Fatal(err)
	}
	got, err := rules.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var c rlsconf.RateLimitConfig
	if len(got.GetResources()) != 1 || got.GetResources()[0].UnmarshalTo(&c) != nil || c.GetDomain() != "app" {
		t.Errorf("rules: %v", got)
	}

	eds, err := endpointservice.NewEndpointDiscoveryServiceClient(r.conn).DeltaEndpoints(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := eds.Send(&discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{names.OwnerCluster}}); err != nil {
		t.Fatal(err)
	}
	if x, err := eds.Recv(); err != nil || len(x.GetResources()) != 1 || x.GetResources()[0].GetName() != names.OwnerCluster {
		t.Errorf("endpoints: %v, %v", x, err)
	}

	ads := client.NewADSClient(ctx, &core.Node{Id: "client"}, resource.ClusterType)
	if err := ads.InitConnect(r.conn); err != nil {
		t.Fatal(err)
	}
	res, err := ads.Fetch()
	if err != nil || len(res.Resources) != 2 {
		t.Errorf("go-control-plane's own client: %v, %v", res, err)
	}
	if err := ads.Ack(); err != nil {
		t.Error(err)
	}
	until(t, "all three streams are seen", func() bool { return len(r.Status().Clients) == 3 })
	if n := testutil.ToFloat64(r.metrics.streams); n != 3 {
		t.Errorf("keyward_xds_streams is %v", n)
	}
}

// TestStrangeClients: whatever a client requests or sends about itself, the memory for it is limited.
func TestStrangeClients(t *testing.T) {
	r := newRig(t)
	r.set(t, state(1))
	r.sotw(t, strings.Repeat("\u4e2d", 1000)) // cut within a character
	d := r.delta(t, strings.Repeat("n", 1<<20))
	for i := range 200 {
		d.ask(fmt.Sprintf("type.googleapis.com/bogus.Type%d", i))
		if x := d.next(); len(x.GetResources()) != 0 {
			t.Fatalf("was sent %v", x)
		}
		d.nack(&discovery.DeltaDiscoveryResponse{TypeUrl: fmt.Sprintf("type.googleapis.com/bogus.Type%d", i), Nonce: fmt.Sprint(i + 1)}, strings.Repeat("w", 10_000))
	}
	d.ask(resource.ClusterType, "*")
	x := d.next()
	d.nack(x, strings.Repeat("w", 100_000))
	until(t, "the refusal is known", func() bool { return len(refused(r, "Cluster")) == 1 })
	for _, c := range r.Status().Clients {
		if c.Node == "" || len(c.Node) > maxNode || !utf8.ValidString(c.Node) || len(c.Types) > len(served) || len(c.Types["Cluster"].Why) > maxWhy {
			t.Errorf("kept: a name of %d bytes, %d types, a reason of %d bytes", len(c.Node), len(c.Types), len(c.Types["Cluster"].Why))
		}
	}
	if n := testutil.CollectAndCount(r.metrics.nacks) + testutil.CollectAndCount(r.metrics.pushes); n > 2*len(served) {
		t.Errorf("%d series", n)
	}

	bad, err := discovery.NewAggregatedDiscoveryServiceClient(r.conn).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := bad.Send(&discovery.DiscoveryRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := bad.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a request without a type: %v", err)
	}
	d.cancel()
	until(t, "streams that ended are forgotten", func() bool { return len(r.Status().Clients) == 1 })
}

// TestMany runs many clients while states change; the last state reaches all of them.
func TestMany(t *testing.T) {
	r := newRig(t)
	r.set(t, state(1))
	const clients, states = 40, 50
	done := make(chan string, clients)
	for i := range clients {
		c := r.delta(t, fmt.Sprint("envoy-", i))
		go func() {
			if err := c.stream.Send(&discovery.DeltaDiscoveryRequest{Node: c.node, TypeUrl: resource.EndpointType, ResourceNamesSubscribe: []string{names.OwnerCluster}}); err != nil {
				done <- err.Error()
				return
			}
			for {
				x, err := c.stream.Recv()
				if err != nil {
					done <- err.Error()
					return
				}
				if strings.Contains(fmt.Sprint(x), "10.0.0.99") {
					done <- ""
					return
				}
				if err := c.stream.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: resource.EndpointType, ResponseNonce: x.GetNonce()}); err != nil {
					done <- err.Error()
					return
				}
			}
		}()
	}
	for i := range states {
		r.set(t, state(1+i%20))
	}
	st := state(3)
	st.Members[0].RLS = "10.0.0.99:8082"
	r.set(t, st)
	for range clients {
		if fault := <-done; fault != "" {
			t.Fatal(fault)
		}
	}
}
