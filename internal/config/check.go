package config

import (
	"fmt"
)

// CheckResult is the result of Check.
type CheckResult struct {
	Rules  *Rules       // nil if there are faults
	Faults []Diagnostic // the one that envoyproxy/ratelimit would report is first
}

// Check loads files and returns all faults: first those in the YAML of all files, then those in the rules, then those
// in Keyward's keys under metadata.keyward.
func Check(files []File, o Options) CheckResult {
	var faults []Diagnostic
	var sources []source
	for _, f := range files {
		s, bad := parse(f)
		faults = append(faults, bad...)
		if len(bad) == 0 {
			sources = append(sources, s)
		}
	}
	return build(sources, o, faults)
}

// build turns sources into rules. faults are those of the files that could not be parsed.
func build(sources []source, o Options, faults []Diagnostic) CheckResult {
	b := builder{rules: newRules(o), merge: o.MergeDomains, room: maxText, faults: faults}
	return b.build(sources)
}

func (b *builder) build(sources []source) CheckResult {
	for _, s := range sources {
		b.source(s)
	}
	b.faults = append(b.faults, b.extensionFaults...)
	if len(b.faults) > 0 {
		return CheckResult{Faults: b.faults}
	}
	b.rules.hash = b.rules.digestAll()
	return CheckResult{Rules: b.rules}
}

// Limits for hostile files, in which aliases repeat a long text many times.
const (
	maxNesting = 1000
	maxText    = 256 << 20 // bytes of all full keys together
)

// builder turns sources into rules.
type builder struct {
	rules           *Rules
	file            string
	merge           bool
	room            int // bytes of full keys still allowed
	faults          []Diagnostic
	extensionFaults []Diagnostic // in metadata.keyward: reported last, since envoyproxy/ratelimit would load the file
}

func (b *builder) fault(at position, format string, args ...any) {
	b.hinted("", at, format, args...)
}

func (b *builder) hinted(hint string, at position, format string, args ...any) {
	b.faults = append(b.faults,
		Diagnostic{Kind: BadRules, File: b.file, Line: at.line(), Column: at.column(), Text: fmt.Sprintf(format, args...), Hint: hint})
}

func (b *builder) source(s source) {
	b.file = s.name
	name := s.root.Domain
	if name == "" {
		b.fault(s.at, "config file cannot have empty domain")
		return
	}
	if b.rules.domains[name] != nil && !b.merge {
		b.fault(s.at.get("domain"), "duplicate domain '%s' in config file", name)
		return
	}
	d := b.rules.domain(name)
	up := ancestry{domain: name, text: name}
	b.descriptors(&d.node, up, s.root.Descriptors, s.at.get("descriptors"))
}

// ancestry is the path from the domain to a level.
type ancestry struct {
	domain string
	text   string // domain and levels joined by dots
	path   []*node
}

func (b *builder) descriptors(parent *node, up ancestry, list []yamlDescriptor, at position) {
	if len(up.path) >= maxNesting && len(list) > 0 {
		b.fault(at, "descriptors are nested deeper than %d levels", maxNesting)
		return
	}
	for i := range list {
		b.descriptor(parent, up, &list[i], at.index(i))
	}
}

func (b *builder) descriptor(parent *node, up ancestry, y *yamlDescriptor, at position) {
	if y.Key == "" {
		b.fault(at, "descriptor has empty key")
		return
	}
	n := newNode(y)
	n.file, n.line, n.column = b.file, at.line(), at.column()
	full := up.text + "." + n.glued
	if b.room -= len(full); b.room < 0 {
		if b.room+len(full) >= 0 {
			b.fault(at, "the keys of all descriptors together are too long")
		}
		return
	}
	duplicate := parent.children[n.glued] != nil
	if duplicate {
		b.fault(at, "duplicate descriptor composite key '%s'", full)
	}
	// Clip the capacity, so that siblings do not share the backing array.
	down := ancestry{up.domain, full, append(up.path[:len(up.path):len(up.path)], n)}
	if y.RateLimit != nil {
		n.rule = b.rule(down, y, at)
	}
	if y.ShareThreshold && n.pattern == nil {
		b.fault(at, "share_threshold can only be used with wildcard values (containing '*'), but found key '%s'", n.glued)
	}
	b.metadata(n, down, y.Metadata, at)
	if n.rule != nil {
		b.finish(n.rule, n, down)
	}
	if !duplicate {
		parent.add(n)
	}
	b.descriptors(n, down, y.Descriptors, at.get("descriptors"))
}

func newNode(y *yamlDescriptor) *node {
	glued := y.Key
	if y.Value != "" {
		glued += "_" + y.Value
	}
	n := &node{
		glued: glued, pattern: newPattern(glued),
		shadow: y.ShadowMode, quota: y.QuotaMode, detailed: y.DetailedMetric,
	}
	n.level = Level{
		Key: y.Key, Value: y.Value,
		Variable:      y.Value == "" || n.pattern != nil,
		Shared:        y.ShareThreshold,
		ValueToMetric: y.ValueToMetric,
	}
	return n
}

func (n *node) add(child *node) {
	if n.children == nil {
		n.children = map[string]*node{}
	}
	n.children[child.glued] = child
	n.list = append(n.list, child)
	if child.pattern != nil {
		n.wild.add(child)
	}
}

// rule builds the rule of a descriptor with a rate_limit.
func (b *builder) rule(down ancestry, y *yamlDescriptor, at position) *RuleSpec {
	l := y.RateLimit
	unit := unitOf(l.Unit)
	switch {
	case l.Unlimited && unit != UnitUnknown:
		b.fault(at.get("rate_limit"), "should not specify rate limit unit when unlimited")
	case !l.Unlimited && unit == UnitUnknown:
		limit := at.get("rate_limit")
		b.hinted(hintUnit(l.Unit), limit.get("unit").or(limit), "invalid rate limit unit '%s'", l.Unit)
	}
	r := &RuleSpec{
		Domain: down.domain, FullKey: down.text, Name: l.Name, File: b.file, Line: at.line(), Column: at.column(),
		Unit: unit, Unlimited: l.Unlimited, Shadow: y.ShadowMode, Quota: y.QuotaMode, DetailedMetric: y.DetailedMetric,
	}
	r.Limit.Limit, r.Limit.Window = l.RequestsPerUnit, unit.Window()
	for i, e := range l.Replaces {
		where := at.get("rate_limit").get("replaces").index(i)
		switch e.Name {
		case "":
			b.fault(where, "should not have an empty replaces entry")
		case l.Name:
			b.fault(where, "replaces should not contain name of same descriptor")
		}
		r.Replaces = append(r.Replaces, e.Name)
	}
	return r
}

// metadata reads the metadata of a descriptor and the extension in it.
func (b *builder) metadata(n *node, down ancestry, raw map[string]interface{}, at position) {
	own := plainMap(raw)
	plain, taken := b.rules.defaults.complete(n.rule, own)
	all, err := newMetadata(plain)
	if err != nil {
		b.fault(at.get("metadata"), "error parsing metadata: %s", err)
		return
	}
	n.metadata = all
	extension, bad := parseExtension(plain, down.path)
	if n.rule != nil && len(bad) == 0 {
		bad = n.rule.extend(extension, b.rules)
		n.rule.Metadata = withoutExtension(all)
	}
	if len(taken) > 0 {
		bad = blameDefaults(bad, down, taken, own)
	}
	for _, f := range bad {
		where := at.get("metadata").get(metadataKey)
		where = where.keyOf(f.key).or(where).or(at)
		b.extensionFaults = append(b.extensionFaults, Diagnostic{
			File: b.file, Line: where.line(), Column: where.column(), Hint: f.hint, Kind: BadExtension,
			Text: fmt.Sprintf("error in metadata.%s of '%s': %s", metadataKey, down.text, f.text),
		})
	}
}

// extend applies x. Most of it has no effect on an unlimited rule.
func (r *RuleSpec) extend(x Extension, of *Rules) (faults []extensionFault) {
	r.Extension = x
	if r.Unlimited {
		if key, text := r.holdFault(); key != "" {
			faults = append(faults, extensionFault{key: key, text: text})
		}
		return faults
	}
	if fault := r.Extension.compile(r.Limit.Limit, of.members); fault != "" {
		faults = append(faults, extensionFault{key: "epsilon", text: fault})
	}
	if x.Federation != nil {
		if fault := x.Federation.bind(of.federation, &x, r.Limit.Limit); fault != "" {
			faults = append(faults, extensionFault{key: "federation", text: fault})
		}
	}
	if of.lenient || r.Shadow || r.Quota {
		r.Extension.setUncapped()
	}
	r.Limit.Algorithm, r.Limit.Burst = x.Algorithm, x.Burst
	if x.Window > 0 {
		r.Limit.Window = x.Window
	}
	if key, text := r.holdFault(); key != "" {
		faults = append(faults, extensionFault{key: key, text: text})
	}
	if key, text := r.quotaFault(); key != "" {
		faults = append(faults, extensionFault{key: key, text: text})
	}
	return faults
}

// finish sets the fields that depend on the levels above a rule, and adds it to the rules.
func (b *builder) finish(r *RuleSpec, n *node, down ancestry) {
	r.path = down.path
	r.Levels = make([]Level, len(down.path))
	for i, p := range down.path {
		r.Levels[i] = p.level
		r.ValueToMetric = r.ValueToMetric || p.level.ValueToMetric
		r.ShareThreshold = r.ShareThreshold || p.level.Shared
	}
	r.SharesCounter = r.ShareThreshold || !r.Unlimited && r.Extension.Fair != nil
	r.statedUnit, r.statedTimes = express(r.Limit.Window, r.Unit)
	r.placeOwner()
	r.Index = len(b.rules.rules)
	b.rules.rules = append(b.rules.rules, r)
}
