package plot

import (
	"encoding/xml"
	"math"
	"strings"
	"testing"
)

// The labels at the ends of curves do not cover each other and stay on the chart.
func TestSpread(t *testing.T) {
	got := spread([]float64{100, 100.5, 290, 99, 289}, labelGap, 12, 300)
	for i := range got {
		if got[i] < 12 || got[i] > 300 {
			t.Errorf("%v is outside", got[i])
		}
		for j := range i {
			if math.Abs(got[i]-got[j]) < labelGap-1e-9 {
				t.Errorf("%v and %v are too close", got[i], got[j])
			}
		}
	}
}

func TestLogScale(t *testing.T) {
	s := logScale{low: 1, high: 1000, from: bottom, to: upper}
	for _, v := range []float64{0, 1, 1000, 1e9} {
		if y := s.at(v); y < upper || y > bottom {
			t.Errorf("%g is drawn at %g", v, y)
		}
	}
	if ticks := s.ticks(); len(ticks) != 4 || ticks[0] != 1 || ticks[3] != 1000 {
		t.Errorf("ticks %v", ticks)
	}
}

// Every image is well-formed XML, whatever the labels contain, and has an element for every value.
func TestImages(t *testing.T) {
	c := Chart{Title: "<a> & b", Steps: []Step{{0, "3"}, {1, "2000"}}, Low: 1, High: 1000, Curves: []Curve{
		{Label: "a&b", Points: [][2]float64{{0, 0.001}, {1, 1e9}}},
		{Points: [][2]float64{{0.5, 7}}, Dots: true},
	}}
	for name, test := range map[string]struct {
		image string
		count map[string]int
	}{
		"file":    {c.File(), map[string]int{"<polyline": 1, "<circle": 1, "<style>": 1}},
		"inline":  {string(c.Inline()), map[string]int{"<polyline": 1, "<circle": 1, "<style>": 0, "http": 0}},
		"empty":   {string(Chart{}.Inline()), map[string]int{"<polyline": 0}},
		"bars":    {string(Bars([]Bar{{Label: "<x>", Value: 2, Low: 1, High: 9}, {}}, "%.1f")), map[string]int{"<rect": 2}},
		"stacked": {string(Stacked([]Bar{{Value: 2, More: 1}}, "a", "b")), map[string]int{"<rect": 5}},
		"dots":    {string(Dots([]Row{{Values: []float64{1, 2, 3}}})), map[string]int{"<circle": 3}},
	} {
		if err := xml.Unmarshal([]byte(test.image), new(struct{})); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for part, want := range test.count {
			if n := strings.Count(test.image, part); n != want {
				t.Errorf("%s: %d times %s, want %d", name, n, part, want)
			}
		}
		if strings.Contains(test.image, "NaN") {
			t.Errorf("%s contains NaN", name)
		}
	}
}
