package xds

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	xdscore "github.com/cncf/xds/go/xds/core/v3"
	xdsmatcher "github.com/cncf/xds/go/xds/type/matcher/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	matching "github.com/envoyproxy/go-control-plane/envoy/extensions/common/matching/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	composite "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/composite/v3"
	headers "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	network "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/common_inputs/network/v3"
	fraction "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/input_matchers/runtime_fraction/v3"
	matcher "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/envoy/internal/names"
	"github.com/keyward/keyward/hotkey"
)

// maxCapDomains is the maximum number of domains that are remembered because they had caps.
const maxCapDomains = 1000

// CapsPrefix is the start of the name of a filter with caps. The domain follows.
const CapsPrefix = names.CapsFilter + "/"

// SpreadFilters returns the names of the filters that spread hot keys.
func SpreadFilters() []string { return []string{names.SpreadByHeader, names.SpreadByAddress} }

// filters returns the filters of Envoys with routes of their own: for each domain one that caps its hot keys, and one
// that spreads hot keys over their sub-keys for each source of keys. They are served also without hot keys, because an
// Envoy keeps the last configuration of a filter that is no longer served.
func (s *ServedState) filters(hot []hotKey) (list []types.Resource) {
	caps := map[string][]*ratelimit.LocalRateLimitDescriptor{}
	for _, d := range s.capDomains {
		caps[d] = nil
	}
	for _, r := range s.Rules {
		caps[r.GetDomain()] = nil
	}
	for domain, rows := range s.caps() {
		caps[domain] = rows
	}
	for _, domain := range slices.Sorted(maps.Keys(caps)) {
		list = append(list, extension(CapsPrefix+domain, capsFilter(caps[domain])))
	}
	byHeader, byAddress := map[string]*xdsmatcher.Matcher_OnMatch{}, map[string]*xdsmatcher.Matcher_OnMatch{}
	for i := range hot {
		switch k := &hot[i]; {
		case len(k.subs) == 0:
		case k.address:
			byAddress[k.owner] = spread(k.subs)
		default:
			byHeader[k.owner] = spread(k.subs)
		}
	}
	header := &matcher.HttpRequestHeaderMatchInput{HeaderName: s.RouteHeader}
	return append(list,
		extension(names.SpreadByHeader, spreadFilter(header, byHeader)),
		extension(names.SpreadByAddress, spreadFilter(&network.SourceIPInput{}, byAddress)))
}

// caps returns the descriptors of hot keys with a cap, by domain. Of several routes for one descriptor, which differ
// in their owner strings, the first counts.
func (s *ServedState) caps() map[string][]*ratelimit.LocalRateLimitDescriptor {
	caps, n := map[string][]*ratelimit.LocalRateLimitDescriptor{}, 0
	seen := map[string]bool{}
	said := s.sortedHot()
	for i := range said {
		r := &said[i]
		id := r.Domain
		row := &ratelimit.LocalRateLimitDescriptor{TokenBucket: bucketOf(r)}
		for _, e := range r.Entries {
			row.Entries = append(row.Entries, &ratelimit.RateLimitDescriptor_Entry{Key: e.Key, Value: e.Value})
			id += "\x00" + e.Key + "\x00" + e.Value
		}
		if row.TokenBucket == nil || len(row.Entries) == 0 || r.Validate() != nil || seen[id] || n == hotkey.MaxRoutes {
			continue
		}
		n++
		seen[id] = true
		caps[r.Domain] = append(caps[r.Domain], row)
	}
	for _, rows := range caps {
		slices.SortFunc(rows, func(a, b *ratelimit.LocalRateLimitDescriptor) int {
			return cmp.Compare(rowID(a), rowID(b))
		})
	}
	return caps
}

// rowID orders descriptors.
func rowID(d *ratelimit.LocalRateLimitDescriptor) string {
	var b strings.Builder
	for _, e := range d.GetEntries() {
		b.WriteString(e.GetKey() + "\x00" + e.GetValue() + "\x00")
	}
	return b.String()
}

// capsFilter denies requests whose descriptor has an empty bucket. The descriptors are those of the route. Retry-After
// is the shortest window, since Envoy has one value for all.
func capsFilter(rows []*ratelimit.LocalRateLimitDescriptor) proto.Message {
	if len(rows) == 0 {
		return capFilter(nil)
	}
	shortest := time.Duration(math.MaxInt64)
	for _, row := range rows {
		shortest = min(shortest, row.GetTokenBucket().GetFillInterval().AsDuration())
	}
	l := enforced(shortest)
	l.Descriptors = rows
	return l
}

// spreadFilter executes the match of the key that the input returns.
func spreadFilter(input proto.Message, keys map[string]*xdsmatcher.Matcher_OnMatch) proto.Message {
	m := &xdsmatcher.Matcher{}
	if len(keys) > 0 { // Envoy refuses an empty map
		m.MatcherType = &xdsmatcher.Matcher_MatcherTree_{MatcherTree: &xdsmatcher.Matcher_MatcherTree{
			Input: matchExtension("key", input),
			TreeType: &xdsmatcher.Matcher_MatcherTree_ExactMatchMap{
				ExactMatchMap: &xdsmatcher.Matcher_MatcherTree_MatchMap{Map: keys},
			},
		}}
	}
	return &matching.ExtensionWithMatcher{
		ExtensionConfig: &core.TypedExtensionConfig{Name: "composite", TypedConfig: pack(&composite.Composite{})},
		XdsMatcher:      m,
	}
}

// spread sets one of the sub-keys at random: the first for 1/n of the requests, the second for 1/(n-1) of the others,
// and so on. Each matcher hashes the request ID with a seed of its own, so that the choices are independent. Without a
// request ID it is always the last one.
func spread(subs []hotkey.SubKey) *xdsmatcher.Matcher_OnMatch {
	last := len(subs) - 1
	if last == 0 {
		return setSubAction(subs[0].Key)
	}
	list := &xdsmatcher.Matcher_MatcherList{}
	for i, s := range subs[:last] {
		list.Matchers = append(list.Matchers, &xdsmatcher.Matcher_MatcherList_FieldMatcher{
			Predicate: oneIn(len(subs)-i, uint64(i+1)), OnMatch: setSubAction(s.Key),
		})
	}
	return &xdsmatcher.Matcher_OnMatch{OnMatch: &xdsmatcher.Matcher_OnMatch_Matcher{Matcher: &xdsmatcher.Matcher{
		MatcherType: &xdsmatcher.Matcher_MatcherList_{MatcherList: list}, OnNoMatch: setSubAction(subs[last].Key),
	}}}
}

// oneIn matches one in n requests.
func oneIn(n int, seed uint64) *xdsmatcher.Matcher_MatcherList_Predicate {
	const million = 1_000_000
	part := &typev3.FractionalPercent{Numerator: uint32(million / n), Denominator: typev3.FractionalPercent_MILLION}
	share := &fraction.RuntimeFraction{Seed: seed, RuntimeFraction: &core.RuntimeFractionalPercent{DefaultValue: part}}
	return &xdsmatcher.Matcher_MatcherList_Predicate{
		MatchType: &xdsmatcher.Matcher_MatcherList_Predicate_SinglePredicate_{
			SinglePredicate: &xdsmatcher.Matcher_MatcherList_Predicate_SinglePredicate{
				Input: matchExtension("request", &matcher.HttpRequestHeaderMatchInput{HeaderName: "x-request-id"}),
				Matcher: &xdsmatcher.Matcher_MatcherList_Predicate_SinglePredicate_CustomMatch{
					CustomMatch: matchExtension("share", share),
				},
			},
		},
	}
}

// setSubAction executes a filter that sets the sub-key.
func setSubAction(key string) *xdsmatcher.Matcher_OnMatch {
	set := &headers.HeaderMutation{Mutations: setSub(key).GetMutations()}
	return &xdsmatcher.Matcher_OnMatch{OnMatch: &xdsmatcher.Matcher_OnMatch_Action{
		Action: matchExtension("set", &composite.ExecuteFilterAction{
			TypedConfig: &core.TypedExtensionConfig{Name: "set", TypedConfig: pack(set)},
		}),
	}}
}

func matchExtension(name string, m proto.Message) *xdscore.TypedExtensionConfig {
	return &xdscore.TypedExtensionConfig{Name: name, TypedConfig: pack(m)}
}

func extension(name string, m proto.Message) *core.TypedExtensionConfig {
	return &core.TypedExtensionConfig{Name: name, TypedConfig: pack(m)}
}
