// Package xds serves the ring to Envoy: CDS, EDS, LDS, RDS, ECDS and RateLimitConfig.
//
// A [ServedState] is converted to resources. The version of each type is a hash of its content, and a snapshot of all
// types is replaced as a whole. A change of membership changes only endpoints, so it resets no call in flight.
// Servers with the same members serve the same versions.
package xds

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	clusterservice "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	extensionservice "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	listenerservice "github.com/envoyproxy/go-control-plane/envoy/service/listener/v3"
	routeservice "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	xdsserver "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	rlsconfservice "github.com/envoyproxy/go-control-plane/ratelimit/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/envoy/internal/names"
	"github.com/keyward/keyward/ring"
)

// Options configure a DiscoveryServer.
type Options struct {
	Logger     *slog.Logger          // nil: no logs
	Registerer prometheus.Registerer // nil: not registered
}

// DiscoveryServer serves one ServedState to all clients. It is safe for concurrent use.
type DiscoveryServer struct {
	log     *slog.Logger
	metrics *metrics
	cache   cache.SnapshotCache
	server  xdsserver.Server
	clients *clients

	mu         sync.Mutex
	capDomains map[string]bool   // that had caps; guarded by mu
	versions   map[string]string // by type URL; guarded by mu
	snapshot   *cache.Snapshot   // guarded by mu
	omitted    []omission        // last logged; guarded by mu
}

// everyone is the node ID that all clients share: what is served does not depend on the client.
const everyone = "all"

type sameNode struct{}

func (sameNode) ID(*core.Node) string { return everyone }

// New returns a server that serves nothing until Set is called. Its streams end with ctx.
func New(ctx context.Context, o Options) *DiscoveryServer {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &DiscoveryServer{log: o.Logger, metrics: newMetrics(o.Registerer), capDomains: map[string]bool{},
		versions: map[string]string{}}
	s.cache = cache.NewSnapshotCache(false, sameNode{}, nil)
	s.clients = newClients(s.log, s.metrics, s.upToDate)
	s.server = xdsserver.NewServer(ctx, s.cache, s.clients.callbacks())
	return s
}

// Register adds all discovery services to g: aggregated and separate ones, state of the world and incremental.
func (s *DiscoveryServer) Register(g *grpc.Server) {
	discovery.RegisterAggregatedDiscoveryServiceServer(g, s.server)
	clusterservice.RegisterClusterDiscoveryServiceServer(g, s.server)
	endpointservice.RegisterEndpointDiscoveryServiceServer(g, s.server)
	listenerservice.RegisterListenerDiscoveryServiceServer(g, s.server)
	routeservice.RegisterRouteDiscoveryServiceServer(g, s.server)
	extensionservice.RegisterExtensionConfigDiscoveryServiceServer(g, s.server)
	rlsconfservice.RegisterRateLimitConfigDiscoveryServiceServer(g, s.server)
}

// Set replaces the state that is served. If it returns an error, the old state remains.
func (s *DiscoveryServer) Set(state ServedState) error {
	state.setDefaults()
	state.capDomains = s.rememberCaps(&state)
	resources, omitted, err := state.resources()
	if err != nil {
		return fmt.Errorf("serve xDS: %w", err)
	}
	snapshot, versions := &cache.Snapshot{}, map[string]string{}
	for typeURL, list := range resources {
		version, err := versionOf(list)
		if err != nil {
			return fmt.Errorf("serve xDS: %w", err)
		}
		versions[typeURL] = version
		snapshot.Resources[cache.GetResponseType(typeURL)] = cache.NewResources(version, list)
	}
	if err := snapshot.ConstructVersionMap(); err != nil {
		return fmt.Errorf("serve xDS: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(omitted, s.omitted) {
		s.omitted = omitted
		for _, o := range omitted {
			s.log.Warn("member left out of the ring served to Envoy; requests for its keys are forwarded", "member",
				o.id, "cluster", o.cluster, "cause", o.cause)
		}
	}
	s.versions, s.snapshot = versions, snapshot
	return s.cache.SetSnapshot(context.Background(), everyone, snapshot)
}

// rememberCaps adds the domains with caps to those that had some, and returns all.
func (s *DiscoveryServer) rememberCaps(state *ServedState) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for domain := range state.caps() {
		if len(s.capDomains) < maxCapDomains {
			s.capDomains[domain] = true
		}
	}
	return slices.Sorted(maps.Keys(s.capDomains))
}

// resources returns what is served, by type URL.
func (s *ServedState) resources() (map[string][]types.Resource, []omission, error) {
	if err := errors.Join(s.faults()...); err != nil {
		return nil, nil, err
	}
	owners, omitted := s.hosts(names.OwnerCluster, func(m Endpoint) string { return m.RLS })
	pods, others := s.hosts(names.RouteCluster, func(m Endpoint) string { return m.Route })
	if len(pods) > 0 { // members have route addresses only in shape routes
		omitted = append(omitted, others...)
	}
	direct, routed, hot := s.OwnerDirect(), s.Routed(), s.hotKeys()
	out := map[string][]types.Resource{
		resource.ClusterType: {direct, routed},
		resource.EndpointType: {
			s.endpoints(names.OwnerCluster, owners), s.endpoints(direct.GetEdsClusterConfig().GetServiceName(), owners),
			s.endpoints(names.RouteCluster, pods), s.endpoints(routed.GetEdsClusterConfig().GetServiceName(), pods),
		},
		resource.ListenerType: {},
		resource.RouteType:    {s.routes(hot), s.directRoutes(hot)},

		resource.ExtensionConfigType: s.filters(hot),
	}
	if s.Rules != nil {
		out[resource.RateLimitConfigType] = []types.Resource{}
	}
	for _, r := range s.Rules {
		out[resource.RateLimitConfigType] = append(out[resource.RateLimitConfigType], r)
	}
	if s.RouteAddress != "" {
		l, err := s.listener()
		if err != nil {
			return nil, nil, err
		}
		out[resource.ListenerType] = []types.Resource{l}
	}
	if s.PrimeAddress != "" {
		l, err := s.primeListener()
		if err != nil {
			return nil, nil, err
		}
		out[resource.ListenerType] = append(out[resource.ListenerType], l)
	}
	return out, omitted, errors.Join(s.validateRing(owners), s.validateRing(pods))
}

// validateRing returns an error if Envoy would build a different ring from the hosts.
func (s *ServedState) validateRing(hosts []host) error {
	members := make([]ring.Member, len(hosts))
	for i, h := range hosts {
		members[i] = ring.Member{ID: h.ID, Weight: h.Weight}
	}
	return ring.Validate(members, s.Capacity)
}

// versionOf returns a hash of the resources, independent of their order.
func versionOf(list []types.Resource) (string, error) {
	sorted := slices.Clone(list)
	slices.SortFunc(sorted, func(a, b types.Resource) int {
		return cmp.Compare(cache.GetResourceName(a),
			cache.GetResourceName(b))
	})
	h := fnv.New128a()
	for _, r := range sorted {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%d:", len(b))
		_, _ = h.Write(b) // a hash never fails
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// upToDate returns the served version of a type if a client that reconnects already has exactly those resources. The
// library then sends it nothing.
func (s *DiscoveryServer) upToDate(typeURL string, has map[string]string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.snapshot == nil || len(has) == 0 {
		return ""
	}
	served := s.snapshot.GetVersionMap(typeURL)
	for name, version := range has {
		if served[name] != version {
			return ""
		}
	}
	return s.versions[typeURL]
}

// ServerStatus describes what is served to which clients.
type ServerStatus struct {
	Versions map[string]string `json:"versions"` // by the short name of the type
	Clients  []Client          `json:"clients"`
}

// Status returns a copy of the current status.
func (s *DiscoveryServer) Status() ServerStatus {
	s.mu.Lock()
	versions := maps.Clone(s.versions)
	s.mu.Unlock()
	st := ServerStatus{Versions: map[string]string{}, Clients: s.clients.list()}
	for t, v := range versions {
		name, _ := shortTypeName(t)
		st.Versions[name] = v
	}
	return st
}

// ExtensionConfigs is the short name of the type of the filters of hot keys. An Envoy uses some of these resources.
const ExtensionConfigs = "TypedExtensionConfig"

// shortTypeName returns the name of a served type without its package. Clients may request any type, but only served types
// are tracked.
func shortTypeName(typeURL string) (name string, served bool) {
	switch typeURL {
	case resource.ClusterType, resource.EndpointType, resource.ListenerType, resource.RouteType,
		resource.RateLimitConfigType, resource.ExtensionConfigType:
		return typeURL[strings.LastIndexByte(typeURL, '.')+1:], true
	}
	return "", false
}
