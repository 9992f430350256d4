package snippet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
)

// ownSources reads where values come from in every rate_limits of the user's own Envoy configuration. Actions that
// this package does not model are copied as written.
func (g *generator) ownSources(text []byte) (map[string][]source, error) {
	found := map[string][]source{}
	dec := yamlv3.NewDecoder(bytes.NewReader(text))
	for {
		var doc any
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read your Envoy's configuration: %w", err)
		}
		g.collect(doc, found)
	}
	if len(found) == 0 {
		return nil, errors.New("read your Envoy's configuration: it has no rate_limits with actions")
	}
	for _, key := range slices.Sorted(maps.Keys(found)) {
		for _, s := range found[key][1:] {
			if first := found[key][0]; s.kind != constant && first.kind != constant && !s.same(first) {
				g.warn("your Envoy takes %s from several sources; the output uses the first: %s", key,
					first.action(key))
				break
			}
		}
	}
	return found, nil
}

// collect walks the configuration.
func (g *generator) collect(v any, found map[string][]source) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			g.collect(e, found)
		}
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			list, ok := v[k].([]any)
			if k != "rate_limits" && k != "rateLimits" || !ok {
				g.collect(v[k], found)
				continue
			}
			kind, _ := v["@type"].(string)
			inFilter := strings.HasSuffix(kind, "filters.http.ratelimit.v3.RateLimit")
			for _, e := range list {
				actions, ok := field(e, "actions").([]any)
				g.keepActions = g.keepActions || ok && !inFilter
				for _, a := range actions {
					if key, s := ownSource(a); key != "" {
						found[key] = append(found[key], s)
					}
				}
			}
		}
	}
}

// ownActions are the actions that have a body with further fields.
var ownActions = []string{
	"request_headers", "query_parameters", "generic_key", "metadata", "dynamic_metadata", "header_value_match",
	"query_parameter_value_match", "remote_address_match", "extension",
}

// ownSource reads one action: the key of its entry and the source of its value.
func ownSource(action any) (key string, s source) {
	m, _ := action.(map[string]any)
	for _, name := range ownActions {
		body := field(m, name)
		if body == nil {
			continue
		}
		key, s, known := readAction(name, body)
		if fields, _ := body.(map[string]any); len(fields) != known {
			s.written = flowMapping(m)
		}
		return key, s
	}
	for name, body := range m {
		if s := fixedSource(snake(name)); s.kind != unknownSource {
			s.given = true
			if fields, _ := body.(map[string]any); len(fields) > 0 {
				s.written = flowMapping(m)
			}
			return snake(name), s
		}
	}
	return "", source{}
}

// readAction reads the body of an action, and returns the number of fields that the source represents.
func readAction(name string, body any) (key string, s source, known int) {
	key, s, known = textOf(body, "descriptor_key"), source{given: true}, 1
	switch name {
	case "request_headers":
		s.kind, s.Name, known = header, strings.ToLower(textOf(body, "header_name")), 2
	case "query_parameters":
		s.kind, s.Name, known = query, textOf(body, "query_parameter_name"), 2
	case "generic_key":
		s.kind, s.Name = constant, textOf(body, "descriptor_value")
		if key == "" {
			key = "generic_key"
		} else {
			known = 2
		}
	case "metadata", "dynamic_metadata":
		s, known = ownMetadata(body), 0
	case "header_value_match":
		key, s.kind, known = orElse(key, "header_match"), written, 0
	case "query_parameter_value_match":
		key, s.kind, known = orElse(key, "query_match"), written, 0
	case "remote_address_match":
		key, s.kind, known = orElse(key, "remote_address_match"), written, 0
	case "extension":
		key, s.kind, known = textOf(field(body, "typed_config"), "descriptor_key"), written, 0
	}
	return key, s, known
}

// ownMetadata copies the action as written. The format of its value is known only for a path of keys in the request's
// metadata.
func ownMetadata(body any) source {
	s := source{kind: written, given: true}
	at := field(body, "metadata_key")
	s.Name = textOf(at, "key")
	steps, _ := field(at, "path").([]any)
	for _, p := range steps {
		s.path = append(s.path, textOf(p, "key"))
	}
	where := strings.ToUpper(textOf(body, "source"))
	if s.Name != "" && len(s.path) > 0 && (where == "" || where == "DYNAMIC") &&
		!strings.ContainsAny(s.Name+strings.Join(s.path, ""), "%():") {
		s.kind = metadata
	}
	return s
}

// field returns a value of a mapping whose keys are in snake case or, as in JSON, in camel case.
func field(v any, name string) any {
	m, _ := v.(map[string]any)
	if f, ok := m[name]; ok {
		return f
	}
	for k, f := range m {
		if snake(k) == name {
			return f
		}
	}
	return nil
}

func textOf(v any, name string) string {
	switch f := field(v, name).(type) {
	case nil, map[string]any, []any:
		return ""
	default:
		return fmt.Sprint(f)
	}
}

func snake(camel string) string {
	var b strings.Builder
	for _, r := range camel {
		if r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// flowMapping returns an action as a flow mapping without braces.
func flowMapping(action map[string]any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(action); err != nil { // a key is not a string
		return ""
	}
	return strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(b.String()), "{"), "}")
}
