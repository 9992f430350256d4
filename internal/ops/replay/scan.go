package replay

import (
	"bytes"
	"encoding/json"
	"errors"
)

var errJSON = errors.New("not a JSON object")

// object calls see for every member of a JSON object, except for those whose value is null, an array or an object.
// Members of nested objects have names joined with dots. Strings are unquoted, other values unchanged. It does not
// validate values that it skips: it returns an error only if it cannot find the next member.
func object(line []byte, see func(name, value []byte)) error {
	_, err := members(line, nil, 0, see)
	return err
}

// maxDepth is the maximum depth of nested objects.
const maxDepth = 16

func members(b, prefix []byte, depth int, see func(name, value []byte)) (rest []byte, err error) {
	if b = space(b); len(b) == 0 || b[0] != '{' || depth > maxDepth {
		return nil, errJSON
	}
	if b = space(b[1:]); len(b) > 0 && b[0] == '}' {
		return b[1:], nil
	}
	var stack [128]byte
	for {
		var name []byte
		if name, b, err = text(space(b)); err != nil {
			return nil, err
		}
		if b = space(b); len(b) == 0 || b[0] != ':' {
			return nil, errJSON
		}
		full := append(append(stack[:0], prefix...), name...)
		if b, err = member(space(b[1:]), full, depth, see); err != nil {
			return nil, err
		}
		if b = space(b); len(b) == 0 {
			return nil, errJSON
		}
		switch b[0] {
		case '}':
			return b[1:], nil
		case ',':
			b = space(b[1:])
		default:
			return nil, errJSON
		}
	}
}

func member(b, name []byte, depth int, see func(name, value []byte)) (rest []byte, err error) {
	if len(b) == 0 {
		return nil, errJSON
	}
	switch b[0] {
	case '"':
		value, rest, err := text(b)
		if err == nil {
			see(name, value)
		}
		return rest, err
	case '{':
		return members(b, append(name, '.'), depth+1, see)
	case '[':
		return list(b)
	}
	n := bytes.IndexAny(b, ",}] \t\r\n")
	if n <= 0 {
		return nil, errJSON
	}
	if value := b[:n]; string(value) != "null" {
		see(name, value)
	}
	return b[n:], nil
}

// list skips an array.
func list(b []byte) (rest []byte, err error) {
	for depth := 0; len(b) > 0; {
		switch b[0] {
		case '"':
			if _, b, err = text(b); err != nil {
				return nil, err
			}
			continue
		case '[', '{':
			depth++
		case ']', '}':
			if depth--; depth == 0 {
				return b[1:], nil
			}
		}
		b = b[1:]
	}
	return nil, errJSON
}

// text reads a string.
func text(b []byte) (value, rest []byte, err error) {
	if len(b) == 0 || b[0] != '"' {
		return nil, nil, errJSON
	}
	escaped := false
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			escaped = true
			i++
		case '"':
			if !escaped {
				return b[1:i], b[i+1:], nil
			}
			var s string
			if json.Unmarshal(b[:i+1], &s) != nil {
				return nil, nil, errJSON
			}
			return []byte(s), b[i+1:], nil
		}
	}
	return nil, nil, errJSON
}

func space(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t' || b[0] == '\n' || b[0] == '\r') {
		b = b[1:]
	}
	return b
}
