package rls

import (
	"testing"
	"unicode/utf8"
)

// Property: hideOpaque turns any bytes into valid UTF-8, and showOpaque restores them.
func FuzzOpaque(f *testing.F) {
	for _, s := range []string{"", "plain", "a\xff\xfeb", "\U0010FF80\xff", "\uFFFD\xe2\x82", "é\U0010FFFF"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, hidden := hideOpaque([]byte(s))
		if !utf8.Valid(b) || hidden == utf8.ValidString(s) {
			t.Fatalf("%q hides as %q, hidden %v", s, b, hidden)
		}
		if hidden && showOpaque(string(b)) != s {
			t.Errorf("%q shows as %q", s, showOpaque(string(b)))
		}
	})
}
