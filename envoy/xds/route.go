package xds

import (
	"fmt"
	"net/netip"
	"strings"

	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	router "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/keyward/keyward/envoy/internal/names"
)

// routes send each request to the pod whose sidecar owns the request's key, and requests of a hot key to the pods of
// its sub-keys. A request without the header goes to any pod, whose sidecar forwards it.
func (s *ServedState) routes(hot []hotKey) *route.RouteConfiguration {
	by := func(header string) *route.RouteAction {
		return &route.RouteAction{
			ClusterSpecifier: &route.RouteAction_Cluster{Cluster: names.RouteCluster},
			HashPolicy:       []*route.RouteAction_HashPolicy{headerPolicy(header)},
		}
	}
	var routes []*route.Route
	for i := range hot {
		header := s.RouteHeader
		if len(hot[i].subs) > 0 {
			header = names.SubHeader
		}
		routes = append(routes, hot[i].route(s.RouteHeader, by(header)))
	}
	return routeConfiguration(names.RouteConfig, append(routes, catchAllRoute(by(s.RouteHeader))))
}

// directRoutes send every request to the application. The sub-key of a hot key only chooses the member for the rate
// limit call, and is removed before the application sees it.
func (s *ServedState) directRoutes(hot []hotKey) *route.RouteConfiguration {
	upstream := func() *route.RouteAction {
		return &route.RouteAction{ClusterSpecifier: &route.RouteAction_Cluster{Cluster: s.Upstream}}
	}
	var routes []*route.Route
	for i := range hot {
		routes = append(routes, hot[i].route(s.RouteHeader, upstream()))
	}
	c := routeConfiguration(names.DirectConfig, append(routes, catchAllRoute(upstream())))
	c.RequestHeadersToRemove = []string{names.SubHeader}
	return c
}

func catchAllRoute(to *route.RouteAction) *route.Route {
	return &route.Route{
		Match:  &route.RouteMatch{PathSpecifier: &route.RouteMatch_Prefix{Prefix: "/"}},
		Action: &route.Route_Route{Route: to},
	}
}

func routeConfiguration(name string, routes []*route.Route) *route.RouteConfiguration {
	return &route.RouteConfiguration{Name: name, VirtualHosts: []*route.VirtualHost{{Name: "all",
		Domains: []string{"*"}, Routes: routes}}}
}

func (s *ServedState) listener() (*listener.Listener, error) {
	text := s.RouteAddress
	if strings.HasPrefix(text, ":") {
		text = "0.0.0.0" + text
	}
	address, err := netip.ParseAddrPort(text)
	if err != nil || address.Addr().Zone() != "" {
		return nil, fmt.Errorf("route listener: %q is not an IP address and port", s.RouteAddress)
	}
	manager := &hcm.HttpConnectionManager{
		StatPrefix:       names.RouteListener,
		UseRemoteAddress: wrapperspb.Bool(true), // do not trust x-forwarded-for from clients
		RouteSpecifier: &hcm.HttpConnectionManager_Rds{Rds: &hcm.Rds{ConfigSource: viaADS(),
			RouteConfigName: names.RouteConfig}},
		HttpFilters: []*hcm.HttpFilter{{
			Name: "envoy.filters.http.router", ConfigType: &hcm.HttpFilter_TypedConfig{TypedConfig: pack(&router.Router{})},
		}},
	}
	addHotKeyFilters(manager)
	return &listener.Listener{
		Name:    names.RouteListener,
		Address: socket(address.Addr().String(), uint32(address.Port())),
		FilterChains: []*listener.FilterChain{{Filters: []*listener.Filter{{
			Name:       "envoy.filters.network.http_connection_manager",
			ConfigType: &listener.Filter_TypedConfig{TypedConfig: pack(manager)},
		}}}},
	}, nil
}
