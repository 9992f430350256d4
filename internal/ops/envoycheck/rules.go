package envoycheck

import (
	"slices"
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v3"

	"github.com/keyward/keyward/internal/config"
)

// counter is a filter that counts requests.
type counter struct {
	name   field
	domain string
	ids    [][]string // keys of the buckets, in the descriptor's order if that is known; of quota filters
}

// chain checks the filters of a connection manager: a request counts in one limit once.
func (c *checker) chain(m message) {
	var quotas, calls []counter
	var descriptors []*yaml.Node
	for _, n := range m.list("httpfilters") {
		f := messageOf(n)
		if f.text("disabled") == "true" {
			continue
		}
		kind, fields := f.at("typedconfig").typed()
		of := counter{name: f["name"], domain: fields.text("domain")}
		switch kind {
		case "RateLimitQuotaFilterConfig":
			of.ids = buckets(fields["bucketmatchers"].value)
			quotas = append(quotas, of)
		case "RateLimit":
			calls = append(calls, of)
			descriptors = append(descriptors, fields.list("ratelimits")...)
		}
	}
	if len(quotas) == 0 {
		return
	}
	for _, of := range append(quotas[1:len(quotas):len(quotas)], calls...) {
		c.warn(SeveralRules, of.name.key, "if both refuse many requests, use calls for both", "another filter counts the same requests: what a quota filter "+
			"has admitted stays spent if a later filter refuses")
	}
	descriptors = append(descriptors, routes(m["routeconfig"].value)...)
	for _, n := range descriptors {
		keys, at := descriptor(messageOf(n))
		if slices.ContainsFunc(quotas, func(q counter) bool { return q.spends(keys) }) && slices.ContainsFunc(calls, func(x counter) bool {
			return slices.ContainsFunc(quotas, func(q counter) bool { return q.domain == x.domain && q.spends(keys) })
		}) {
			c.fault(CountedTwice, at, "remove the rate limit action, or the bucket", "the quota filter spends the limit of %s, and this action calls "+
				"for it as well: each request counts twice", strings.Join(keys, ", "))
		}
	}
}

// spends reports whether the filter has a bucket of that descriptor.
func (q *counter) spends(keys []string) bool {
	return len(keys) > 0 && slices.ContainsFunc(q.ids, func(id []string) bool { return sameID(id, keys) })
}

// sameID reports whether a bucket id is of a descriptor with these keys. Without positions, the order is not known.
func sameID(id, keys []string) bool {
	ordered, hasOrder := arrange(id)
	if hasOrder {
		return slices.Equal(ordered, keys)
	}
	return slices.Equal(slices.Sorted(slices.Values(id)), slices.Sorted(slices.Values(keys)))
}

// arrange returns the keys of an id in the order of their positions, as in 0.api_key, without these.
func arrange(id []string) (keys []string, hasOrder bool) {
	keys = make([]string, len(id))
	for _, name := range id {
		at, key, found := strings.Cut(name, ".")
		i, err := strconv.Atoi(at)
		if !found || err != nil || i < 0 || i >= len(id) || keys[i] != "" {
			return nil, false
		}
		keys[i] = key
	}
	return keys, true
}

// buckets finds the ids of all bucket settings in a matcher.
func buckets(n *yaml.Node) (ids [][]string) {
	each(n, func(n *yaml.Node) bool {
		kind, fields := messageOf(n).typed()
		if kind == "RateLimitQuotaBucketSettings" {
			ids = append(ids, names(fields.at("bucketidbuilder")["bucketidbuilder"].value))
		}
		return kind != "RateLimitQuotaBucketSettings"
	})
	return ids
}

// names returns the keys of a mapping as they are written.
func names(n *yaml.Node) (all []string) {
	if n = resolve(n); n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i < len(n.Content); i += 2 {
		all = append(all, n.Content[i].Value)
	}
	return all
}

// routes finds the rate limit actions of routes and virtual hosts.
func routes(n *yaml.Node) (all []*yaml.Node) {
	each(n, func(n *yaml.Node) bool {
		all = append(all, messageOf(n).list("ratelimits")...)
		return true
	})
	return all
}

// defaultKeys are the keys of actions that need not name one.
var defaultKeys = map[string]string{
	"remoteaddress": "remote_address", "maskedremoteaddress": "masked_remote_address", "generickey": "generic_key",
	"headervaluematch": "header_match", "queryparametervaluematch": "query_match", "sourcecluster": "source_cluster",
	"destinationcluster": "destination_cluster", "requestheaders": "", "queryparameters": "", "metadata": "", "dynamicmetadata": "",
}

// descriptor returns the keys of the descriptor that actions make, or nil if they are not known, and its position.
func descriptor(m message) (keys []string, at *yaml.Node) {
	at = m["actions"].key
	for _, n := range m.list("actions") {
		for name, f := range messageOf(n) {
			key, known := defaultKeys[name]
			if given := messageOf(f.value).text("descriptorkey"); given != "" {
				key = given
			}
			if !known || key == "" {
				return nil, at
			}
			keys = append(keys, key)
		}
	}
	return keys, at
}

// costs checks a rate limit action that charges more or less than 1, for a limit that Envoys spend.
func (c *checker) costs(m message) {
	f, found := m["hitsaddend"]
	if !found || c.rules == nil {
		return
	}
	keys, _ := descriptor(m)
	for _, r := range c.rules.Rules() {
		if r.Extension.Quota != nil && slices.Equal(levelKeys(r), keys) {
			what := "costs"
			if messageOf(f.value).text("isnegativehits") == "true" {
				what = "refunds"
			}
			c.fault(Costs, f.key, "use mechanism: owner or lease", "%s cannot be charged to %s, which has mechanism: quota: Envoys that spend its limit count each "+
				"request as 1, and give nothing back", what, r.FullKey)
			return
		}
	}
}

// fits warns about a bucket id without a limit that can be assigned.
func (c *checker) fits(id field) {
	keys := names(id.value)
	if c.rules == nil || len(keys) == 0 || c.domain == "" {
		return
	}
	var paths [][]string
	assigned := false
	for _, r := range c.rules.Rules() {
		if path := levelKeys(r); r.Domain == c.domain && sameID(keys, path) {
			assigned = assigned || r.Extension.Quota != nil || r.Unlimited
			if !slices.ContainsFunc(paths, func(p []string) bool { return slices.Equal(p, path) }) {
				paths = append(paths, path)
			}
		}
	}
	all := strings.Join(keys, ", ")
	switch {
	case len(paths) == 0:
		c.warn(NoRule, id.key, "", "no rule of domain %s has the descriptor of this bucket (%s): its requests are admitted without a limit", c.domain, all)
	case len(paths) > 1:
		c.warn(NoRule, id.key, "write the keys with their positions, as 0.a and 1.b", "several rules of domain %s have descriptors with the keys of this "+
			"bucket (%s), in different orders: its requests are admitted without a limit", c.domain, all)
	case !assigned:
		c.warn(NoRule, id.key, "set mechanism: quota", "the rule of this bucket (%s) has no mechanism: quota: it gets no assignment", all)
	}
}

// levelKeys returns the keys of a rule's descriptor.
func levelKeys(r *config.RuleSpec) []string {
	keys := make([]string, len(r.Levels))
	for i := range r.Levels {
		keys[i] = r.Levels[i].Key
	}
	return keys
}
