package snippet

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/keyward/keyward/envoy/internal/names"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/policy"
)

// quotaFilter is a rate limit quota filter: it takes the hits of one descriptor from parts of limits that the sidecar
// assigns to this Envoy. A filter has one descriptor, because Envoy assigns a request to one bucket of a filter, and each
// descriptor of a request counts.
type quotaFilter struct {
	Domain  string
	Name    string   // of the filter
	Rules   []string // whose hits it takes
	Buckets []quotaBucket
	Off     bool // only routes of hot keys enable it
}

// quotaBucket is the bucket of a filter for the requests of one rule.
type quotaBucket struct {
	Rule       string       // for a comment
	Entries    []quotaEntry // of the id
	Conditions []string     // all of which a request of the rule meets; none: each request does
	First      string       // what happens to requests before the first assignment: DENY_ALL or ALLOW_ALL
	Expired    string       // strategy after an assignment has expired, a YAML flow mapping without braces
}

// quotaEntry is an entry of a bucket's id.
type quotaEntry struct {
	Key   string // with its position in the descriptor
	Value string // YAML flow mapping without braces
}

// quotaRules are the rules of one descriptor.
type quotaRules struct {
	id      string // descriptorID
	sources []source
	rules   []*config.RuleSpec
}

// planQuotas plans the filters of the rules with mechanism: quota.
func (g *generator) planQuotas() (faults []error) {
	if !g.quotas {
		return nil
	}
	if g.HotECDS || g.Caps || g.Routed {
		faults = append(faults, errors.New("shape rlqs has no --hot-filters, --caps and --routed"))
	}
	if g.minor < 40 {
		g.warn("Envoy marks its rate limit quota filter as work in progress before 1.40")
	}
	if g.Rules == nil {
		return append(faults, errors.New("shape rlqs needs the rules"))
	}
	faults = append(faults, g.quotaConflicts()...)
	for _, name := range g.Rules.Domains() {
		for _, q := range g.quotasOf(name) {
			f, err := g.quotaFilter(name, q)
			if err != nil {
				faults = append(faults, err)
				continue
			}
			switch {
			case f.Off:
			case len(g.Quotas) > 0:
				f.Name += "/" + strconv.Itoa(len(g.Quotas)+1)
			}
			g.Quotas = append(g.Quotas, f)
		}
	}
	if len(g.Quotas) == 0 && len(faults) == 0 && !g.secrets() && g.Part != partCluster {
		faults = g.noQuotas()
	}
	return faults
}

// noQuotas returns why there is no filter: Envoy cannot find the values of the rules, or none of them has such a limit.
func (g *generator) noQuotas() (faults []error) {
	for _, r := range g.Rules.Rules() {
		if !g.isQuota(r) && (!g.HotRoutes || r.Extension.Quota == nil) {
			continue
		}
		if _, err := g.levels(r); err != nil {
			faults = append(faults, err)
		}
	}
	if len(faults) == 0 {
		faults = append(faults, errors.New("shape rlqs: no rule has metadata.keyward: {mechanism: quota}, or {hot_step: quota} with --hot-routes"))
	}
	return faults
}

// isQuota reports whether the hits of r are taken by a quota filter at all times.
func (g *generator) isQuota(r *config.RuleSpec) bool {
	return g.quotas && r.Extension.Quota.Always()
}

// isHotQuota reports whether they are taken by one while the key is hot: a route from xDS can then match the requests.
func (g *generator) isHotQuota(r *config.RuleSpec, sources []source) bool {
	q := r.Extension.Quota
	return g.quotas && g.HotRoutes && q != nil && q.OnlyHot && len(sources) == 1 && sources[0].kind == header
}

// sharesHotQuota reports whether r has the descriptor of a rule with isHotQuota. One call then counts both: in two calls,
// each would match the descriptor.
func (g *generator) sharesHotQuota(r *config.RuleSpec, sources []source) bool {
	if !g.quotas || !g.HotRoutes || len(sources) != 1 {
		return false
	}
	return slices.ContainsFunc(g.Rules.Rules(), func(o *config.RuleSpec) bool {
		if o.Domain != r.Domain || len(o.Levels) != 1 || o.Levels[0].Key != r.Levels[0].Key {
			return false
		}
		of, err := g.levels(o)
		return err == nil && g.isHotQuota(o, of) && of[0].same(sources[0])
	})
}

// planHotQuotas splits each domain: a descriptor whose hits a quota filter can take has a filter of its own for calls,
// which the route of a hot key disables.
func (g *generator) planHotQuotas(name string) (all []domain) {
	if !g.quotas || !g.HotRoutes {
		return nil
	}
	for _, r := range g.Rules.Rules() {
		if r.Domain != name {
			continue
		}
		sources, err := g.levels(r)
		if err != nil {
			continue // planDomain warns
		}
		only := r.Extension.Quota != nil && r.Extension.Quota.OnlyHot
		switch {
		case g.sharesHotQuota(r, sources):
		case !only:
			continue
		default:
			g.warn("domain %s: %s stays with calls when its keys are hot: a route can match one header, and the descriptor has more or other entries",
				name, r.FullKey)
			continue
		}
		filter := names.CallsID(name, r.Levels[0].Key)
		at := slices.IndexFunc(all, func(d domain) bool { return d.Filter == filter })
		if at < 0 {
			at, all = len(all), append(all, domain{Name: name, Filter: filter, Header: sources[0].Name})
		}
		all[at].add(r, sources)
	}
	return all
}

// quotasOf groups the rules of a domain by the descriptors that they are for.
func (g *generator) quotasOf(domain string) (all []quotaRules) {
	for _, r := range g.Rules.Rules() {
		if r.Domain != domain || r.Extension.Quota == nil {
			continue
		}
		sources, err := g.levels(r)
		if err != nil {
			g.warn("%v", err)
			continue
		}
		if !g.isQuota(r) && !g.isHotQuota(r, sources) {
			continue
		}
		id := descriptorID(r, sources)
		i := slices.IndexFunc(all, func(q quotaRules) bool {
			return q.id == id && q.rules[0].Extension.Quota.OnlyHot == r.Extension.Quota.OnlyHot
		})
		if i < 0 {
			i = len(all)
			all = append(all, quotaRules{id: id, sources: sources})
		}
		all[i].rules = append(all[i].rules, r)
	}
	return all
}

func (g *generator) quotaFilter(domain string, q quotaRules) (f quotaFilter, err error) {
	f = quotaFilter{Domain: domain, Name: "envoy.filters.http.rate_limit_quota", Rules: keysOf(q.rules)}
	if q.rules[0].Extension.Quota.OnlyHot {
		f.Off, f.Name = true, names.QuotaID(domain, q.rules[0].Levels[0].Key)
	}
	var entries []quotaEntry
	for i, s := range q.sources {
		e := quotaEntry{Key: fmt.Sprintf("%d.%s", i, q.rules[0].Levels[i].Key)}
		if s.kind == constant {
			e.Value = "string_value: " + quote(s.Name)
		} else if input := s.input(); input == "" {
			return f, fmt.Errorf("domain %s: a bucket of %s cannot have %s: want a header, a query parameter, remote_address or a fixed value",
				domain, q.rules[0].FullKey, q.rules[0].Levels[i].Key)
		} else {
			e.Value = "custom_value: {" + input + "}"
		}
		entries = append(entries, e)
	}
	for _, r := range q.rules {
		conditions, reached := g.quotaConditions(r, q.sources)
		if !reached {
			g.warn("domain %s: %s is never applied: the value is always that of another rule", domain, r.FullKey)
			continue
		}
		first := denied
		if r.Shadow || r.Unlimited || r.Extension.Quota.First == config.FirstAllow {
			first = admitted
		}
		f.Buckets = append(f.Buckets, quotaBucket{Rule: comment([]string{r.FullKey}), Entries: entries, Conditions: conditions, First: first, Expired: g.expired(r)})
	}
	if len(f.Buckets) == 0 {
		return f, fmt.Errorf("domain %s: %s: Envoy always sends the value of another rule, so none of these is ever applied", domain, comment(f.Rules))
	}
	return f, nil
}

// input returns the input of a matcher that reads the source's value, as a YAML flow mapping without braces, or "" if
// Envoy has none.
func (s source) input() string {
	typed := func(name, fields string) string {
		return fmt.Sprintf(`name: %s, typed_config: {"@type": type.googleapis.com/%s%s}`, name, s.inputType(), fields)
	}
	switch s.kind {
	case header:
		return typed("header", ", header_name: "+quote(s.Name))
	case query:
		return typed("query", ", query_param: "+quote(s.Name))
	case remoteAddress:
		return typed("address", "")
	}
	return ""
}

func (s source) inputType() string {
	switch s.kind {
	case header:
		return "envoy.type.matcher.v3.HttpRequestHeaderMatchInput"
	case query:
		return "envoy.type.matcher.v3.HttpRequestQueryParamMatchInput"
	}
	return "envoy.extensions.matching.common_inputs.network.v3.SourceIPInput"
}

// expired returns the strategy of an Envoy whose sidecar is away and whose assignment has expired: what the rule's
// degraded policy says, for as long as that lasts.
func (g *generator) expired(r *config.RuleSpec) string {
	all, share := r.QuotaExpired()
	switch {
	case all || r.Shadow || r.Unlimited:
		return "blanket_rule: " + admitted
	case r.Extension.Degraded == policy.FailClosed:
		return "blanket_rule: " + denied
	case share == 0:
		g.warn("domain %s: %s is refused while the sidecar is away: degraded: local_share needs envoys", r.Domain, r.FullKey)
		return "blanket_rule: " + denied
	}
	return fmt.Sprintf("token_bucket: {max_tokens: %d, tokens_per_fill: %d, fill_interval: %s}", share, share, seconds(r.Limit.Window))
}

// The strategies of Envoy for all requests of a bucket.
const (
	denied   = "DENY_ALL"
	admitted = "ALLOW_ALL"
)

func keysOf(rules []*config.RuleSpec) (keys []string) {
	for _, r := range rules {
		keys = append(keys, r.FullKey)
	}
	return keys
}

// Unconditional reports whether each request has the filter's bucket.
func (f quotaFilter) Unconditional() bool { return len(f.Buckets[0].Conditions) == 0 }
