package config

import "strings"

// maxReadings bounds the descriptors that are tried for one name.
const maxReadings = 256

// EntriesOf returns the descriptor whose counter has this name, as AppendName writes it, and digest. Values can
// contain commas and equals signs, so only the digest shows which of several descriptors a name is of. It returns nil
// if there is none: the name is shortened, values share the counter, or other rules apply now. m is the result of Match
// for the entries.
func (r *Rules) EntriesOf(domain, name string, digest [2]uint64, m *Match) []Entry {
	d := r.domains[domain]
	if d == nil {
		return nil
	}
	n := nameReader{rules: r, domain: domain, digest: digest, keys: d.keys(), m: m}
	if !n.read(name, nil) {
		return nil
	}
	return n.entries
}

// nameReader tries all descriptors that have one name.
type nameReader struct {
	rules   *Rules
	domain  string
	digest  [2]uint64
	keys    []map[string]bool // of the rules, by level
	m       *Match
	tried   int
	entries []Entry // that were found
}

// read tries every way to continue head with the entries of text.
func (n *nameReader) read(text string, head []Entry) (found bool) {
	if len(head) == len(n.keys) {
		return false
	}
	for key := range n.keys[len(head)] {
		value, ok := strings.CutPrefix(text, key+"=")
		if !ok {
			continue
		}
		if n.is(append(head, Entry{key, value})) {
			return true
		}
		for end := 0; n.tried < maxReadings; end++ {
			at := strings.IndexByte(value[end:], ',')
			if at < 0 {
				break
			}
			end += at
			if n.read(value[end+1:], append(head, Entry{key, value[:end]})) {
				return true
			}
		}
	}
	return false
}

// is reports whether the entries have the counter.
func (n *nameReader) is(entries []Entry) bool {
	n.tried++
	n.rules.Match(n.domain, entries, nil, n.m)
	if n.m.Kind != Limited || n.m.Digest != n.digest || n.m.Rule.SharesCounter {
		return false
	}
	n.entries = append([]Entry(nil), entries...)
	return true
}

// keys returns the keys of the domain's descriptors by depth.
func (d *domain) keys() []map[string]bool {
	levels := d.levels()
	keys := make([]map[string]bool, len(levels))
	for i, list := range levels {
		keys[i] = map[string]bool{}
		for _, l := range list {
			keys[i][l.Key] = true
		}
	}
	return keys
}

// levels returns all descriptors of the domain by depth.
func (d *domain) levels() (all [][]Level) {
	var walk func(n *node, depth int)
	walk = func(n *node, depth int) {
		for _, c := range n.list {
			if depth == len(all) {
				all = append(all, nil)
			}
			all[depth] = append(all[depth], c.level)
			walk(c, depth+1)
		}
	}
	walk(&d.node, 0)
	return all
}

// LevelsOf returns all descriptors of a domain by depth, also those without a limit.
func (r *Rules) LevelsOf(domain string) [][]Level {
	if d := r.domains[domain]; d != nil {
		return d.levels()
	}
	return nil
}

// Replaced returns the names of rules that other rules replace.
func (r *Rules) Replaced() map[string]bool {
	names := map[string]bool{}
	for _, rule := range r.rules {
		for _, name := range rule.Replaces {
			names[name] = true
		}
	}
	return names
}
