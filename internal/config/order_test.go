package config

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

const orderRules = `
domain: d
descriptors:
- key: api_key
  descriptors:
  - key: path
    value: /a
    rate_limit: {unit: minute, requests_per_unit: 10}
  - key: path
    value: /b
    descriptors:
    - key: method
      rate_limit: {unit: minute, requests_per_unit: 10}
- key: method
  rate_limit: {unit: minute, requests_per_unit: 1}
  descriptors:
  - key: user
    value: "*"
    rate_limit: {unit: minute, requests_per_unit: 1}
- key: user
  value: bob
  descriptors:
  - key: method
    rate_limit: {unit: minute, requests_per_unit: 1}
- key: open
  rate_limit: {unlimited: true}
`

func TestOrder(t *testing.T) {
	r := load(t, Options{}, orderRules)
	for _, c := range []struct {
		domain string
		in     []Entry
		want   OrderResult
		out    []Entry
	}{
		{"d", []Entry{{"path", "/a"}, {"api_key", "k"}}, OrderFound, []Entry{{"api_key", "k"}, {"path", "/a"}}},
		{"d", []Entry{{"method", "GET"}, {"path", "/b"}, {"api_key", "k"}}, OrderFound, []Entry{{"api_key", "k"}, {"path", "/b"}, {"method", "GET"}}},
		{"d", []Entry{{"method", "GET"}}, OrderFound, []Entry{{"method", "GET"}}},
		{"d", []Entry{{"open", "1"}}, OrderFound, []Entry{{"open", "1"}}},
		{"d", []Entry{{"user", "eve"}, {"method", "GET"}}, OrderFound, []Entry{{"method", "GET"}, {"user", "eve"}}},
		{"d", []Entry{{"user", "bob"}, {"method", "GET"}}, OrderAmbiguous, nil},
		{"d", []Entry{{"path", "/b"}, {"api_key", "k"}}, OrderNone, nil}, // a descriptor without a limit
		{"d", []Entry{{"path", "/c"}, {"api_key", "k"}}, OrderNone, nil},
		{"d", []Entry{{"path", "/a"}}, OrderNone, nil},
		{"d", []Entry{{"path", "/a"}, {"api_key", "k"}, {"more", ""}}, OrderNone, nil},
		{"d", nil, OrderNone, nil},
		{"other", []Entry{{"method", "GET"}}, OrderNone, nil},
	} {
		in := slices.Clone(c.in)
		if got := r.Order(c.domain, in); got != c.want {
			t.Errorf("%v: %v, want %v", c.in, got, c.want)
			continue
		}
		want := c.out
		if want == nil {
			want = c.in
		}
		if !slices.Equal(in, want) {
			t.Errorf("%v became %v, want %v", c.in, in, want)
		}
	}
}

// Order finds what trying all orders finds.
func TestOrderTriesAllOrders(t *testing.T) {
	r := load(t, Options{}, orderRules)
	rnd := rand.New(rand.NewPCG(1, 2))
	keys, values := []string{"api_key", "path", "method", "user", "open"}, []string{"/a", "/b", "bob", "eve"}
	for range 2000 {
		var in []Entry
		for _, i := range rnd.Perm(len(keys))[:1+rnd.IntN(4)] {
			in = append(in, Entry{keys[i], values[rnd.IntN(len(values))]})
		}
		fits := 0
		var fit []Entry
		for _, order := range permutations(in) {
			var m Match
			if r.Match("d", order, nil, &m); m.Kind == Limited || m.Kind == Unlimited {
				fits, fit = fits+1, order
			}
		}
		got := slices.Clone(in)
		if want := OrderResult(min(fits, 2)); r.Order("d", got) != want || want == OrderFound && !slices.Equal(got, fit) {
			t.Fatalf("%v: %v, want %v %v", in, got, want, fit)
		}
	}
}

func permutations(in []Entry) (all [][]Entry) {
	if len(in) == 0 {
		return [][]Entry{nil}
	}
	for i := range in {
		rest := slices.Delete(slices.Clone(in), i, i+1)
		for _, p := range permutations(rest) {
			all = append(all, append([]Entry{in[i]}, p...))
		}
	}
	return all
}

// Entries that fit in many orders, but not to the end, do not cost more than a limited number of steps.
func TestOrderIsBounded(t *testing.T) {
	yaml := "domain: d\ndescriptors:\n"
	indent := ""
	for range 30 {
		yaml += indent + "- key: \"*\"\n" + indent + "  descriptors:\n"
		indent += "  "
	}
	yaml += indent + "- key: none\n" + indent + "  rate_limit: {unit: minute, requests_per_unit: 1}\n"
	r := load(t, Options{}, yaml)
	var in []Entry
	for i := range 31 {
		in = append(in, Entry{fmt.Sprint("k", i), "v"})
	}
	if got := r.Order("d", in); got != OrderAmbiguous {
		t.Error(got)
	}
}
