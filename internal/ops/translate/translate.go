// Package translate turns the rate-limit policies of gateways into rules of envoyproxy/ratelimit, and names what the
// rules cannot express.
package translate

import (
	"cmp"
	"maps"
	"slices"

	"github.com/keyward/keyward/internal/config"
)

// Options are the options of Translate. The zero value is useful.
type Options struct {
	// Actions adds the rate limits of Envoy to the rules, as comments.
	Actions bool
	// Domain replaces the domain of policies whose gateway has one for all of them: those of Contour, kgateway and Solo.
	Domain string
	// Limits are the limits of descriptors whose policies have none, by the key of the last entry. That of the empty key
	// is the default.
	Limits map[string]Amount
	// Reserve is the number of tokens that a request reserves with rules that count tokens. 0: they reserve nothing.
	Reserve uint32
	// Envoys is the number of Envoys for which local limits are translated, as one limit of all of them together. 0: local
	// limits are only named.
	Envoys uint32
}

// Units returns the units of limits.
func Units() []string {
	return []string{"second", "minute", "hour", "day", "week", "month", "year"}
}

// GatewayRules is the result of Translate.
type GatewayRules struct {
	Policies int                 `json:"policies"` // policies that were read
	Files    []RulesFile         `json:"files"`
	Findings []config.Diagnostic `json:"findings"` // in the order of the files
}

// RulesFile is the rules of one domain.
type RulesFile struct {
	Domain string `json:"domain"`
	YAML   string `json:"yaml"`
}

// Complete reports whether the rules express all of the policies. Notes do not count.
func (g *GatewayRules) Complete() bool {
	return !slices.ContainsFunc(g.Findings, func(d config.Diagnostic) bool { return d.Kind != Note })
}

// translation is the state of one call of Translate.
type translation struct {
	options  Options
	reader   reader
	objects  []*object
	topology *topology
	domains  []*domain
	policies int
	// descriptors is the number of descriptors in all domains.
	descriptors int
	pairs       int // see maxPairs
	// asked holds the last keys of descriptors whose policies have no amount.
	asked map[string]bool
}

// domain returns the rules of a domain.
func (t *translation) domain(name string) *domain {
	i := slices.IndexFunc(t.domains, func(d *domain) bool { return d.name == name })
	if i >= 0 {
		return t.domains[i]
	}
	d := &domain{all: t, name: name}
	t.domains = append(t.domains, d)
	return d
}

// Translate returns the rules of the policies in the files, which are YAML or JSON with Kubernetes resources. It reports
// every field that the rules do not express, in all files, and is deterministic.
func Translate(files []config.File, o Options) *GatewayRules {
	t := &translation{options: o}
	for _, f := range files {
		t.objects = append(t.objects, t.reader.readObjects(f)...)
	}
	t.checkObjects()
	t.topology = readTopology(t.objects)
	t.envoyGateway(t.objects)
	t.kuadrant(t.objects)
	t.contour(t.objects)
	t.kgateway(t.objects)
	t.solo(t.objects)
	for _, key := range slices.Sorted(maps.Keys(o.Limits)) {
		if key != "" && !t.asked[key] && len(files) > 0 {
			t.reader.add(config.Diagnostic{Kind: Missing, File: files[0].Name, Hint: "correct the key, or remove the option",
				Text: "--limit " + key + ": no descriptor without an amount ends with this key"})
		}
	}
	if t.reader.fields >= maxFields {
		t.reader.add(config.Diagnostic{Kind: Invalid, File: files[0].Name, Text: "the files have too many fields; the rest is not read"})
	}
	result := &GatewayRules{Policies: t.policies, Files: []RulesFile{}, Findings: append([]config.Diagnostic{}, t.reader.findings...)}
	slices.SortStableFunc(t.domains, func(a, b *domain) int { return cmp.Compare(a.name, b.name) })
	for _, d := range t.domains {
		if !d.empty() {
			result.Files = append(result.Files, RulesFile{Domain: d.name, YAML: d.yaml(o.Actions)})
		}
	}
	order := map[string]int{}
	for i, f := range files {
		order[f.Name] = i
	}
	slices.SortStableFunc(result.Findings, func(a, b config.Diagnostic) int {
		return cmp.Or(cmp.Compare(order[a.File], order[b.File]), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return result
}
