package rls

import (
	"strings"
	"unicode/utf8"
)

// JSON cannot carry invalid UTF-8, and its parser rejects it. To count such callers like any other, each invalid byte
// passes the parser as a rune of a private range. Runes of that range in the input pass as their four bytes, so that
// different values stay different.
const privateRunes rune = 0x10FF00

func isPrivate(r rune) bool { return r >= privateRunes && r <= privateRunes+0xff }

// hideOpaque returns b as valid UTF-8, and reports whether b was not.
func hideOpaque(b []byte) (out []byte, hidden bool) {
	if utf8.Valid(b) {
		return b, false
	}
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r != utf8.RuneError && !isPrivate(r) || r == utf8.RuneError && n > 1 {
			out = append(out, b[:n]...)
		} else {
			for _, odd := range b[:n] {
				out = utf8.AppendRune(out, privateRunes+rune(odd))
			}
		}
		b = b[n:]
	}
	return out, true
}

// showOpaque restores the original bytes of s.
func showOpaque(s string) string {
	var out strings.Builder
	for _, r := range s {
		if isPrivate(r) {
			out.WriteByte(byte(r - privateRunes))
		} else {
			out.WriteRune(r)
		}
	}
	return out.String()
}

func (r *RateLimitRequest) showOpaque() {
	r.Domain = showOpaque(r.Domain)
	for i := range r.entries {
		e := &r.entries[i]
		e.Key, e.Value = showOpaque(e.Key), showOpaque(e.Value)
	}
}
