package replay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"testing"
	"unicode/utf8"
)

// flat returns what object must find, using encoding/json.
func flat(prefix string, v map[string]any, into map[string]string) {
	for k, x := range v {
		switch x := x.(type) {
		case map[string]any:
			flat(prefix+k+".", x, into)
		case string:
			into[prefix+k] = x
		case json.Number, bool:
			into[prefix+k] = fmt.Sprint(x)
		}
	}
}

func FuzzObject(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"a":1}`, `{"a":"b","c":{"d":null,"e":[1,{"x":"]"},"}"],"f":true}}`, `{"a":"\u00e9\n\"","b":-1.5e3}`, ` { "a" : "x" , "b" : { } } `, `{"a":`, `{"a":"\`, `[1]`,
		`{"a":"\ud800"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		got, seen := map[string]string{}, 0
		err := object(line, func(name, value []byte) { // must not panic for any line
			got[string(name)] = string(value)
			seen++
		})
		var v map[string]any
		d := json.NewDecoder(bytes.NewReader(line))
		d.UseNumber()
		if !utf8.Valid(line) || d.Decode(&v) != nil || v == nil || deeper(v, maxDepth) {
			return // invalid JSON may have any result
		}
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		want := map[string]string{}
		flat("", v, want)
		if seen != len(want) {
			return // duplicate name
		}
		if !maps.Equal(got, want) {
			t.Fatalf("%s: %q, want %q", line, got, want)
		}
	})
}

func deeper(v any, than int) bool {
	m, ok := v.(map[string]any)
	if !ok {
		return false
	}
	for _, x := range m {
		if than == 0 || deeper(x, than-1) {
			return true
		}
	}
	return than == 0
}
