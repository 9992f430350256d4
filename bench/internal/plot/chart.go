package plot

import (
	"fmt"
	"html"
	"html/template"
	"strings"
)

// Chart is a diagram of curves over a few steps, with a logarithmic y axis.
type Chart struct {
	Title, X, Y string
	Steps       []Step
	Low, High   float64 // of the y axis; 0: those of the curves
	Curves      []Curve
}

// Step is a labeled position on the x axis.
type Step struct {
	At    float64 // between 0 (left) and 1 (right)
	Label string
}

// Curve is a line, or single dots, through points whose x is a position as in Step.
type Curve struct {
	Label, Class string
	Points       [][2]float64
	Dots         bool
}

// The borders of a Chart's axes and the room for the labels next to the curves.
const (
	chartHeight = 420
	left, right = 70, 550
	upper       = 46
	bottom      = chartHeight - 50
	labelGap    = 15
)

// style is the style sheet of a chart that is a file of its own.
const style = `
 .title{font:600 14px system-ui,sans-serif;fill:#1f2328}.label,.tick,.value{font:12px system-ui,sans-serif;fill:#57606a}.label{text-anchor:end}.tick{text-anchor:middle}
 .grid{stroke:#d1d9e0;stroke-width:1}.axis{stroke:#57606a;stroke-width:1.5}polyline{fill:none;stroke-width:2.2}
 .c0{stroke:#0969da}.c1{stroke:#bf8700}.c2{stroke:#8250df}.c3{stroke:#cf222e}.c4{stroke:#1a7f37}
 text.c0,circle.c0{fill:#0969da;stroke:none}text.c1,circle.c1{fill:#9a6700;stroke:none}text.c2,circle.c2{fill:#8250df;stroke:none}text.c3,circle.c3{fill:#cf222e;stroke:none}text.c4,circle.c4{fill:#1a7f37;stroke:none}
 @media (prefers-color-scheme:dark){.title{fill:#e6edf3}.label,.tick,.value{fill:#9198a1}.grid{stroke:#30363d}.axis{stroke:#9198a1}
 .c0{stroke:#58a6ff}.c1{stroke:#d29922}.c2{stroke:#a371f7}.c3{stroke:#f85149}.c4{stroke:#3fb950}
 text.c0,circle.c0{fill:#58a6ff}text.c1,circle.c1{fill:#d29922}text.c2,circle.c2{fill:#a371f7}text.c3,circle.c3{fill:#f85149}text.c4,circle.c4{fill:#3fb950}}
`

// File returns the chart as an SVG file. Curves without a class get one color each.
func (c Chart) File() string {
	title := html.EscapeString(c.Title)
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" role="img" aria-label="%s">`+"\n<title>%s</title>\n<style>%s</style>\n",
		width, chartHeight, width, title, title, style) + c.draw() + "</svg>\n"
}

// Inline returns the chart as an element of a page.
func (c Chart) Inline() template.HTML {
	d := &canvas{}
	d.WriteString(c.draw())
	return d.inline(chartHeight)
}

func (c Chart) draw() string {
	d, s := &canvas{}, logScale{from: bottom, to: upper}
	if c.Low > 0 {
		s.low, s.high = c.Low, c.High
	} else {
		for _, l := range c.Curves {
			for _, p := range l.Points {
				s.include(p[1])
			}
		}
		s.widen()
	}
	c.axes(d, &s)
	var named []Curve // those with a label next to their end
	var ends []float64
	for i, l := range c.Curves {
		if l.Class == "" {
			l.Class = fmt.Sprintf("c%d", i%5)
		}
		l.draw(d, &s)
		if !l.Dots && len(l.Points) > 0 {
			named, ends = append(named, l), append(ends, s.at(l.Points[len(l.Points)-1][1])+4)
		}
	}
	for i, y := range spread(ends, labelGap, upper, bottom) {
		d.text(right+10, y, "value "+named[i].Class, named[i].Label)
	}
	return d.String()
}

// axes draws the grid with its numbers and the titles.
func (c Chart) axes(d *canvas, s *logScale) {
	d.text(left, 24, "title", c.Title)
	for _, v := range s.ticks() {
		d.line(left, s.at(v), right, s.at(v), "grid")
		d.text(left-8, s.at(v)+4, "label", short(v))
	}
	for _, step := range c.Steps {
		d.line(xAt(step.At), upper, xAt(step.At), bottom, "grid")
		d.text(xAt(step.At), bottom+18, "tick", step.Label)
	}
	d.line(left, upper, left, bottom, "axis")
	d.line(left, bottom, right, bottom, "axis")
	d.text((left+right)/2, chartHeight-10, "tick", c.X)
	d.text(left, 40, "value", c.Y)
}

func xAt(at float64) float64 { return left + (right-left)*at }

func (l Curve) draw(d *canvas, s *logScale) {
	var points []string
	for _, p := range l.Points {
		x, y := xAt(p[0]), s.at(p[1])
		points = append(points, fmt.Sprintf("%.1f,%.1f", x, y))
		if l.Dots {
			d.circle(x, y, 4, l.Class)
		}
	}
	if !l.Dots {
		fmt.Fprintf(d, `<polyline points="%s" class="curve %s"/>`+"\n", strings.Join(points, " "), l.Class)
	}
}
