package xds

import (
	"encoding/hex"
	"hash/fnv"
	"strings"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	lbcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/common/v3"
	ringhash "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/ring_hash/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcher "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/keyward/keyward/envoy/internal/names"
	"github.com/keyward/keyward/ring"
)

// pack wraps a message as Any in a canonical form, so that equal messages have equal versions.
func pack(m proto.Message) *anypb.Any {
	a := &anypb.Any{}
	// Messages of generated code can always be marshaled.
	if err := anypb.MarshalFrom(a, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		panic(err)
	}
	return a
}

// OwnerDirect returns the cluster whose ring sends a rate limit call to the owner of its x-keyward-key header. The
// load balancer hashes the header of the call itself, because Envoy does not apply route hash policies to its
// internal calls.
func (s *ServedState) OwnerDirect() *cluster.Cluster {
	s.setDefaults()
	c := s.ringCluster(names.OwnerCluster, &lbcommon.ConsistentHashingLbConfig{HashPolicy: []*route.RouteAction_HashPolicy{headerPolicy(names.KeyHeader)}})
	c.ConnectTimeout = durationpb.New(s.Connect)
	c.TypedExtensionProtocolOptions = map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": pack(&httpv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: &core.Http2ProtocolOptions{}},
		}},
	})}
	if s.TLS {
		c.TransportSocket = &core.TransportSocket{Name: "envoy.transport_sockets.tls",
			ConfigType: &core.TransportSocket_TypedConfig{TypedConfig: pack(s.upstreamTLS())}}
	}
	return nameEndpoints(c)
}

// Routed returns the cluster of the pods. Its ring uses the hash policy of the route.
func (s *ServedState) Routed() *cluster.Cluster {
	s.setDefaults()
	return nameEndpoints(s.ringCluster(names.RouteCluster, nil))
}

// nameEndpoints names the endpoints of a cluster after the cluster's content. Otherwise an Envoy whose cluster changes would
// wait 15 s for its endpoints, which are not sent again because they are the same, and meanwhile use new weights in
// the old ring.
func nameEndpoints(c *cluster.Cluster) *cluster.Cluster {
	h := fnv.New64a()
	_, _ = h.Write(pack(c).GetValue()) // a hash never fails
	c.EdsClusterConfig.ServiceName = c.GetName() + "@" + hex.EncodeToString(h.Sum(nil))
	return c
}

// ringCluster returns a cluster whose ring has fixed points for each member, independent of the other members. The
// panic threshold must be 0: in panic mode the void endpoint would receive nearly everything.
func (s *ServedState) ringCluster(name string, hashing *lbcommon.ConsistentHashingLbConfig) *cluster.Cluster {
	// An open circuit breaker would let requests through uncounted.
	most := wrapperspb.UInt32(1 << 20)
	return &cluster.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &cluster.Cluster_Type{Type: cluster.Cluster_EDS},
		EdsClusterConfig:     &cluster.Cluster_EdsClusterConfig{EdsConfig: viaADS()},
		CommonLbConfig: &cluster.Cluster_CommonLbConfig{
			HealthyPanicThreshold: &typev3.Percent{Value: 0},
			UpdateMergeWindow:     durationpb.New(0),
		},
		CircuitBreakers: &cluster.CircuitBreakers{Thresholds: []*cluster.CircuitBreakers_Thresholds{
			{MaxConnections: most, MaxPendingRequests: most, MaxRequests: most, MaxRetries: most},
		}},
		IgnoreHealthOnHostRemoval: true,
		LoadBalancingPolicy: &cluster.LoadBalancingPolicy{Policies: []*cluster.LoadBalancingPolicy_Policy{{
			TypedExtensionConfig: &core.TypedExtensionConfig{
				Name: "envoy.load_balancing_policies.ring_hash",
				TypedConfig: pack(&ringhash.RingHash{
					MinimumRingSize:           wrapperspb.UInt64(uint64(ring.PointsPerWeight * ring.EnvoyCapacity(s.Capacity))),
					MaximumRingSize:           wrapperspb.UInt64(ring.PointsPerWeight * ring.MaxCapacity),
					ConsistentHashingLbConfig: hashing,
					LocalityWeightedLbConfig:  &lbcommon.LocalityLbConfig_LocalityWeightedLbConfig{},
				}),
			},
		}}},
	}
}

func headerPolicy(name string) *route.RouteAction_HashPolicy {
	return &route.RouteAction_HashPolicy{PolicySpecifier: &route.RouteAction_HashPolicy_Header_{
		Header: &route.RouteAction_HashPolicy_Header{HeaderName: name},
	}}
}

func viaADS() *core.ConfigSource {
	return &core.ConfigSource{ResourceApiVersion: core.ApiVersion_V3,
		ConfigSourceSpecifier: &core.ConfigSource_Ads{Ads: &core.AggregatedConfigSource{}}}
}

// upstreamTLS uses the CA and the certificate that Envoy's bootstrap defines.
func (s *ServedState) upstreamTLS() *tlsv3.UpstreamTlsContext {
	var sans []*tlsv3.SubjectAltNameMatcher
	for _, n := range s.ServerNames {
		kind := tlsv3.SubjectAltNameMatcher_DNS
		if strings.Contains(n, "://") {
			kind = tlsv3.SubjectAltNameMatcher_URI
		}
		sans = append(sans, &tlsv3.SubjectAltNameMatcher{SanType: kind,
			Matcher: &matcher.StringMatcher{MatchPattern: &matcher.StringMatcher_Exact{Exact: n}}})
	}
	return &tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		TlsParams: &tlsv3.TlsParameters{TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
			TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3},
		AlpnProtocols:                  []string{"h2"},
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: names.ClientSecret}},
		ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
			DefaultValidationContext:         &tlsv3.CertificateValidationContext{MatchTypedSubjectAltNames: sans},
			ValidationContextSdsSecretConfig: &tlsv3.SdsSecretConfig{Name: names.CASecret},
		}},
	}}
}

// endpoints returns the load assignment with fixed points: one locality per member, and the void, an endpoint with
// the remaining weight, so that the sum never changes.
func (s *ServedState) endpoints(cluster string, hosts []host) *endpoint.ClusterLoadAssignment {
	la := &endpoint.ClusterLoadAssignment{ClusterName: cluster}
	left := ring.EnvoyCapacity(s.Capacity)
	for _, h := range hosts {
		status := core.HealthStatus_HEALTHY
		if h.Draining {
			status = core.HealthStatus_DRAINING
		}
		e := lbEndpoint(h.addr.Addr().String(), uint32(h.addr.Port()), status)
		e.Metadata = &core.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.lb": {
			Fields: map[string]*structpb.Value{"hash_key": structpb.NewStringValue(string(h.ID))},
		}}}
		la.Endpoints = append(la.Endpoints, &endpoint.LocalityLbEndpoints{
			// Envoy keeps statistics per zone, so the name is put into the sub-zone.
			Locality:            &core.Locality{SubZone: string(h.ID)},
			LoadBalancingWeight: wrapperspb.UInt32(h.Weight),
			LbEndpoints:         []*endpoint.LbEndpoint{e},
		})
		left -= int(h.Weight)
	}
	la.Endpoints = append(la.Endpoints, &endpoint.LocalityLbEndpoints{
		Locality:            &core.Locality{Region: "void"}, // members have no region, so this locality is unique
		LoadBalancingWeight: wrapperspb.UInt32(uint32(max(1, left))),
		LbEndpoints:         []*endpoint.LbEndpoint{lbEndpoint("127.0.0.1", 1, core.HealthStatus_UNHEALTHY)},
	})
	return la
}

func lbEndpoint(ip string, port uint32, status core.HealthStatus) *endpoint.LbEndpoint {
	return &endpoint.LbEndpoint{
		HealthStatus:   status,
		HostIdentifier: &endpoint.LbEndpoint_Endpoint{Endpoint: &endpoint.Endpoint{Address: socket(ip, port)}},
	}
}

func socket(ip string, port uint32) *core.Address {
	return &core.Address{Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{
		Address: ip, PortSpecifier: &core.SocketAddress_PortValue{PortValue: port},
	}}}
}
