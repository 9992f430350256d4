package main

import (
	"cmp"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
)

// The measures of all plots, in pixels of their own. They grow and shrink with the page.
const (
	plotWidth  = 800
	labelWidth = 335
	rowHeight  = 26
	barHeight  = 14
)

// bar is a row of a plot of bars.
type bar struct {
	Label            string
	Ours             bool
	Value, Low, High float64
	More             float64 // of stacked: after Value
}

// curve is one contestant in a plot of several values.
type curve struct {
	Label string
	Ours  bool
	X     []string
	Y     []float64
}

type svg struct{ strings.Builder }

func newSVG(height int) *svg {
	s := &svg{}
	fmt.Fprintf(s, `<svg viewBox="0 0 %d %d" role="img" preserveAspectRatio="xMinYMin meet">`, plotWidth, height)
	return s
}

func (s *svg) html() template.HTML {
	s.WriteString("</svg>")
	return template.HTML(s.String()) // all text in it went through text
}

func (s *svg) text(x, y float64, class, text string) {
	fmt.Fprintf(s, `<text x="%.1f" y="%.1f" class="%s">%s</text>`, x, y, class, template.HTMLEscapeString(text))
}

func (s *svg) rect(x, y, w, h float64, class string) {
	fmt.Fprintf(s, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" class="%s" rx="2"/>`, x, y, max(w, 1), h, class)
}

func (s *svg) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(s, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`, x1, y1, x2, y2, class)
}

func (s *svg) circle(x, y, r float64, class string) {
	fmt.Fprintf(s, `<circle cx="%.1f" cy="%.1f" r="%.1f" class="%s"/>`, x, y, r, class)
}

func mark(ours bool) string {
	if ours {
		return "ours"
	}
	return "theirs"
}

// bars draws values as bars with the span of the rounds.
func bars(all []bar, format string) template.HTML {
	s := newSVG(rowHeight * len(all))
	longest := 0.0
	for _, b := range all {
		longest = max(longest, b.Value)
	}
	scale := (plotWidth - labelWidth - 90) / max(longest, 1e-9)
	for i, b := range all {
		y := float64(i * rowHeight)
		s.text(labelWidth-10, y+17, "label", b.Label)
		s.rect(labelWidth, y+6, b.Value*scale, barHeight, mark(b.Ours))
		end := min(b.High*scale, plotWidth-labelWidth-90)
		s.line(labelWidth+b.Low*scale, y+13, labelWidth+end, y+13, "span")
		s.text(labelWidth+max(b.Value*scale, end)+8, y+17, "value", fmt.Sprintf(format, b.Value))
	}
	return s.html()
}

// stacked draws two values each, one after the other.
func stacked(all []bar) template.HTML {
	s := newSVG(rowHeight*len(all) + rowHeight)
	longest := 0.0
	for _, b := range all {
		longest = max(longest, b.Value+b.More)
	}
	scale := (plotWidth - labelWidth - 120) / max(longest, 1e-9)
	s.rect(labelWidth, 6, 12, 12, "proxy")
	s.text(labelWidth+18, 16, "value", "Envoy")
	s.rect(labelWidth+80, 6, 12, 12, "theirs")
	s.rect(labelWidth+94, 6, 12, 12, "ours")
	s.text(labelWidth+112, 16, "value", "the service")
	for i, b := range all {
		y := float64(i*rowHeight + rowHeight)
		s.text(labelWidth-10, y+17, "label", b.Label)
		s.rect(labelWidth, y+6, b.Value*scale, barHeight, "proxy")
		text := fmt.Sprintf("%.1f", b.Value)
		if b.More > 0 {
			s.rect(labelWidth+b.Value*scale, y+6, b.More*scale, barHeight, mark(b.Ours))
			text += fmt.Sprintf(" + %.1f", b.More)
		}
		s.text(labelWidth+(b.Value+b.More)*scale+8, y+17, "value", text)
	}
	return s.html()
}

// axis is a logarithmic scale over values.
type axis struct{ low, high, from, to float64 }

func newAxis(all []curve, from, to float64) axis {
	a := axis{low: math.Inf(1), high: math.Inf(-1), from: from, to: to}
	for _, c := range all {
		for _, v := range c.Y {
			if v > 0 {
				a.low, a.high = min(a.low, v), max(a.high, v)
			}
		}
	}
	if a.low > a.high {
		a.low, a.high = 0.1, 1
	}
	a.low, a.high = a.low/1.2, a.high*1.2
	return a
}

func (a axis) at(v float64) float64 {
	return a.from + (a.to-a.from)*math.Log(max(v, a.low)/a.low)/math.Log(a.high/a.low)
}

// ticks are round values on the scale: 1, 2 and 5 times powers of ten, or the powers alone where there are many.
func (a axis) ticks() (all []float64) {
	steps := []float64{1, 2, 5}
	if a.high/a.low > 300 {
		steps = steps[:1]
	}
	for p := math.Floor(math.Log10(a.low)); p <= math.Log10(a.high); p++ {
		for _, m := range steps {
			if v := m * math.Pow(10, p); v >= a.low && v <= a.high {
				all = append(all, v)
			}
		}
	}
	return all
}

// dots draws each contestant's values in a row, on a logarithmic scale: the first is the fullest dot.
func dots(all []curve) template.HTML {
	s := newSVG(rowHeight*len(all) + rowHeight)
	a := newAxis(all, labelWidth+10, plotWidth-20)
	bottom := float64(rowHeight * len(all))
	for _, v := range a.ticks() {
		s.line(a.at(v), 0, a.at(v), bottom, "grid")
		s.text(a.at(v), bottom+18, "tick", fmt.Sprintf("%g", v))
	}
	for i, c := range all {
		y := float64(i*rowHeight) + 13
		s.text(labelWidth-10, y+4, "label", c.Label)
		s.line(a.at(c.Y[0]), y, a.at(c.Y[len(c.Y)-1]), y, "through "+mark(c.Ours))
		for j, v := range c.Y {
			s.circle(a.at(v), y, 6-float64(j), mark(c.Ours)+fmt.Sprintf(" q%d", j))
		}
	}
	return s.html()
}

// lines draws values over steps, on a logarithmic scale, with each curve's name at its end.
func lines(all []curve) template.HTML {
	const height = 300
	s := newSVG(height + rowHeight)
	if len(all) == 0 {
		return s.html()
	}
	a := newAxis(all, height-10, 10)
	left, right := 50.0, float64(plotWidth-labelWidth)
	for _, v := range a.ticks() {
		s.line(left, a.at(v), right, a.at(v), "grid")
		s.text(left-8, a.at(v)+4, "label", fmt.Sprintf("%g", v))
	}
	steps := all[0].X
	x := func(i int) float64 { return left + 20 + (right-left-40)*float64(i)/float64(max(1, len(steps)-1)) }
	for i, name := range steps {
		s.text(x(i), height+18, "tick", name)
	}
	ends := place(all, a)
	for k, c := range all {
		var points []string
		for i, v := range c.Y {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(i), a.at(v)))
			s.circle(x(i), a.at(v), 3.5, mark(c.Ours))
		}
		fmt.Fprintf(s, `<polyline points="%s" class="curve %s"/>`, strings.Join(points, " "), mark(c.Ours))
		s.line(x(len(c.Y)-1)+6, a.at(c.Y[len(c.Y)-1]), right+6, ends[k]-4, "grid")
		s.text(right+10, ends[k], "value", c.Label)
	}
	return s.html()
}

// place finds heights for the curves' names at which they do not cover each other.
func place(all []curve, a axis) []float64 {
	const apart = 16
	last := func(i int) float64 { return a.at(all[i].Y[len(all[i].Y)-1]) }
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(last(i), last(j)) })
	ends, lowest := make([]float64, len(all)), 12.0
	for _, i := range order {
		ends[i] = max(last(i)+4, lowest)
		lowest = ends[i] + apart
	}
	highest := a.from + 14
	for k := len(order) - 1; k >= 0; k-- { // and back up from the bottom
		ends[order[k]] = min(ends[order[k]], highest)
		highest = ends[order[k]] - apart
	}
	return ends
}
