package xds

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	mutation "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	headers "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	local "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	early "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	matcher "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/keyward/keyward/envoy/internal/names"
	"github.com/keyward/keyward/hotkey"
)

// minFill is the shortest fill interval of a token bucket that Envoy accepts.
const minFill = 50 * time.Millisecond

// hotKey describes the routes for one value of the header.
type hotKey struct {
	owner   string
	address bool                // it is the client's address, not the value of the header
	subs    []hotkey.SubKey     // receive its requests; none: the owner does
	bucket  *typev3.TokenBucket // cap; nil: none
	quotas  []quotaStep
}

// quotaStep is a descriptor of a hot key whose limit Envoy spends without calls.
type quotaStep struct{ domain, entry string }

// hotKeys merges the routes of each owner string in several domains: manual routes first, then older ones first,
// independent of the order of s.Hot. Envoy matches every request against each of them, so there are at most
// hotkey.MaxRoutes.
func (s *ServedState) hotKeys() []hotKey {
	said := s.sortedHot()
	var keys []hotKey
	for i := range said {
		subs, bucket, quota := subKeys(&said[i]), capBucket(&said[i]), said[i].Mode == hotkey.Quota
		if said[i].Validate() != nil || subs == nil && bucket == nil && !quota {
			continue
		}
		at := slices.IndexFunc(keys, func(k hotKey) bool { return k.owner == said[i].Owner })
		if at < 0 {
			if len(keys) == hotkey.MaxRoutes {
				continue
			}
			at, keys = len(keys), append(keys, hotKey{owner: said[i].Owner, address: isAddress(&said[i])})
		}
		k := &keys[at]
		if quota {
			k.quotas = append(k.quotas, quotaStep{said[i].Domain, said[i].Entries[0].Key})
		}
		if k.subs == nil {
			k.subs = subs
		}
		if k.bucket == nil {
			k.bucket = bucket
		}
	}
	slices.SortFunc(keys, func(a, b hotKey) int { return strings.Compare(a.owner, b.owner) })
	return keys
}

// sortedHot returns s.Hot in the order in which routes are preferred.
func (s *ServedState) sortedHot() []hotkey.Route {
	said := slices.Clone(s.Hot)
	slices.SortStableFunc(said, func(a, b hotkey.Route) int {
		if a.Manual != b.Manual {
			return cmp.Compare(b2i(b.Manual), b2i(a.Manual))
		}
		return cmp.Or(cmp.Compare(a.Version, b.Version), cmp.Compare(a.Owner, b.Owner),
			cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Author, b.Author))
	})
	return said
}

// isAddress reports whether the owner string of the route is the client's address.
func isAddress(r *hotkey.Route) bool {
	return slices.Contains(r.Entries, hotkey.RouteEntry{Key: "remote_address", Value: r.Owner})
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// subKeys returns the sub-keys that receive a key's requests instead of its owner.
func subKeys(r *hotkey.Route) []hotkey.SubKey {
	if r.Mode != hotkey.Dedicated && r.Mode != hotkey.Spread {
		return nil
	}
	return r.Subs
}

// capBucket returns the token bucket of a key whose route is to be capped. A route can only cap the limit of the header
// value itself: if a descriptor has more entries, fewer requests count than carry the header.
func capBucket(r *hotkey.Route) *typev3.TokenBucket {
	if _, value, _ := strings.Cut(r.Name, "="); value != r.Owner {
		return nil
	}
	return bucketOf(r)
}

// bucketOf returns the token bucket of a key that is to be capped, or nil. It holds 2 L tokens and gains L per window.
// Between the last time when it was full and a denial t later, Envoy admitted 2 L + L t/W requests: all that the
// windows in between, at most t/W + 2, could ever admit.
func bucketOf(r *hotkey.Route) *typev3.TokenBucket {
	if r.Mode == hotkey.Auto || r.Mode == hotkey.Never || !r.Capped() || r.Window < int64(minFill) {
		return nil
	}
	return &typev3.TokenBucket{
		MaxTokens:     uint32(min(2*uint64(r.Limit), math.MaxUint32)),
		TokensPerFill: wrapperspb.UInt32(r.Limit),
		FillInterval:  durationpb.New(time.Duration(r.Window)),
	}
}

// route distributes the requests of a hot key evenly over its sub-keys. They are parts of one route, so that all of
// them draw from one bucket.
func (k *hotKey) route(header string, to *route.RouteAction) *route.Route {
	r := &route.Route{
		Match: &route.RouteMatch{
			PathSpecifier: &route.RouteMatch_Prefix{Prefix: "/"},
			Headers: []*route.HeaderMatcher{{Name: header, HeaderMatchSpecifier: &route.HeaderMatcher_StringMatch{
				StringMatch: &matcher.StringMatcher{MatchPattern: &matcher.StringMatcher_Exact{Exact: k.owner}},
			}}},
		},
		Action: &route.Route_Route{Route: to},
	}
	r.TypedPerFilterConfig = map[string]*anypb.Any{}
	if k.bucket != nil {
		r.TypedPerFilterConfig[names.CapFilter] = pack(capFilter(k.bucket))
	}
	for _, q := range k.quotas { // a configuration without content enables a filter that is disabled
		r.TypedPerFilterConfig[names.QuotaID(q.domain, q.entry)] = pack(&route.FilterConfig{Config: &anypb.Any{}})
		r.TypedPerFilterConfig[names.CallsID(q.domain, q.entry)] = pack(&route.FilterConfig{Disabled: true})
	}
	if len(k.subs) == 0 {
		return r
	}
	parts := &route.WeightedCluster{}
	for _, s := range k.subs {
		parts.Clusters = append(parts.Clusters, &route.WeightedCluster_ClusterWeight{
			Name: to.GetCluster(), Weight: wrapperspb.UInt32(1),
			TypedPerFilterConfig: map[string]*anypb.Any{names.SpreadFilter: pack(setSub(s.Key))},
		})
	}
	to.ClusterSpecifier = &route.RouteAction_WeightedClusters{WeightedClusters: parts}
	return r
}

// setSub sets the sub-key that the ring hashes. Header values are formats, in which %% means %.
func setSub(key string) *headers.HeaderMutationPerRoute {
	return &headers.HeaderMutationPerRoute{Mutations: &headers.Mutations{RequestMutations: []*mutation.HeaderMutation{{
		Action: &mutation.HeaderMutation_Append{Append: &core.HeaderValueOption{
			Header:       &core.HeaderValue{Key: names.SubHeader, Value: strings.ReplaceAll(key, "%", "%%")},
			AppendAction: core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		}},
	}}}}
}

// capFilter refuses requests when the bucket is empty. Without a bucket it refuses none. Retry-After is a
// complete window, since Envoy does not know when the limit's own window ends.
func capFilter(bucket *typev3.TokenBucket) *local.LocalRateLimit {
	if bucket == nil {
		return &local.LocalRateLimit{StatPrefix: "keyward_cap"}
	}
	l := enforced(bucket.GetFillInterval().AsDuration())
	l.TokenBucket = bucket
	return l
}

// enforced returns a filter that denies requests, with the Retry-After of a window.
func enforced(window time.Duration) *local.LocalRateLimit {
	always := &core.RuntimeFractionalPercent{DefaultValue: &typev3.FractionalPercent{Numerator: 100}}
	return &local.LocalRateLimit{
		StatPrefix: "keyward_cap", FilterEnabled: always, FilterEnforced: always,
		ResponseHeadersToAdd: []*core.HeaderValueOption{{
			Header:       &core.HeaderValue{Key: "retry-after", Value: retryAfter(window)},
			AppendAction: core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		}},
	}
}

// retryAfter returns a duration in whole seconds, rounded up.
func retryAfter(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}

// addHotKeyFilters adds what the routes of hot keys need to a connection manager, in front of its filters.
func addHotKeyFilters(m *hcm.HttpConnectionManager) {
	m.EarlyHeaderMutationExtensions = []*core.TypedExtensionConfig{{
		Name: "keyward-strip",
		TypedConfig: pack(&early.HeaderMutation{Mutations: []*mutation.HeaderMutation{{
			Action: &mutation.HeaderMutation_Remove{Remove: names.SubHeader},
		}}}),
	}}
	m.HttpFilters = append([]*hcm.HttpFilter{
		{Name: names.CapFilter, ConfigType: &hcm.HttpFilter_TypedConfig{TypedConfig: pack(capFilter(nil))}},
		{Name: names.SpreadFilter, ConfigType: &hcm.HttpFilter_TypedConfig{TypedConfig: pack(&headers.HeaderMutation{})}},
	}, m.HttpFilters...)
}
