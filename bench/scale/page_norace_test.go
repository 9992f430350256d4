//go:build !race

package main

import (
	"testing"
)

// The page says what is calculated here and what was measured, and nothing else: make it current with `go run ./test/scale/main`.
func TestPageIsCurrent(t *testing.T) {
	if testing.Short() {
		t.Skip("the large rings take some seconds")
	}
	m, err := Load("testdata/measured.json")
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPage(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Check("../.."); err != nil {
		t.Error(err)
	}
}
