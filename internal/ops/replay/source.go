package replay

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// kind states how a source reads a logged request.
type kind uint8

const (
	fromField kind = iota // a field of the log, unchanged
	fromQuery             // a query parameter of the path
	fromAddress
	fromMasked
	constant
)

// Source states where a log contains the value of a descriptor entry. The zero Source is unknown.
type Source struct {
	text   string   // as written; sources with the same text share a column
	fields []string // names of the fields in lower case, by preference
	name   string   // the query parameter, or the constant
	v4, v6 int      // prefix lengths
	kind   kind
}

// sourceHelp is the grammar of ParseSource.
const sourceHelp = "header:NAME, query:NAME, field:NAME, value:TEXT, remote_address, " +
	"masked_remote_address[:BITS4/BITS6], source_cluster or destination_cluster"

// ParseSource parses a source: the syntax of `keyward envoy-config --from`, and field:NAME for a field of the log.
func ParseSource(text string) (Source, error) {
	word, rest, _ := strings.Cut(text, ":")
	s := Source{text: text, name: rest}
	switch word {
	case "header":
		s.fields = headerFields(strings.ToLower(rest))
	case "query":
		s.kind, s.fields = fromQuery, pathFields()
	case "field":
		s.fields = []string{strings.ToLower(rest)}
	case "value":
		s.kind = constant
	case "remote_address":
		s.kind, s.fields = fromAddress, addressFields()
		return s, nil
	case "masked_remote_address":
		s.kind, s.fields = fromMasked, addressFields()
		return s, s.masks(rest)
	case "destination_cluster":
		s.fields = []string{"upstream_cluster", "destination_cluster", "upstream_cluster_raw"}
		return s, nil
	case "source_cluster":
		s.fields = []string{"source_cluster", "downstream_cluster"}
		return s, nil
	case "metadata":
		return s, fmt.Errorf("%q: logs have no metadata; use field:NAME with the field to which your log writes it", text)
	default:
		return s, fmt.Errorf("%q: want one of %s", text, sourceHelp)
	}
	if rest == "" {
		return s, fmt.Errorf("%q: want %s:NAME", text, word)
	}
	return s, nil
}

func (s *Source) masks(text string) error {
	s.v4, s.v6 = 32, 128
	four, six, _ := strings.Cut(text, "/")
	for _, m := range []struct {
		text string
		to   *int
	}{{four, &s.v4}, {six, &s.v6}} {
		n, err := strconv.Atoi(m.text)
		if m.text != "" && (err != nil || n < 0 || n > *m.to) {
			return fmt.Errorf("masked_remote_address:%s: want BITS4/BITS6, as in 24/64", text)
		}
		if m.text != "" {
			*m.to = n
		}
	}
	return nil
}

// headerFields returns the names of a request header in logs: its own, and those in the default formats of Envoy, Istio
// and Envoy Gateway.
func headerFields(name string) []string {
	names := []string{name, strings.ReplaceAll(name, "-", "_")}
	switch name {
	case ":path":
		return pathFields()
	case ":method":
		names = append(names, "method", "request_method")
	case ":authority", "host":
		names = append(names, ":authority", "authority", "host")
	}
	for _, group := range []string{"request_headers.", "headers.", "request.headers.", "req."} {
		names = append(names, group+name)
	}
	return names
}

func pathFields() []string {
	return []string{"x-envoy-original-path", "x-envoy-origin-path", ":path", "path", "request_path", "uri", "request_uri"}
}

func addressFields() []string {
	return []string{
		"downstream_remote_address_without_port", "downstream_remote_address", "remote_address", "client_address", "client_ip",
		"downstream_direct_remote_address",
	}
}

// describe describes what the source reads from a request.
func (s *Source) describe() string {
	word, _, _ := strings.Cut(s.text, ":")
	switch {
	case s.kind == fromQuery:
		return "the query parameter " + s.name
	case word == "header" || word == "field":
		return s.name
	}
	return "a " + word
}

// value converts the text of the field into the value of the entry. ok is false if Envoy would omit the descriptor.
func (s *Source) value(text string) (value string, ok bool) {
	switch s.kind {
	case constant:
		return s.name, true
	case fromQuery:
		return queryValue(text, s.name)
	case fromAddress, fromMasked:
		return s.address(text)
	case fromField:
	}
	return text, text != ""
}

func queryValue(path, name string) (string, bool) {
	_, query, _ := strings.Cut(path, "?")
	for pair := range strings.SplitSeq(query, "&") {
		k, v, _ := strings.Cut(pair, "=")
		if k != name {
			continue
		}
		if decoded, err := url.QueryUnescape(v); err == nil {
			v = decoded
		}
		return v, v != ""
	}
	return "", false
}

func (s *Source) address(text string) (string, bool) {
	if host, _, err := net.SplitHostPort(text); err == nil {
		text = host
	}
	if s.kind == fromAddress {
		return text, text != ""
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return "", false
	}
	bits := s.v6
	if a.Is4() {
		bits = s.v4
	}
	p, err := a.Prefix(bits)
	return p.String(), err == nil
}
