package scale

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

// A plot's points lie inside its axes, and its names do not cover each other.
func TestPlot(t *testing.T) {
	p := Plot{Low: 1, High: 1000, Lines: []Line{
		{Name: "a", Points: [][2]float64{{3, 0.001}, {2000, 1e9}}},
		{Name: "b", Points: [][2]float64{{3, 1}, {2000, 999}}},
		{Name: "c", Points: [][2]float64{{3, 1}, {2000, 1}}},
		{Name: "d", Points: [][2]float64{{3, 1}, {2000, 1}}},
	}}
	for _, v := range []float64{0, 1, 1000, 1e9} {
		if y := p.y(v); y < upper || y > plotBottom {
			t.Errorf("%g is drawn at %g", v, y)
		}
	}
	ends := p.ends()
	for i, a := range ends {
		for j, b := range ends {
			if d := a - b; i != j && d > -14 && d < 14 {
				t.Errorf("names %d and %d at %g and %g", i, j, a, b)
			}
		}
	}
}
