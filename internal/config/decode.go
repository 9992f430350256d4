package config

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"regexp"
	"slices"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	"gopkg.in/yaml.v2"
)

// decodeFaults returns the faults in a decoder's error, one for each value of a wrong type.
func decodeFaults(f File, at position, err error) (faults []Diagnostic) {
	types := (*yaml.TypeError)(nil)
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &types):
		fault := loadFault(f.Name, err)
		explainSyntax(f.Content, &fault)
		return []Diagnostic{fault}
	}
	wrong := wrongValues{lines: map[int][]keyedNode{}, types: decodedAs(), form: regexp.MustCompile(complaint)}
	wrong.list("", at.node)
	for _, text := range types.Errors {
		fault := loadFault(f.Name, &yaml.TypeError{Errors: []string{text}})
		wrong.explain(&fault)
		faults = append(faults, fault)
	}
	if len(faults) > 1 {
		faults[0].original = loadFault(f.Name, err).Text
	}
	return faults
}

func loadFault(file string, err error) Diagnostic {
	text := err.Error()
	return Diagnostic{
		Kind: BadYAML, File: file, Line: lineIn(text),
		Text: "error loading config file: " + goTypes().Replace(text),
	}
}

// goTypes renames the types in the decoder's messages to those of envoyproxy/ratelimit, which operators know.
func goTypes() *strings.Replacer {
	return strings.NewReplacer(
		"config.yamlRoot", "config.YamlRoot",
		"config.yamlDescriptor", "config.YamlDescriptor",
		"config.yamlRateLimit", "config.YamlRateLimit",
	)
}

// decodedAs returns the Go type of each key's value, as the decoder names it.
func decodedAs() map[string]string {
	all := map[string]string{}
	for _, level := range []any{yamlRoot{}, yamlDescriptor{}, yamlRateLimit{}, yamlReplaces{}} {
		for _, f := range reflect.VisibleFields(reflect.TypeOf(level)) {
			name := f.Tag.Get("yaml")
			if name == "" {
				name = strings.ToLower(f.Name)
			}
			all[name] = goTypes().Replace(strings.TrimPrefix(f.Type.String(), "*"))
		}
	}
	return all
}

// wrongValues finds the values in the decoder's messages, each once.
type wrongValues struct {
	lines map[int][]keyedNode // by line, in the order of the file; without those up to the last one found
	types map[string]string
	form  *regexp.Regexp
}

// keyedNode is a value with the key that it belongs to. The key of the file's root is empty.
type keyedNode struct {
	key  string
	node *yamlv3.Node
}

// list adds n and all values in it.
func (w *wrongValues) list(key string, n *yamlv3.Node) {
	if n == nil {
		return
	}
	w.lines[n.Line] = append(w.lines[n.Line], keyedNode{key, n})
	for i, child := range n.Content {
		switch {
		case n.Kind == yamlv3.SequenceNode:
			w.list(key, child)
		case n.Kind == yamlv3.MappingNode && i%2 == 1:
			w.list(n.Content[i-1].Value, child)
		}
	}
}

// complaint matches one line of the decoder's error: line, tag, value (shortened, scalars only) and Go type.
const complaint = "(?s)line ([0-9]+): cannot unmarshal (\\S+)(?: `(.*)`)? into (.+)$"

// explain sets the column of a fault, and a hint about the expected value.
func (w *wrongValues) explain(f *Diagnostic) {
	parts := w.form.FindStringSubmatch(f.Text)
	if parts == nil {
		return
	}
	kind, value, goType := kindOf(parts[2]), parts[3], parts[4]
	short, cut := strings.CutSuffix(value, "...")
	here := w.lines[f.Line]
	i := slices.IndexFunc(here, func(k keyedNode) bool {
		same := k.node.Kind != yamlv3.ScalarNode || k.node.Value == value || cut && strings.HasPrefix(k.node.Value, short)
		return same && k.node.Kind == kind && (k.key == "" || w.types[k.key] == goType)
	})
	if i < 0 {
		return
	}
	f.Column, f.Hint = here[i].node.Column, wanted(goType, here[i].node)
	w.lines[f.Line] = here[i+1:] // the decoder reports in the order of the file
}

func kindOf(tag string) yamlv3.Kind {
	switch tag {
	case "!!map":
		return yamlv3.MappingNode
	case "!!seq":
		return yamlv3.SequenceNode
	}
	return yamlv3.ScalarNode
}

// wanted describes the expected value of a Go type, and what n is instead.
func wanted(goType string, n *yamlv3.Node) string {
	switch {
	case goType == "uint32":
		return wantedNumber(n)
	case goType == "bool":
		return "want true or false, not " + describe(n)
	case goType == "string":
		return "want a string, not " + describe(n)
	case strings.HasPrefix(goType, "[]"):
		return "want a list, with elements that begin with a dash, not " + describe(n)
	}
	return "want a mapping, with keys like 'unit: minute' below it, not " + describe(n)
}

func wantedNumber(n *yamlv3.Node) string {
	number, ok := new(big.Int).SetString(n.Value, 0)
	switch {
	case n.Kind != yamlv3.ScalarNode || !ok:
		return fmt.Sprintf("want a whole number from 0 to %d, not %s", uint32(math.MaxUint32), describe(n))
	case n.Tag == "!!str" && number.IsUint64() && number.Uint64() <= math.MaxUint32:
		return fmt.Sprintf("'%s' in quotes is a string: write %s without quotes", n.Value, n.Value)
	}
	return fmt.Sprintf("%s is not between 0 and %d", n.Value, uint32(math.MaxUint32))
}

// describe names a value in a message about its type.
func describe(n *yamlv3.Node) string {
	switch n.Kind {
	case yamlv3.MappingNode:
		return "a mapping"
	case yamlv3.SequenceNode:
		return "a list"
	}
	if text := []rune(n.Value); len(text) > 40 {
		return "'" + string(text[:40]) + "...'"
	}
	return "'" + n.Value + "'"
}

// hintValue returns a hint for a number that is not whole, or does not fit into int64.
func hintValue(key any, at position) string {
	name, _ := key.(string)
	at = at.resolve()
	switch {
	case at.node == nil || at.node.Kind != yamlv3.ScalarNode:
	case decodedAs()[name] == "uint32":
		return wantedNumber(at.node)
	case decodedAs()[name] == "string":
		return fmt.Sprintf("%s is a number here: put it in quotes", at.node.Value)
	}
	return "want a string, a whole number, true or false"
}
