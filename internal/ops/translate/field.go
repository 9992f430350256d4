package translate

import (
	"fmt"
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v3"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/suggest"
)

// The kinds of findings.
const (
	NoCounterpart = "no-counterpart" // Keyward's rules cannot express the field
	Invalid       = "invalid"        // the gateway rejects the value, or the file is not valid YAML
	Missing       = "missing"        // the field refers to something that the files do not contain
	Note          = "note"           // the field needs no rule: it keeps its effect, or has none in the gateway either
)

// maxFields is the number of fields that one call of Translate reads. It bounds the time for files whose aliases repeat
// a large part many times.
const maxFields = 1 << 20

// reader collects the findings about the files of one call.
type reader struct {
	findings []config.Diagnostic
	fields   int
	seen     map[string]bool // findings that were added, by their text with the position
}

func (r *reader) add(d config.Diagnostic) {
	text := d.Kind + d.String() + d.Hint
	if r.seen == nil {
		r.seen = map[string]bool{}
	}
	if !r.seen[text] {
		r.seen[text] = true
		r.findings = append(r.findings, d)
	}
}

// field is a value in a file with its path in the resource. The node is nil if the field is absent or null.
type field struct {
	from *reader
	file string
	rule string // the resource, as kind namespace/name
	path string
	node *yaml.Node
	line int // of the key, or of the parent if the field is absent
	// shift is added to lines below the field: it is the line of a text in the file that has the YAML.
	shift int
}

// exists reports whether the field has a value.
func (f field) exists() bool { return f.node != nil }

// say adds a finding about the field. hint says what to use instead.
func (f field) say(kind, hint, format string, args ...any) {
	f.report(kind, hint, "field "+f.path+": "+fmt.Sprintf(format, args...))
}

// report adds a finding about a document or a resource.
func (f field) report(kind, hint, text string) {
	d := config.Diagnostic{Kind: kind, File: f.file, Line: f.line, Rule: f.rule, Hint: hint, Text: text}
	if f.node != nil {
		d.Column = f.node.Column
	}
	f.from.add(d)
}

// child returns the field of a value in a mapping or a list.
func (f field) child(path string, key, value *yaml.Node) field {
	c := field{from: f.from, file: f.file, rule: f.rule, path: path, line: key.Line + f.shift, shift: f.shift}
	if value = resolve(value); value != nil && value.Tag != "!!null" {
		c.node = value
	}
	return c
}

// resolve returns the node that an alias refers to.
func resolve(n *yaml.Node) *yaml.Node {
	for range 100 {
		if n == nil || n.Kind != yaml.AliasNode {
			return n
		}
		n = n.Alias
	}
	return nil
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	if strings.ContainsAny(key, ".[] ") || key == "" {
		return path + "[" + strconv.Quote(key) + "]"
	}
	return path + "." + key
}

// mapping is the fields of a mapping.
type mapping struct {
	of     field
	keys   []string // in the order of the file, each once
	values map[string]field
}

// open returns the fields of a mapping. It is empty if the field is absent, or not a mapping, which is a finding.
func (f field) open() mapping {
	m := mapping{of: f, values: map[string]field{}}
	if f.node == nil {
		return m
	}
	if f.node.Kind != yaml.MappingNode {
		f.say(Invalid, "", "want a mapping, not %s", describe(f.node))
		return m
	}
	f.fill(&m, f.node, 0)
	return m
}

// fill adds the entries of a mapping, and of those that it merges with <<.
func (f field) fill(m *mapping, n *yaml.Node, depth int) {
	if n = resolve(n); n == nil || depth > 20 {
		return
	}
	if n.Kind == yaml.SequenceNode {
		for _, e := range n.Content {
			f.fill(m, e, depth+1)
		}
		return
	}
	if n.Kind != yaml.MappingNode {
		return
	}
	var merged []*yaml.Node
	for i := 0; i+1 < len(n.Content) && f.from.fields < maxFields; i += 2 {
		key, value := resolve(n.Content[i]), n.Content[i+1]
		f.from.fields++
		switch {
		case key == nil || key.Kind != yaml.ScalarNode:
			f.say(Invalid, "", "a key is not a string")
		case key.Tag == "!!merge":
			merged = append(merged, value)
		default:
			c := f.child(join(f.path, key.Value), n.Content[i], value)
			_, twice := m.values[key.Value]
			if twice && depth == 0 {
				c.say(Invalid, "", "the key is there twice")
			}
			if !twice {
				m.keys = append(m.keys, key.Value)
				m.values[key.Value] = c
			}
		}
	}
	for _, v := range merged {
		f.fill(m, v, depth+1)
	}
}

// get returns the field of a key.
func (m mapping) get(key string) field {
	if c, ok := m.values[key]; ok {
		return c
	}
	return field{from: m.of.from, file: m.of.file, rule: m.of.rule, path: join(m.of.path, key), line: m.of.line, shift: m.of.shift}
}

// only adds a finding for every key that is not in the list. The list is the keys that the caller translates or names.
func (m mapping) only(keys ...string) mapping {
	for _, k := range m.keys {
		known := false
		for _, want := range keys {
			known = known || k == want
		}
		if known || !m.values[k].exists() {
			continue
		}
		hint := ""
		if near := suggest.Nearest(k, keys); near != "" {
			hint = "did you mean " + near + "?"
		}
		m.values[k].say(NoCounterpart, hint, "unknown field, which is not translated")
	}
	return m
}

// spelled adds a finding for every key that differs from name in its case, or by an s at the end. It is for mappings with
// fields that are not about limits, where other unknown keys are no findings.
func (m mapping) spelled(name string) mapping {
	for _, k := range m.keys {
		plain := strings.TrimSuffix(strings.ToLower(k), "s")
		if k != name && m.values[k].exists() && (plain == strings.ToLower(name) || plain == strings.TrimSuffix(strings.ToLower(name), "s")) {
			m.values[k].say(NoCounterpart, "did you mean "+name+"?", "unknown field, which is not translated")
		}
	}
	return m
}

// present returns the number of keys with a value.
func (m mapping) present() (n int) {
	for _, f := range m.values {
		if f.exists() {
			n++
		}
	}
	return n
}

// items returns the elements of a list. It is empty if the field is absent, or not a list, which is a finding.
func (f field) items() []field {
	if f.node == nil {
		return nil
	}
	if f.node.Kind != yaml.SequenceNode {
		f.say(Invalid, "", "want a list, not %s", describe(f.node))
		return nil
	}
	var all []field
	for i, n := range f.node.Content {
		if f.from.fields++; f.from.fields > maxFields {
			break
		}
		all = append(all, f.child(fmt.Sprintf("%s[%d]", f.path, i), n, n))
	}
	return all
}

// text returns the value of a scalar, or the empty string.
func (f field) text() string {
	if f.node == nil {
		return ""
	}
	if f.node.Kind != yaml.ScalarNode {
		f.say(Invalid, "", "want a string, not %s", describe(f.node))
		return ""
	}
	return f.node.Value
}

// oneOf returns the value of a scalar, which must be one of a list. An absent one is the first, which is empty if there
// is no default. It returns the empty string for another value, which is a finding.
func (f field) oneOf(values ...string) string {
	if f.node == nil {
		return values[0]
	}
	got := f.text()
	for _, v := range values {
		if v == got {
			return v
		}
	}
	if f.node.Kind == yaml.ScalarNode {
		f.say(Invalid, "", "%s is not one of %s", quoted(got), strings.TrimPrefix(strings.Join(values, ", "), ", "))
	}
	return ""
}

// number returns a whole number from 0 to most. ok is false if the field is absent or another value, which is a finding.
func (f field) number(most uint64) (n uint64, ok bool) {
	if f.node == nil {
		return 0, false
	}
	n, err := strconv.ParseUint(f.node.Value, 0, 64)
	if f.node.Kind != yaml.ScalarNode || err != nil || n > most {
		f.say(Invalid, "", "want a whole number from 0 to %d, not %s", most, describe(f.node))
		return 0, false
	}
	return n, true
}

// flag returns a boolean. An absent one is false.
func (f field) flag() bool {
	if f.node == nil {
		return false
	}
	if f.node.Kind == yaml.ScalarNode && (f.node.Value == "true" || f.node.Value == "false") {
		return f.node.Value == "true"
	}
	f.say(Invalid, "", "want true or false, not %s", describe(f.node))
	return false
}

// required adds a finding if the field is absent or an empty string, and reports whether it is there.
func (f field) required() bool {
	there := f.node != nil && (f.node.Kind != yaml.ScalarNode || f.node.Value != "")
	if !there {
		f.say(Invalid, "", "required")
	}
	return there
}

// describe names a value in a message.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	return quoted(n.Value)
}

// quoted returns a text in quotes, shortened, without control characters.
func quoted(text string) string {
	if r := []rune(text); len(r) > 60 {
		text = string(r[:60]) + "..."
	}
	return strconv.Quote(text)
}
