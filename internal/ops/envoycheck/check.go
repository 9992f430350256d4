// Package envoycheck checks Envoy's configuration files for what its rate limit quota filter (RLQS) cannot do or does
// wrong: fields that end Envoy, that it ignores or rejects, and requests that count twice.
package envoycheck

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	yaml "go.yaml.in/yaml/v3"

	"github.com/keyward/keyward/internal/config"
)

// The kinds of findings.
const (
	BadFile      = "envoy-yaml"           // fault: the file is not valid YAML or JSON
	EndsEnvoy    = "envoy-crash"          // fault: Envoy ends, or refuses what it should admit
	Ignored      = "envoy-ignored"        // fault: Envoy ignores the field
	Rejected     = "envoy-rejected"       // fault: Envoy rejects the configuration
	Unbounded    = "envoy-unbounded"      // fault: everything is admitted while the sidecar is away
	CountedTwice = "envoy-counted-twice"  // fault: a request counts twice in one limit
	Costs        = "envoy-costs"          // fault: requests with costs, of a limit that counts requests
	SeveralRules = "envoy-several-limits" // warning: a request counts in several limits
	NoRule       = "envoy-no-rule"        // warning: a bucket id without a limit
)

// Findings are what was found. Faults must be corrected; warnings may be intended.
type Findings struct{ Faults, Warnings []config.Diagnostic }

// Check checks files with Envoy's configuration: bootstraps, resources of xDS, and manifests that contain them, as YAML or
// JSON. rules are those of the members; nil: what depends on them is not checked. It reports all findings of all files.
func Check(files []config.File, rules *config.Rules) Findings {
	c := checker{rules: rules}
	for _, f := range files {
		c.file, c.offset = f.Name, 0
		c.content(f.Content)
	}
	return c.Findings
}

type checker struct {
	Findings
	rules  *config.Rules
	file   string
	offset int    // lines before the text that is being checked
	domain string // of the filter that is being checked
	nodes  int    // visited in the document
	depth  int    // of the node that is being checked
}

// content checks the documents of a text.
func (c *checker) content(text []byte) {
	d := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var doc yaml.Node
		err := d.Decode(&doc)
		switch {
		case errors.Is(err, io.EOF):
			return
		case err != nil:
			c.Faults = append(c.Faults, config.Diagnostic{Kind: BadFile, File: c.file, Text: err.Error()})
			return
		}
		c.nodes, c.depth = 0, 0
		c.walk(&doc)
	}
}

// walk checks a node and everything in it.
func (c *checker) walk(n *yaml.Node) {
	if n = resolve(n); n == nil || c.nodes > maxNodes || c.depth > maxDepth {
		return
	}
	c.nodes++
	c.depth++
	defer func() { c.depth-- }()
	switch n.Kind {
	case yaml.ScalarNode:
		c.embedded(n)
	case yaml.MappingNode:
		m := messageOf(n)
		domain := c.domain
		c.message(m)
		for i := 1; i < len(n.Content); i += 2 {
			c.walk(n.Content[i])
		}
		c.domain = domain
	default:
		for _, e := range n.Content {
			c.walk(e)
		}
	}
}

// embedded checks a configuration within a block of text, such as one in a ConfigMap.
func (c *checker) embedded(n *yaml.Node) {
	if n.Style&yaml.LiteralStyle == 0 || !strings.Contains(n.Value, "RateLimitQuota") {
		return
	}
	inner := checker{rules: c.rules, file: c.file, offset: c.offset + n.Line}
	inner.content([]byte(n.Value))
	c.Faults, c.Warnings = append(c.Faults, inner.Faults...), append(c.Warnings, inner.Warnings...)
}

// message checks one message.
func (c *checker) message(m message) {
	kind, fields := m.typed()
	switch kind {
	case "RateLimitQuotaFilterConfig":
		c.filter(fields)
	case "RateLimitQuotaBucketSettings":
		c.bucket(fields)
	case "RateLimitQuotaOverride":
		c.fault(Rejected, m["@type"].key, "use envoy.config.route.v3.FilterConfig: {config: {}} enables a filter that is disabled in the chain, disabled: true "+
			"disables it", "Envoy rejects RateLimitQuotaOverride")
	}
	for name, f := range m.at("typedperfilterconfig") {
		c.perRoute(name, messageOf(f.value))
	}
	if m["httpfilters"].value != nil {
		c.chain(m)
	}
	for _, n := range m.list("ratelimits") {
		c.costs(messageOf(n))
	}
}

// filter checks the configuration of a quota filter.
func (c *checker) filter(m message) {
	c.domain = m.text("domain")
	for _, name := range []string{"filterenabled", "filterenforced"} {
		if f, found := m[name]; found {
			c.fault(Ignored, f.key, "remove it; to switch the filter, use disabled: true in the chain and a FilterConfig for the route",
				"Envoy ignores %s: the filter decides every request", f.key.Value)
		}
	}
	c.preview(m["bucketmatchers"].value)
}

// preview finds matchers that go on.
func (c *checker) preview(n *yaml.Node) {
	each(n, func(n *yaml.Node) bool {
		if f, found := messageOf(n)["keepmatching"]; found && f.value.Value == "true" {
			c.fault(EndsEnvoy, f.key, "remove it", "%s ends Envoy 1.36 with the first request; later versions refuse requests of such a bucket, which "+
				"should only be counted", f.key.Value)
		}
		return true
	})
}

// bucket checks the settings of a bucket.
func (c *checker) bucket(m message) {
	first := m.at("noassignmentbehavior").at("fallbackratelimit")
	for name, f := range first {
		if name != "blanketrule" {
			c.fault(EndsEnvoy, f.key, "use blanket_rule: DENY_ALL or ALLOW_ALL", "%s as the behavior without an assignment ends Envoy with the second "+
				"request of a bucket", f.key.Value)
		}
	}
	expired := m.at("expiredassignmentbehavior")
	if f, found := expired["reuselastassignment"]; found {
		c.fault(Ignored, f.key, "use fallback_rate_limit", "Envoy ignores %s: no_assignment_behavior follows an expired assignment at once", f.key.Value)
	}
	fallback := expired.at("fallbackratelimit")
	if f, found := fallback["requestspertimeunit"]; found {
		c.fault(Ignored, f.key, "use token_bucket", "Envoy ignores %s", f.key.Value)
	}
	lasts := fallback != nil && positive(expired.text("expiredassignmentbehaviortimeout"))
	switch admits := admitsAll(first); {
	case admits && !lasts:
		c.fault(Unbounded, m["@type"].or(m, "bucketidbuilder"), "set expired_assignment_behavior with fallback_rate_limit and a timeout of years, as keyward "+
			"envoy-config prints it", "without an assignment, requests are admitted, and no expired_assignment_behavior with a timeout replaces that: Envoy "+
			"admits everything while the sidecar is away")
	case fallback != nil && !lasts:
		c.warn(Ignored, expired["fallbackratelimit"].key, "set expired_assignment_behavior_timeout", "without expired_assignment_behavior_timeout, "+
			"no_assignment_behavior follows an expired assignment at once")
	}
	c.fits(m.at("bucketidbuilder")["bucketidbuilder"])
}

// or returns the field's key, or that of another field.
func (f field) or(m message, name string) *yaml.Node {
	if f.key != nil {
		return f.key
	}
	return m[name].key
}

// admitsAll reports whether a strategy, or none, admits everything.
func admitsAll(strategy message) bool {
	for name := range strategy {
		if name != "blanketrule" {
			return false // it has been reported
		}
	}
	rule := strategy.text("blanketrule")
	return rule == "" || rule == "ALLOW_ALL" || rule == "0"
}

// positive reports whether a duration of Envoy's JSON is more than 0.
func positive(duration string) bool { return strings.Trim(duration, "0.s") != "" }

// perRoute checks the configuration of a filter for a route.
func (c *checker) perRoute(name string, m message) {
	kind, fields := m.typed()
	f, found := fields["disabled"]
	if kind == "FilterConfig" && strings.Contains(name, "ratelimitquota") && found && f.value.Value == "false" && fields["config"].value == nil {
		c.fault(Rejected, f.key, "write config: {}", "Envoy rejects a FilterConfig with disabled: false")
	}
}

func (c *checker) fault(kind string, at *yaml.Node, hint, format string, args ...any) {
	c.Faults = append(c.Faults, c.finding(kind, at, hint, fmt.Sprintf(format, args...)))
}

func (c *checker) warn(kind string, at *yaml.Node, hint, format string, args ...any) {
	c.Warnings = append(c.Warnings, c.finding(kind, at, hint, fmt.Sprintf(format, args...)))
}

func (c *checker) finding(kind string, at *yaml.Node, hint, text string) config.Diagnostic {
	d := config.Diagnostic{Kind: kind, File: c.file, Text: text, Hint: hint}
	if at != nil {
		d.Line = at.Line + c.offset
		if d.Column = at.Column; c.offset > 0 {
			d.Column = 0 // of the embedded text
		}
	}
	return d
}
