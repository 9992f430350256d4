package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"

	"github.com/keyward/keyward/internal/suggest"
)

// Warnings returns the parts of files that load and have no effect: documents after the first, duplicate and misplaced
// keys, descriptors that no request reaches, and metadata that is not used. rules are the rules loaded from files, or
// nil if the files have faults; then only the files themselves are checked.
func Warnings(files []File, rules *Rules) []Diagnostic {
	var w warnings
	for _, f := range files {
		if line := secondDocument(f.Content); line > 0 {
			w.add(Diagnostic{
				Kind: "ignored-document", File: f.Name, Line: line, Column: 1,
				Text: "only the first YAML document of a file is loaded; this one is ignored",
			})
		}
		w.keys(f)
	}
	if rules != nil {
		for _, d := range rules.order {
			w.level(d.name, &d.node)
		}
	}
	return w.all
}

// warnings collects diagnostics.
type warnings struct{ all []Diagnostic }

func (w *warnings) add(d Diagnostic) { w.all = append(w.all, d) }

// at adds a warning about a descriptor.
func (w *warnings) at(n *node, kind, format string, args ...any) {
	w.add(Diagnostic{Kind: kind, File: n.file, Line: n.line, Column: n.column, Text: fmt.Sprintf(format, args...)})
}

// keys adds the duplicate and the misplaced keys of a file, in the order of their positions.
func (w *warnings) keys(f File) {
	at := newPosition(f.Content)
	if at.node == nil {
		return
	}
	first := len(w.all)
	found := func(kind string) func(*yamlv3.Node, string) {
		return func(key *yamlv3.Node, text string) {
			w.add(Diagnostic{Kind: kind, File: f.Name, Line: key.Line, Column: key.Column, Text: text})
		}
	}
	duplicates(at.node, found("duplicate-key"))
	walk := levelWalk{keys: levelKeys(), seen: map[levelVisit]bool{}, found: found("misplaced-key")}
	walk.mapping(at, position{}, inFile)
	slices.SortStableFunc(w.all[first:], func(a, b Diagnostic) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}

// level checks the descriptors below parent.
func (w *warnings) level(path string, parent *node) {
	for i, n := range parent.list {
		full := path + "." + n.glued
		if by := shadowing(parent.list, i); by != nil {
			w.at(n, "unreachable", "'%s' is never reached: '%s' matches all its values", full, by.glued)
		}
		if _, ours := n.metadata.GetFields()[metadataKey]; ours && (n.rule == nil || n.rule.Unlimited) {
			w.at(n, "no-effect", "'%s' has metadata.%s, but no limit to apply it to", full, metadataKey)
		}
		if n.rule != nil && !n.rule.Unlimited {
			for _, reason := range n.rule.unused(n.metadata.GetFields()[metadataKey].GetStructValue().GetFields()) {
				w.at(n, "no-effect", "'%s' has %s", full, reason)
			}
		}
		w.metadata(full, n)
		w.level(full, n)
	}
}

// metadata finds Keyward's keys where they are not read: next to metadata.keyward, or below a misspelled key.
func (w *warnings) metadata(full string, n *node) {
	for _, key := range slices.Sorted(maps.Keys(n.metadata.GetFields())) {
		switch {
		case key == metadataKey:
		case slices.Contains(extensionKeyNames(), key) && n.rule != nil:
			w.at(n, "no-effect", "'%s' has metadata.%s, which is not used: write Keyward's keys under metadata.%s", full, key,
				metadataKey)
		case suggest.Distance(strings.ToLower(key), metadataKey) <= 2:
			w.at(n, "no-effect", "'%s' has metadata.%s, which is not used: did you mean metadata.%s?", full, key, metadataKey)
		}
	}
}

// shadowing returns the wildcard that matches everything that list[i] matches: an earlier one that covers a wildcard,
// or any that covers all values of a bare key. Texts without a * are looked up before wildcards, so nothing hides them.
func shadowing(list []*node, i int) *node {
	n := list[i]
	for j, other := range list {
		switch {
		case i == j || other.pattern == nil:
		case n.pattern != nil:
			if j < i && other.pattern.covers(n.glued) {
				return other
			}
		case n.level.Value == "":
			if other.pattern.covers(n.glued + "_*") {
				return other
			}
		}
	}
	return nil
}
