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

// decodeFaults are the faults that the decoder's error is about, one for each value of a wrong type. nil has none.
func decodeFaults(f File, at place, err error) (faults []Diagnostic) {
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
	return Diagnostic{File: file, Line: lineIn(text), Text: "error loading config file: " + goTypes().Replace(text), Kind: BadYAML}
}

// goTypes renames the types that the decoder names: operators know them by the names envoyproxy/ratelimit gave them.
func goTypes() *strings.Replacer {
	return strings.NewReplacer(
		"config.yamlRoot", "config.YamlRoot",
		"config.yamlDescriptor", "config.YamlDescriptor",
		"config.yamlRateLimit", "config.YamlRateLimit",
	)
}

// decodedAs is the Go type of each key's value, as the decoder names it.
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

// wrongValues finds the values that the decoder complains about, each once.
type wrongValues struct {
	lines map[int][]keyedNode // by line, in the order of the file, without those before the last one found
	types map[string]string
	form  *regexp.Regexp
}

// keyedNode is a value and the key whose value it is, or is in; the file as a whole has none.
type keyedNode struct {
	key  string
	node *yamlv3.Node
}

// list notes n and all values in it.
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

// complaint is one line of the decoder's error: line, tag, value (short, and of scalars only) and Go type.
const complaint = "(?s)line ([0-9]+): cannot unmarshal (\\S+)(?: `(.*)`)? into (.+)$"

// explain places a fault at its value, and says in plain words what is wanted there.
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
	w.lines[f.Line] = here[i+1:] // the decoder complains in the order of the file
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

// wanted says what a value of a Go type looks like, and what n is instead.
func wanted(goType string, n *yamlv3.Node) string {
	switch {
	case goType == "uint32":
		return wantedNumber(n)
	case goType == "bool":
		return "want true or false, not " + describe(n)
	case goType == "string":
		return "want a text, not " + describe(n)
	case strings.HasPrefix(goType, "[]"):
		return "want a list, whose elements begin with a dash, not " + describe(n)
	}
	return "want a mapping, with keys like 'unit: minute' below it, not " + describe(n)
}

func wantedNumber(n *yamlv3.Node) string {
	number, whole := new(big.Int).SetString(n.Value, 0)
	switch {
	case n.Kind != yamlv3.ScalarNode || !whole:
		return fmt.Sprintf("want a whole number from 0 to %d, not %s", uint32(math.MaxUint32), describe(n))
	case n.Tag == "!!str" && number.IsUint64() && number.Uint64() <= math.MaxUint32:
		return fmt.Sprintf("'%s' in quotes is a text: write %s without them", n.Value, n.Value)
	}
	return fmt.Sprintf("%s is not within 0 to %d", n.Value, uint32(math.MaxUint32))
}

// describe names what stands where something else is wanted.
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

// hintValue says what to write in place of a number that is not whole, or beyond int64.
func hintValue(key any, at place) string {
	name, _ := key.(string)
	at = at.resolve()
	switch {
	case at.node == nil || at.node.Kind != yamlv3.ScalarNode:
	case decodedAs()[name] == "uint32":
		return wantedNumber(at.node)
	case decodedAs()[name] == "string":
		return fmt.Sprintf("as it stands, %s is a number: put it in quotes", at.node.Value)
	}
	return "want a text, a whole number, true or false"
}
