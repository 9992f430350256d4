package replay

import (
	"bytes"
	"fmt"
	"strings"
)

// defaultFormat is Envoy's default access log format.
const defaultFormat = `[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% %RESPONSE_FLAGS% ` +
	`%BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" ` +
	`"%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%"`

// layout is a parsed text format: the text before the first operator, and each operator with the text after it.
type layout struct {
	head  []byte
	parts []part
}

type part struct {
	names []string // of the field, in lower case; both names of %REQ(A?B)%
	tail  []byte   // the text up to the next operator; empty at the end of the line
}

// parseFormat parses a text format of Envoy.
func parseFormat(format string) (*layout, error) {
	var l layout
	literal, rest, found := strings.Cut(strings.TrimRight(format, "\r\n"), "%")
	l.head = []byte(literal)
	for found {
		var op string
		if op, rest, found = cutOperator(rest); !found {
			return nil, fmt.Errorf("format: %%%s is not closed", op)
		}
		literal, rest, found = strings.Cut(rest, "%")
		if found && literal == "" {
			return nil, fmt.Errorf("format: there is no text between %%%s%% and the next operator, so lines cannot be parsed",
				op)
		}
		l.parts = append(l.parts, part{operatorNames(op), []byte(literal)})
	}
	if len(l.parts) == 0 {
		return nil, fmt.Errorf("format %q has no operator", format)
	}
	return &l, nil
}

// cutOperator finds the end of an operator. A % in parentheses is part of it, as in %START_TIME(%s)%.
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

// operatorNames returns the names of the field that an operator writes: those of a header, or else that of the
// operator.
func operatorNames(op string) []string {
	name, args, _ := strings.Cut(op, "(")
	args, _, _ = strings.Cut(args, ")")
	if name == "REQ" {
		return strings.Split(strings.ToLower(args), "?")
	}
	return []string{strings.ToLower(strings.TrimRight(name, ":0123456789"))}
}

// line calls see for every field of a line. A field ends at the text after its operator.
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
