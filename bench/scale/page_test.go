package main

import (
	"strings"
	"testing"
)

func TestFill(t *testing.T) {
	p := &Page{blocks: map[string]string{"a": "new"}}
	got, err := p.fill("x\n<!-- begin a -->\nold\n<!-- end a -->\ny\n")
	if want := "x\n<!-- begin a -->\nnew\n<!-- end a -->\ny\n"; err != nil || got != want {
		t.Errorf("%q, %v", got, err)
	}
	for _, text := range []string{"", "<!-- begin b -->\n<!-- end b -->", strings.Repeat("<!-- begin a -->\n<!-- end a -->\n", 2)} {
		if _, err := p.fill(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
