package replay

import (
	"bytes"
	"fmt"
	"strings"
)

// DefaultFormat is the text that Envoy writes when an access log has no format of its own.
const DefaultFormat = `[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% %RESPONSE_FLAGS% ` +
	`%BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" ` +
	`"%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%"`

// layout is a text format, taken apart: what stands before the first operator, then each operator with what follows it.
type layout struct {
	head  []byte
	parts []part
}

type part struct {
	names []string // of the field, in lower case: both of %REQ(A?B)%
	tail  []byte   // the text up to the next operator; empty at the end of the line
}

// parseFormat reads a text format of Envoy's.
func parseFormat(format string) (*layout, error) {
	var l layout
	literal, rest, found := strings.Cut(strings.TrimRight(format, "\r\n"), "%")
	l.head = []byte(literal)
	for found {
		var op string
		if op, rest, found = cutOperator(rest); !found {
			return nil, fmt.Errorf("format: %%%s has no end", op)
		}
		literal, rest, found = strings.Cut(rest, "%")
		if found && literal == "" {
			return nil, fmt.Errorf("format: nothing stands between %%%s%% and the operator after it, so a line cannot be taken apart", op)
		}
		l.parts = append(l.parts, part{operatorNames(op), []byte(literal)})
	}
	if len(l.parts) == 0 {
		return nil, fmt.Errorf("format %q has no operator", format)
	}
	return &l, nil
}

// cutOperator finds the end of an operator; a % in its parentheses is no end, as in %START_TIME(%s)%.
func cutOperator(s string) (op, rest string, ok bool) {
	depth := 0
	for i := range len(s) {
		switch s[i] {
		case '(':
			depth++
		case ')':
			depth--
		case '%':
			if depth <= 0 {
				return s[:i], s[i+1:], true
			}
		}
	}
	return s, "", false
}

// operatorNames are the names of the field that an operator writes: a header's own, else the operator's.
func operatorNames(op string) []string {
	name, args, _ := strings.Cut(op, "(")
	args, _, _ = strings.Cut(args, ")")
	if name == "REQ" {
		return strings.Split(strings.ToLower(args), "?")
	}
	return []string{strings.ToLower(strings.TrimRight(name, ":0123456789"))}
}

// line calls see for every field of a line. A field ends where the text after its operator begins.
func (l *layout) line(b []byte, see func(name, value []byte)) error {
	b, ok := bytes.CutPrefix(b, l.head)
	if !ok {
		return fmt.Errorf("does not begin with %q", l.head)
	}
	for i := range l.parts {
		p := &l.parts[i]
		value := b
		if len(p.tail) > 0 {
			n := bytes.Index(b, p.tail)
			if n < 0 {
				return fmt.Errorf("%q does not follow %s", p.tail, p.names[0])
			}
			value, b = b[:n], b[n+len(p.tail):]
		}
		for _, name := range p.names {
			see([]byte(name), value)
		}
	}
	return nil
}
