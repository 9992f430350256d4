package xds

import (
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"time"

	xdsmatcher "github.com/cncf/xds/go/xds/type/matcher/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	quota "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rate_limit_quota/v3"
	router "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcher "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/keyward/keyward/envoy/internal/names"
)

// Prime is a bucket of the rate limit quota service that a member primes in its Envoy before a route of a hot key
// switches to it.
type Prime struct {
	Domain, Entry, Value string        // of the descriptor, which has one entry
	Window               time.Duration // of the limit
	ExpiredAll           bool          // while the sidecar is away, Envoy admits all,
	ExpiredShare         uint32        // or this many hits in each window
}

// PrimeHeader is the header with the ID of the bucket that a request to the listener is for.
const PrimeHeader = names.PrimeHeader

// ID identifies the bucket in requests to the listener.
func (p *Prime) ID() string {
	h := fnv.New128a()
	for _, s := range []string{p.Domain, p.Entry, p.Value} {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// primeListener answers requests for the buckets of s.Primed with 200 if they are admitted. Its buckets, and the stream
// to the sidecar, are those of all filters of this Envoy with the same domain.
func (s *ServedState) primeListener() (*listener.Listener, error) {
	address, err := netip.ParseAddrPort(s.PrimeAddress)
	if err != nil || !address.Addr().IsLoopback() {
		return nil, fmt.Errorf("prime listener: %q is not a loopback address and port", s.PrimeAddress)
	}
	byDomain, domains := map[string][]Prime{}, []string{}
	for _, p := range s.Primed {
		if byDomain[p.Domain] == nil {
			domains = append(domains, p.Domain)
		}
		byDomain[p.Domain] = append(byDomain[p.Domain], p)
	}
	slices.Sort(domains)
	manager := &hcm.HttpConnectionManager{
		StatPrefix:     names.PrimeListener,
		RouteSpecifier: &hcm.HttpConnectionManager_RouteConfig{RouteConfig: routeConfiguration(names.PrimeListener, s.primeRoutes())},
	}
	for _, d := range domains {
		manager.HttpFilters = append(manager.HttpFilters, &hcm.HttpFilter{
			Name: names.PrimeListener + "/" + d, ConfigType: &hcm.HttpFilter_TypedConfig{TypedConfig: pack(primeFilter(d, byDomain[d]))},
		})
	}
	manager.HttpFilters = append(manager.HttpFilters, &hcm.HttpFilter{
		Name: "envoy.filters.http.router", ConfigType: &hcm.HttpFilter_TypedConfig{TypedConfig: pack(&router.Router{})},
	})
	return &listener.Listener{
		Name:    names.PrimeListener,
		Address: socket(address.Addr().String(), uint32(address.Port())),
		FilterChains: []*listener.FilterChain{{Filters: []*listener.Filter{{
			Name:       "envoy.filters.network.http_connection_manager",
			ConfigType: &listener.Filter_TypedConfig{TypedConfig: pack(manager)},
		}}}},
	}, nil
}

// primeRoutes answer 200 to a request for a bucket that the listener has, and 404 to all others.
func (s *ServedState) primeRoutes() (routes []*route.Route) {
	answer := func(status uint32, headers ...*route.HeaderMatcher) *route.Route {
		return &route.Route{
			Match:  &route.RouteMatch{PathSpecifier: &route.RouteMatch_Prefix{Prefix: "/"}, Headers: headers},
			Action: &route.Route_DirectResponse{DirectResponse: &route.DirectResponseAction{Status: status}},
		}
	}
	for i := range s.Primed {
		routes = append(routes, answer(200, &route.HeaderMatcher{
			Name: names.PrimeHeader, HeaderMatchSpecifier: &route.HeaderMatcher_StringMatch{
				StringMatch: &matcher.StringMatcher{MatchPattern: &matcher.StringMatcher_Exact{Exact: s.Primed[i].ID()}},
			},
		}))
	}
	return append(routes, answer(404))
}

// primeFilter assigns each request to the bucket that its header names.
func primeFilter(domain string, primes []Prime) *quota.RateLimitQuotaFilterConfig {
	buckets := map[string]*xdsmatcher.Matcher_OnMatch{}
	for i := range primes {
		buckets[primes[i].ID()] = &xdsmatcher.Matcher_OnMatch{OnMatch: &xdsmatcher.Matcher_OnMatch_Action{
			Action: matchExtension("bucket", primes[i].settings()),
		}}
	}
	return &quota.RateLimitQuotaFilterConfig{
		Domain: domain,
		RlqsServer: &core.GrpcService{
			TargetSpecifier: &core.GrpcService_EnvoyGrpc_{EnvoyGrpc: &core.GrpcService_EnvoyGrpc{ClusterName: names.OwnerCluster}},
		},
		BucketMatchers: &xdsmatcher.Matcher{MatcherType: &xdsmatcher.Matcher_MatcherTree_{MatcherTree: &xdsmatcher.Matcher_MatcherTree{
			Input: matchExtension("prime", &matcher.HttpRequestHeaderMatchInput{HeaderName: names.PrimeHeader}),
			TreeType: &xdsmatcher.Matcher_MatcherTree_ExactMatchMap{
				ExactMatchMap: &xdsmatcher.Matcher_MatcherTree_MatchMap{Map: buckets},
			},
		}}},
	}
}

// settings returns the settings of the bucket, as keyward envoy-config prints them: Envoy keeps those of the first request.
func (p *Prime) settings() *quota.RateLimitQuotaBucketSettings {
	blanket := func(r typev3.RateLimitStrategy_BlanketRule) *typev3.RateLimitStrategy {
		return &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_BlanketRule_{BlanketRule: r}}
	}
	expired := blanket(typev3.RateLimitStrategy_DENY_ALL)
	switch {
	case p.ExpiredAll:
		expired = blanket(typev3.RateLimitStrategy_ALLOW_ALL)
	case p.ExpiredShare > 0:
		expired = &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_TokenBucket{TokenBucket: &typev3.TokenBucket{
			MaxTokens: p.ExpiredShare, TokensPerFill: wrapperspb.UInt32(p.ExpiredShare), FillInterval: durationpb.New(p.Window),
		}}}
	}
	return &quota.RateLimitQuotaBucketSettings{
		BucketIdBuilder: &quota.RateLimitQuotaBucketSettings_BucketIdBuilder{
			BucketIdBuilder: map[string]*quota.RateLimitQuotaBucketSettings_BucketIdBuilder_ValueBuilder{
				"0." + p.Entry: {ValueSpecifier: &quota.RateLimitQuotaBucketSettings_BucketIdBuilder_ValueBuilder_StringValue{StringValue: p.Value}},
			},
		},
		ReportingInterval: durationpb.New(5 * time.Second),
		DenyResponseSettings: &quota.RateLimitQuotaBucketSettings_DenyResponseSettings{
			HttpStatus: &typev3.HttpStatus{Code: typev3.StatusCode_TooManyRequests},
			ResponseHeadersToAdd: []*core.HeaderValueOption{{
				Header: &core.HeaderValue{Key: "x-envoy-ratelimited", Value: "true"},
			}},
		},
		NoAssignmentBehavior: &quota.RateLimitQuotaBucketSettings_NoAssignmentBehavior{
			NoAssignmentBehavior: &quota.RateLimitQuotaBucketSettings_NoAssignmentBehavior_FallbackRateLimit{
				FallbackRateLimit: blanket(typev3.RateLimitStrategy_DENY_ALL),
			},
		},
		ExpiredAssignmentBehavior: &quota.RateLimitQuotaBucketSettings_ExpiredAssignmentBehavior{
			ExpiredAssignmentBehaviorTimeout: durationpb.New(10 * 365 * 24 * time.Hour),
			ExpiredAssignmentBehavior: &quota.RateLimitQuotaBucketSettings_ExpiredAssignmentBehavior_FallbackRateLimit{
				FallbackRateLimit: expired,
			},
		},
	}
}
