package snippet

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// source is where in a request the value of a descriptor's entry comes from.
type source struct {
	kind sourceKind
	Name string   // header, query parameter, metadata namespace or the constant
	path []string // within the metadata
	// written is the action as the user wrote it, if it has more than kind, Name and path.
	written string
	// given reports whether the user named the source.
	given  bool
	v4, v6 string // lengths of address masks
}

// same reports whether both read the same value.
func (s source) same(t source) bool {
	return s.kind == t.kind && s.Name == t.Name && slices.Equal(s.path, t.path)
}

type sourceKind uint8

const (
	unknownSource sourceKind = iota
	header
	query
	constant
	metadata
	remoteAddress
	maskedAddress
	sourceCluster
	destinationCluster
	written // any other action of the user's configuration
)

// sourceHelp is the grammar of --from.
const sourceHelp = "header:NAME, query:NAME, metadata:NAMESPACE:KEY[:KEY...], value:TEXT, remote_address, masked_remote_address[:BITS4/BITS6], source_cluster or destination_cluster"

// parseSource parses the source of a key.
func parseSource(key, text string) (source, error) {
	kind, rest, _ := strings.Cut(text, ":")
	s := source{Name: rest, given: true}
	switch kind {
	case "header":
		s.kind, s.Name = header, strings.ToLower(rest)
		if !httpguts.ValidHeaderFieldName(strings.TrimPrefix(rest, ":")) {
			return s, fmt.Errorf("from %s: %q is not a header name", key, rest)
		}
	case "query":
		s.kind = query
		if rest == "" || strings.ContainsAny(rest, "%()") {
			return s, fmt.Errorf("from %s: %q is not the name of a query parameter", key, rest)
		}
	case "value":
		s.kind = constant
		if rest == "" {
			return s, fmt.Errorf("from %s: the value is empty", key)
		}
	case "metadata":
		s.kind, s.path = metadata, strings.Split(rest, ":")
		s.Name, s.path = s.path[0], s.path[1:]
		if s.Name == "" || len(s.path) == 0 || slices.Contains(s.path, "") || strings.ContainsAny(rest, "%()") {
			return s, fmt.Errorf("from %s: want metadata:NAMESPACE:KEY, not %q", key, text)
		}
	default:
		return parseFixed(key, kind, rest)
	}
	return s, nil
}

// parseFixed parses a source whose descriptor key Envoy determines.
func parseFixed(key, kind, rest string) (source, error) {
	s := fixedSource(kind)
	s.given = true
	if s.kind == unknownSource || s.kind != maskedAddress && rest != "" {
		return s, fmt.Errorf("from %s: %q is not one of %s", key, strings.TrimSuffix(kind+":"+rest, ":"), sourceHelp)
	}
	if key != kind {
		return s, fmt.Errorf("from %s: Envoy names this entry %s, so the rules must use that key", key, kind)
	}
	if rest == "" {
		return s, nil
	}
	s.v4, s.v6, _ = strings.Cut(rest, "/")
	for text, most := range map[string]uint64{s.v4: 32, s.v6: 128} {
		if n, err := strconv.ParseUint(text, 10, 8); text != "" && (err != nil || n > most) {
			return s, fmt.Errorf("from %s: want masked_remote_address:24/64, not %q", key, rest)
		}
	}
	return s, nil
}

// fixedSource returns the source of a key that Envoy determines.
func fixedSource(key string) source {
	switch key {
	case "remote_address":
		return source{kind: remoteAddress}
	case "masked_remote_address":
		return source{kind: maskedAddress}
	case "source_cluster":
		return source{kind: sourceCluster}
	case "destination_cluster":
		return source{kind: destinationCluster}
	}
	return source{}
}

// sources merges From and the user's own Envoy configuration. From takes precedence.
func (g *generator) sources() (map[string][]source, error) {
	all := map[string][]source{}
	var faults []error
	if len(g.Envoy) > 0 {
		own, err := g.ownSources(g.Envoy)
		if err != nil {
			faults = append(faults, err)
		}
		maps.Copy(all, own)
	}
	for _, key := range slices.Sorted(maps.Keys(g.From)) {
		s, err := parseSource(key, g.From[key])
		if err != nil {
			faults = append(faults, err)
			continue
		}
		all[key] = []source{s}
	}
	return all, errors.Join(faults...)
}

// action returns the element of a rate_limits list that adds key and the source's value, as a YAML flow mapping.
func (s source) action(key string) string {
	if s.written != "" {
		return s.written
	}
	switch s.kind {
	case header:
		return fmt.Sprintf("request_headers: {header_name: %s, descriptor_key: %s}", quote(s.Name), quote(key))
	case query:
		return fmt.Sprintf("query_parameters: {query_parameter_name: %s, descriptor_key: %s}", quote(s.Name),
			quote(key))
	case constant:
		if key == "generic_key" {
			return fmt.Sprintf("generic_key: {descriptor_value: %s}", quote(s.Name))
		}
		return fmt.Sprintf("generic_key: {descriptor_key: %s, descriptor_value: %s}", quote(key), quote(s.Name))
	case metadata:
		path := make([]string, len(s.path))
		for i, p := range s.path {
			path[i] = "{key: " + quote(p) + "}"
		}
		return fmt.Sprintf("metadata: {descriptor_key: %s, metadata_key: {key: %s, path: [%s]}}", quote(key),
			quote(s.Name), strings.Join(path, ", "))
	case maskedAddress:
		return "masked_remote_address: {" + s.masks() + "}"
	case remoteAddress, sourceCluster, destinationCluster:
		return key + ": {}"
	}
	return ""
}

func (s source) masks() string {
	var m []string
	if s.v4 != "" {
		m = append(m, "v4_prefix_mask_len: "+s.v4)
	}
	if s.v6 != "" {
		m = append(m, "v6_prefix_mask_len: "+s.v6)
	}
	return strings.Join(m, ", ")
}

// expr is the owner string of a rule, as a format that Envoy evaluates per request.
type expr struct {
	Format string // empty: Envoy has no format for it
	Header string // the header whose bare value it is, if it is one
	Source source // if it has a single part
	What   string // for messages: the keys of the entries
	Varies bool   // it differs between requests
}

// expr returns the format of the source's value.
func (s source) expr(key string) expr {
	e := expr{Source: s, What: key, Varies: s.kind != constant}
	switch s.kind {
	case header:
		e.Format, e.Header = "%REQ("+s.Name+")%", s.Name
	case query:
		e.Format = "%QUERY_PARAM(" + s.Name + ")%"
	case constant:
		e.Format = literal(s.Name)
	case metadata:
		e.Format = "%DYNAMIC_METADATA(" + strings.Join(append([]string{s.Name}, s.path...), ":") + ")%"
	case remoteAddress:
		e.Format = "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"
	}
	return e
}

// literal returns a format that evaluates to text.
func literal(text string) string { return strings.ReplaceAll(text, "%", "%%") }
