package translate

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// limit is the limit of a rule.
type limit struct {
	requests uint64 // at most 4294967295
	unit     string // a unit of envoyproxy/ratelimit, in lower case
	extra    []pair // keys of metadata.keyward
}

// pair is a key with its value as YAML.
type pair struct{ key, value string }

// entry is one entry of a descriptor: a key, and a value unless it varies.
type entry struct{ key, value string }

// level is a descriptor of the rules with those below it.
type level struct {
	entry
	limit    *limit
	shadow   bool
	comments []string // lines above the descriptor
	below    []*level
	index    map[string]*level // below, by glued text
}

// glued is the text by which rate limit services distinguish descriptors of one level.
func (e entry) glued() string {
	if e.value == "" {
		return e.key
	}
	return e.key + "_" + e.value
}

// maxEntries is the number of entries of a descriptor, with room for a rule with all conditions of Envoy Gateway.
const maxEntries = 900

// maxDescriptors is the number of descriptors that are printed.
const maxDescriptors = 1 << 18

// maxPairs is the number of pairs of rules and routes, and of limits of one policy, that one call of Translate looks at. It
// bounds the time for short files in which hosts, matches and rules multiply.
const maxPairs = 1 << 20

// another counts a pair, and reports whether to look at it.
func (t *translation) another(at field) bool {
	if t.pairs++; t.pairs <= maxPairs {
		return true
	}
	at.say(NoCounterpart, "translate fewer files at a time", "there are more than %d pairs of rules and routes; the rest is left out", maxPairs)
	return false
}

// insert returns the level of a path, which it creates where it is missing. It returns nil, and adds a finding about at,
// if rules cannot have it.
func (d *domain) insert(path []entry, at field) *level {
	const rename = "rename one of the two"
	if len(path) > maxEntries {
		at.say(NoCounterpart, "split it", "a descriptor of more than %d entries", maxEntries)
		return nil
	}
	l := &d.root
	for _, e := range path {
		if e.key == "" {
			at.say(Invalid, "", "an entry has an empty key")
			return nil
		}
		known := l.index[e.glued()]
		switch {
		case known != nil && known.entry != e:
			at.say(NoCounterpart, rename, "its entry %s is the same for rate limit services as that of another descriptor, because both join key and value to %s",
				quoted(e.key), quoted(e.glued()))
			return nil
		case known != nil:
			l = known
			continue
		case d.all.descriptors >= maxDescriptors:
			at.say(NoCounterpart, "translate fewer files at a time", "there are more than %d descriptors; the rest is left out", maxDescriptors)
			return nil
		}
		d.all.descriptors++
		next := &level{entry: e}
		if l.index == nil {
			l.index = map[string]*level{}
		}
		l.index[e.glued()] = next
		l.below = append(l.below, next)
		l = next
	}
	return l
}

// domain is the rules of one domain, with the actions by which Envoy makes their descriptors.
type domain struct {
	all     *translation
	name    string
	root    level
	sources []string // the policies, as kind namespace/name
	actions []rateLimit
	filter  []string // settings of Envoy's filter, as lines of comments
}

func (d *domain) source(rule string) {
	if !slices.Contains(d.sources, rule) {
		d.sources = append(d.sources, rule)
	}
}

// sends adds a rate limit of Envoy, if they are to be printed.
func (d *domain) sends(r rateLimit) {
	if d.all.options.Actions {
		d.actions = append(d.actions, r)
	}
}

// empty reports whether there is nothing to print.
func (d *domain) empty() bool { return len(d.root.below) == 0 }

// yaml renders the rules as a file of envoyproxy/ratelimit.
func (d *domain) yaml(actions bool) string {
	var b strings.Builder
	for _, s := range d.sources {
		comment(&b, "", "From "+s+".")
	}
	if actions {
		for _, line := range append(d.filter, renderActions(d.actions)...) {
			comment(&b, "", line)
		}
	}
	fmt.Fprintf(&b, "domain: %s\ndescriptors:\n", scalar(d.name))
	for _, l := range d.root.below {
		l.write(&b, "  ")
	}
	return b.String()
}

func comment(b *strings.Builder, indent, text string) {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 {
			return '?' // would end the comment
		}
		return r
	}, text)
	b.WriteString(strings.TrimRight(indent+"# "+text, " ") + "\n")
}

func (l *level) write(b *strings.Builder, indent string) {
	for _, c := range l.comments {
		comment(b, indent, c)
	}
	fmt.Fprintf(b, "%s- key: %s\n", indent, scalar(l.key))
	indent += "  "
	if l.value != "" {
		fmt.Fprintf(b, "%svalue: %s\n", indent, scalar(l.value))
	}
	if l.shadow {
		fmt.Fprintf(b, "%sshadow_mode: true\n", indent)
	}
	if l.limit != nil {
		fmt.Fprintf(b, "%srate_limit: {unit: %s, requests_per_unit: %d}\n", indent, l.limit.unit, l.limit.requests)
		if len(l.limit.extra) > 0 {
			var keys []string
			for _, p := range l.limit.extra {
				keys = append(keys, p.key+": "+p.value)
			}
			fmt.Fprintf(b, "%smetadata: {keyward: {%s}}\n", indent, strings.Join(keys, ", "))
		}
	}
	if len(l.below) > 0 {
		fmt.Fprintf(b, "%sdescriptors:\n", indent)
		for _, c := range l.below {
			c.write(b, indent+"  ")
		}
	}
}

// plain matches texts that are a string in YAML without quotes, except for the words that are booleans or null.
var plain = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_./-]*$`)

var yamlWords = []string{"y", "n", "yes", "no", "on", "off", "true", "false", "null"}

// scalar renders a string for YAML.
func scalar(text string) string {
	if plain.MatchString(text) && !slices.Contains(yamlWords, strings.ToLower(text)) {
		return text
	}
	return strconv.Quote(text)
}
