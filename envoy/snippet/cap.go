package snippet

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/keyward/keyward/envoy/internal/names"
	"github.com/keyward/keyward/internal/config"
)

const (
	defaultCapKeys = 10_000                // values of each rule that have a bucket at a time
	minFill        = 50 * time.Millisecond // shortest fill interval that Envoy accepts
	maxCapCells    = 4096                  // combinations of values that are compared for one descriptor
)

// capRow is a descriptor of the local rate limit filter, with its bucket.
type capRow struct {
	Entries []config.Entry // an empty value matches every value
	bucket
	Rules []string
}

// bucket is a token bucket. The zero value denies nothing.
type bucket struct {
	Max, Fill uint32
	Interval  time.Duration
}

// bucketOf returns a bucket that never denies a request of a client that stays within the rule. In a time t, the rule
// admits at most limit x (t / window + 2) hits, or depth + limit x t / window if it is a bucket itself.
func bucketOf(r *config.RuleSpec) bucket {
	most := uint64(r.Limit.Limit) + uint64(max(r.Limit.Limit, r.Limit.Depth()))
	return bucket{uint32(min(most, math.MaxUint32)), r.Limit.Limit, r.Limit.Window}
}

// exempt reports whether the bucket denies nothing.
func (b bucket) exempt() bool { return b.Max == 0 }

// join returns a bucket that denies only what both deny.
func (b bucket) join(c bucket) bucket {
	if b.exempt() || c.exempt() {
		return bucket{}
	}
	if c.rate() > b.rate() {
		b.Fill, b.Interval = c.Fill, c.Interval
	}
	b.Max = max(b.Max, c.Max)
	return b
}

func (b bucket) rate() float64 { return float64(b.Fill) / float64(b.Interval) }

// planCaps computes the rows of every domain.
func (g *generator) planCaps() []error {
	if !g.Caps {
		return nil
	}
	if g.Rules == nil {
		return []error{errors.New("caps: the rules are needed, whose limits they are")}
	}
	replaced := g.Rules.Replaced()
	for i := range g.Domains {
		d := &g.Domains[i]
		seen := map[string]bool{}
		for j := range d.Descriptors {
			x := &d.Descriptors[j]
			keys := make([]string, len(x.Entries))
			for k, e := range x.Entries {
				keys[k] = e.Key
			}
			p := capPlan{generator: g, domain: d.Name, keys: keys, replaced: replaced}
			rows := p.rows()
			x.Capped = len(rows) > 0
			if id := strings.Join(keys, "\x00"); !seen[id] { // several descriptors can have the same keys
				seen[id] = true
				d.Caps = append(d.Caps, rows...)
			}
		}
		if len(d.Caps) == 0 {
			g.warn("domain %s: no rule can be capped", d.Name)
		}
	}
	return nil
}

// capFaults returns errors for what caps cannot be combined with.
func (g *generator) capFaults() (faults []error) {
	fail := func(format string, args ...any) { faults = append(faults, fmt.Errorf("caps: "+format, args...)) }
	switch {
	case !g.Caps:
	case g.Shape == Routes && g.Part == partFilter:
		fail("they are a filter, so they cannot be part of a route")
	case g.Gateway != "" && g.Gateway != gatewayIstio:
		fail("%s has no resource for them", g.Gateway)
	}
	if g.CapKeys < 1 || g.CapKeys > math.MaxUint32 {
		fail("%d values: want at least 1", g.CapKeys)
	}
	return faults
}

// capPlan computes the rows for all descriptors of a domain with the same keys.
type capPlan struct {
	*generator
	domain   string
	keys     []string
	replaced map[string]bool // names of rules that others replace

	values [][]string // for each key: the fixed values of rules
	others [][]string // for each key: values that no rule names, one for each way in which rules treat them
	shapes []capShape
}

// capShape is all descriptors that have the given values. An empty value means all values that no rule names.
type capShape struct {
	values  []string
	verdict bucket   // of the rules for these descriptors
	rules   []string // that they match; empty: none
	widened bucket   // verdict joined with those of all narrower shapes
}

// rows returns the buckets. Envoy prefers a row without wildcards. Of several rows with wildcards that match, it uses
// any, so each of them must be wide enough for every descriptor that it matches. A shape whose descriptors are not all
// limited has no row, unless it is needed to except them from another row.
func (p *capPlan) rows() []capRow {
	p.collectValues()
	if !p.buildShapes() {
		p.warn("domain %s: rules for %s are not capped: they name too many values", p.domain, strings.Join(p.keys, ", "))
		return nil
	}
	wild := p.widen()
	rows := p.wildRows(wild)
	for i := range p.shapes {
		if s := &p.shapes[i]; s.fixed() {
			rows = append(rows, p.fixedRows(s, wild)...)
		}
	}
	return rows
}

// widen returns the shapes with wildcards that can have a bucket.
func (p *capPlan) widen() (wild []capShape) {
	for i := range p.shapes {
		s := &p.shapes[i]
		if s.fixed() || len(s.rules) == 0 {
			continue
		}
		s.widened = s.verdict
		for j := range p.shapes {
			if t := &p.shapes[j]; !t.fixed() && s.covers(t) {
				s.widened = s.widened.join(t.verdict)
			}
		}
		if s.widened.exempt() {
			p.warn("domain %s: %s: not capped, since other rules or none apply to some of its values", p.domain,
				strings.Join(s.rules, ", "))
			continue
		}
		wild = append(wild, *s)
	}
	return wild
}

// wildRows returns the rows of shapes with wildcards, except those that another one with the same bucket covers.
func (p *capPlan) wildRows(wild []capShape) (rows []capRow) {
	for i := range wild {
		redundant := false
		for j := range wild {
			redundant = redundant || i != j && wild[j].widened == wild[i].widened && wild[j].covers(&wild[i])
		}
		if !redundant {
			rows = append(rows, p.row(&wild[i], wild[i].widened))
		}
	}
	return rows
}

// fixedRows returns the row of a shape without wildcards, or none if rows with wildcards have the same effect.
func (p *capPlan) fixedRows(s *capShape, wild []capShape) []capRow {
	covered, same := false, true
	for i := range wild {
		if wild[i].covers(s) {
			covered, same = true, same && wild[i].widened == s.verdict
		}
	}
	switch {
	case covered && same:
	case !s.verdict.exempt():
		return []capRow{p.row(s, s.verdict)}
	case covered:
		return []capRow{p.row(s, bucket{math.MaxUint32, math.MaxUint32, time.Second})}
	}
	return nil
}

func (p *capPlan) row(s *capShape, b bucket) capRow {
	row := capRow{bucket: b, Rules: s.rules}
	for i, v := range s.values {
		row.Entries = append(row.Entries, config.Entry{Key: p.keys[i], Value: v})
	}
	return row
}

// collectValues finds the values that the domain treats differently from others at each level.
func (p *capPlan) collectValues() {
	p.values, p.others = make([][]string, len(p.keys)), make([][]string, len(p.keys))
	for i := range p.keys {
		p.others[i] = []string{"\x00keyward"} // no value that a request can have
	}
	for i, levels := range p.Rules.LevelsOf(p.domain) {
		if i == len(p.keys) {
			return
		}
		for _, l := range levels {
			switch {
			case !l.Variable && l.Key == p.keys[i]:
				addOnce(&p.values[i], l.Value)
			case strings.Contains(l.Value, "*"):
				addOnce(&p.others[i], strings.ReplaceAll(l.Value, "*", "\x00keyward"))
			}
		}
	}
}

func addOnce(list *[]string, v string) {
	if !slices.Contains(*list, v) {
		*list = append(*list, v)
	}
}

// buildShapes finds the rules of every shape. It returns false if there are too many.
func (p *capPlan) buildShapes() bool {
	cells := 1
	for i := range p.keys {
		if cells *= len(p.values[i]) + len(p.others[i]); cells > maxCapCells {
			return false
		}
	}
	entries, values := make([]config.Entry, len(p.keys)), make([]string, len(p.keys))
	at := map[string]int{}
	for n := range cells {
		for i, rest := 0, n; i < len(p.keys); i++ {
			known, unknown := p.values[i], p.others[i]
			digit := rest % (len(known) + len(unknown))
			rest /= len(known) + len(unknown)
			if digit < len(known) {
				entries[i], values[i] = config.Entry{Key: p.keys[i], Value: known[digit]}, known[digit]
			} else {
				entries[i], values[i] = config.Entry{Key: p.keys[i], Value: unknown[digit-len(known)]}, ""
			}
		}
		b, rule := p.verdict(entries)
		id := strings.Join(values, "\x00")
		k, known := at[id]
		if !known {
			k = len(p.shapes)
			at[id], p.shapes = k, append(p.shapes, capShape{values: slices.Clone(values), verdict: b})
		}
		p.shapes[k].verdict = p.shapes[k].verdict.join(b)
		if rule != "" {
			addOnce(&p.shapes[k].rules, rule)
		}
	}
	return true
}

// verdict returns the bucket of the rule that limits the entries, and its name.
func (p *capPlan) verdict(entries []config.Entry) (b bucket, rule string) {
	var m config.Match
	p.Rules.Match(p.domain, entries, nil, &m)
	r := m.Rule
	if m.Kind != config.Limited || r.Shadow || r.Quota || r.Extension.Holds != nil || p.replaced[r.Name] && r.Name != "" ||
		r.Limit.Window < minFill || r.Limit.Limit == 0 {
		return bucket{}, ""
	}
	return bucketOf(r), r.FullKey
}

// fixed reports whether the shape has no wildcard.
func (s *capShape) fixed() bool { return !slices.Contains(s.values, "") }

// covers reports whether a row for s matches the descriptors of t.
func (s *capShape) covers(t *capShape) bool {
	for i, v := range s.values {
		if v != "" && v != t.values[i] {
			return false
		}
	}
	return true
}

// The methods below are called by the templates.

// CapsFilter returns the name of the filter with the caps of a domain.
func (g *generator) CapsFilter(d domain) string { return names.CapsFilter + "/" + d.Name }

// CapRetryAfter returns the shortest window of the domain's capped rules, in whole seconds.
func (g *generator) CapRetryAfter(d domain) int64 {
	shortest := time.Duration(math.MaxInt64)
	for _, r := range d.Caps {
		if len(r.Rules) > 0 {
			shortest = min(shortest, r.Interval)
		}
	}
	return int64((shortest + time.Second - 1) / time.Second)
}

// CapEntry returns an entry of a row as a YAML flow mapping.
func (g *generator) CapEntry(e config.Entry) string {
	if e.Value == "" {
		return fmt.Sprintf("{key: %s}", quote(e.Key))
	}
	return fmt.Sprintf("{key: %s, value: %s}", quote(e.Key), quote(e.Value))
}
