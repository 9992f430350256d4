// Package plot draws the diagrams of the benchmark reports and of docs/scale.md as SVG.
//
// Diagrams that are part of a page take their colors from the page's style sheet, which has rules for the classes used here. A Chart can
// also be drawn as a file of its own, with a style sheet that suits light and dark backgrounds.
package plot

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"slices"
	"strings"
)

// Sizes in the units of the view box. A page scales them with its width.
const (
	width      = 800
	labelWidth = 335
	rowHeight  = 26
	barHeight  = 14
)

// Bar is one row of Bars or Stacked.
type Bar struct {
	Label, Class     string
	Value, Low, High float64
	More             float64 // Stacked draws it after Value
}

// Row is one row of Dots.
type Row struct {
	Label, Class string
	Values       []float64 // positive; the first gets the largest dot
}

// canvas collects the elements of one SVG image.
type canvas struct{ strings.Builder }

func (c *canvas) text(x, y float64, class, text string) {
	fmt.Fprintf(c, `<text x="%.1f" y="%.1f" class="%s">%s</text>`+"\n", x, y, class, html.EscapeString(text))
}

func (c *canvas) rect(x, y, w float64, class string) {
	fmt.Fprintf(c, `<rect x="%.1f" y="%.1f" width="%.1f" height="%d" class="%s" rx="2"/>`+"\n", x, y, max(w, 1), barHeight, class)
}

func (c *canvas) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(c, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`+"\n", x1, y1, x2, y2, class)
}

func (c *canvas) circle(x, y, r float64, class string) {
	fmt.Fprintf(c, `<circle cx="%.1f" cy="%.1f" r="%.1f" class="%s"/>`+"\n", x, y, r, class)
}

// inline returns the image as an element of a page.
func (c *canvas) inline(height int) template.HTML {
	return template.HTML(fmt.Sprintf(`<svg viewBox="0 0 %d %d" role="img" preserveAspectRatio="xMinYMin meet">`, width, height) + c.String() + "</svg>")
}

// Bars draws values as bars, each with a line from Low to High. format formats a value.
func Bars(bars []Bar, format string) template.HTML {
	c, longest := &canvas{}, 1e-9
	for _, b := range bars {
		longest = max(longest, b.Value)
	}
	const room = width - labelWidth - 90
	scale := room / longest
	for i, b := range bars {
		y := float64(i * rowHeight)
		end := min(b.High*scale, room)
		c.text(labelWidth-10, y+17, "label", b.Label)
		c.rect(labelWidth, y+6, b.Value*scale, b.Class)
		c.line(labelWidth+b.Low*scale, y+13, labelWidth+end, y+13, "span")
		c.text(labelWidth+max(b.Value*scale, end)+8, y+17, "value", fmt.Sprintf(format, b.Value))
	}
	return c.inline(rowHeight * len(bars))
}

// Stacked draws Value, in the color of the class "proxy", followed by More. The legend names the two.
func Stacked(bars []Bar, value, more string) template.HTML {
	c, longest := &canvas{}, 1e-9
	for _, b := range bars {
		longest = max(longest, b.Value+b.More)
	}
	scale := (width - labelWidth - 120) / longest
	c.rect(labelWidth, 5, 12, "proxy")
	c.text(labelWidth+18, 16, "value", value)
	c.rect(labelWidth+80, 5, 12, "theirs")
	c.rect(labelWidth+94, 5, 12, "ours")
	c.text(labelWidth+112, 16, "value", more)
	for i, b := range bars {
		y := float64((i + 1) * rowHeight)
		text := fmt.Sprintf("%.1f", b.Value)
		c.text(labelWidth-10, y+17, "label", b.Label)
		c.rect(labelWidth, y+6, b.Value*scale, "proxy")
		if b.More > 0 {
			c.rect(labelWidth+b.Value*scale, y+6, b.More*scale, b.Class)
			text += fmt.Sprintf(" + %.1f", b.More)
		}
		c.text(labelWidth+(b.Value+b.More)*scale+8, y+17, "value", text)
	}
	return c.inline(rowHeight * (len(bars) + 1))
}

// Dots draws the values of each row on one logarithmic scale.
func Dots(rows []Row) template.HTML {
	c, s := &canvas{}, logScale{from: labelWidth + 10, to: width - 20}
	for _, r := range rows {
		s.include(r.Values...)
	}
	s.widen()
	bottom := float64(rowHeight * len(rows))
	for _, v := range s.ticks() {
		c.line(s.at(v), 0, s.at(v), bottom, "grid")
		c.text(s.at(v), bottom+18, "tick", short(v))
	}
	for i, r := range rows {
		y := float64(i*rowHeight) + 13
		c.text(labelWidth-10, y+4, "label", r.Label)
		c.line(s.at(r.Values[0]), y, s.at(r.Values[len(r.Values)-1]), y, "through "+r.Class)
		for j, v := range r.Values {
			c.circle(s.at(v), y, 6-float64(j), fmt.Sprintf("%s q%d", r.Class, j))
		}
	}
	return c.inline(rowHeight * (len(rows) + 1))
}

// logScale maps the values low..high to the positions from..to, logarithmically. Values outside are moved to its ends.
type logScale struct{ low, high, from, to float64 }

// include extends the scale to the positive ones of values.
func (s *logScale) include(values ...float64) {
	for _, v := range values {
		if v > 0 && (s.low == 0 || v < s.low) {
			s.low = v
		}
		s.high = max(s.high, v)
	}
}

// widen leaves some room at both ends.
func (s *logScale) widen() {
	if s.low == 0 {
		s.low, s.high = 0.1, 1
	}
	s.low, s.high = s.low/1.2, s.high*1.2
}

func (s *logScale) at(v float64) float64 {
	v = min(max(v, s.low), s.high)
	return s.from + (s.to-s.from)*math.Log(v/s.low)/math.Log(s.high/s.low)
}

// ticks returns 1, 2 and 5 times powers of ten, or only the powers if the scale spans many.
func (s *logScale) ticks() (ticks []float64) {
	steps := []float64{1, 2, 5}
	if s.high/s.low > 300 {
		steps = steps[:1]
	}
	for p := math.Floor(math.Log10(s.low)); p <= math.Log10(s.high)+1e-9; p++ {
		for _, m := range steps {
			if v := m * math.Pow(10, p); v >= s.low*0.999 && v <= s.high*1.001 {
				ticks = append(ticks, v)
			}
		}
	}
	return ticks
}

// short formats the number of a tick.
func short(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%gM", v/1e6)
	case v >= 1e3:
		return fmt.Sprintf("%gk", v/1e3)
	}
	return fmt.Sprintf("%.3g", v)
}

// spread moves heights that are closer than gap apart, in their order, and keeps all of them between top and bottom.
func spread(heights []float64, gap, top, bottom float64) []float64 {
	order := make([]int, len(heights))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		switch {
		case heights[i] < heights[j]:
			return -1
		case heights[i] > heights[j]:
			return 1
		}
		return 0
	})
	out := slices.Clone(heights)
	for _, i := range order {
		out[i] = max(out[i], top)
		top = out[i] + gap
	}
	for _, i := range slices.Backward(order) {
		out[i] = min(out[i], bottom)
		bottom = out[i] - gap
	}
	return out
}
