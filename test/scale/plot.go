package scale

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Plot is a diagram with two logarithmic axes, readable on light and dark paper.
type Plot struct {
	Title, X, Y string
	Lines       []Line
	Low, High   float64 // of the y axis: powers of ten
}

// Line is one curve.
type Line struct {
	Name   string
	Points [][2]float64
	Dots   bool // points that were measured, not joined
}

const (
	plotWide, plotHigh                = 760, 400
	left, right, upper, lower         = 70, 210, 46, 50
	plotRight, plotBottom             = plotWide - right, plotHigh - lower
	plotLeast, plotMost       float64 = 2, 3000 // members
)

const plotStyle = `
 .t{font:600 14px system-ui,sans-serif;fill:#1f2328}.s{font:12px system-ui,sans-serif;fill:#57606a}.e{text-anchor:end}.m{text-anchor:middle}
 .g{stroke:#d1d9e0;stroke-width:1}.x{stroke:#57606a;stroke-width:1.5}path{fill:none;stroke-width:2.2}
 .c0{stroke:#0969da}.c1{stroke:#bf8700}.c2{stroke:#8250df}.c3{stroke:#cf222e}.c4{stroke:#1a7f37}
 .f0{fill:#0969da}.f1{fill:#9a6700}.f2{fill:#8250df}.f3{fill:#cf222e}.f4{fill:#1a7f37}
 @media (prefers-color-scheme:dark){.t{fill:#e6edf3}.s{fill:#9198a1}.g{stroke:#30363d}.x{stroke:#9198a1}
 .c0{stroke:#58a6ff}.c1{stroke:#d29922}.c2{stroke:#a371f7}.c3{stroke:#f85149}.c4{stroke:#3fb950}
 .f0{fill:#58a6ff}.f1{fill:#d29922}.f2{fill:#a371f7}.f3{fill:#f85149}.f4{fill:#3fb950}}
`

// SVG draws it.
func (p Plot) SVG() string {
	var b strings.Builder
	title := html.EscapeString(p.Title)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" role="img" aria-label="%s">`+"\n", plotWide, plotHigh, plotWide, title)
	fmt.Fprintf(&b, "<title>%s</title>\n<style>%s</style>\n", title, plotStyle)
	fmt.Fprintf(&b, `<text x="%d" y="24" class="t">%s</text>`+"\n", left, title)
	p.grid(&b)
	ends := p.ends()
	for i, l := range p.Lines {
		p.line(&b, l, i%5)
		if !l.Dots {
			fmt.Fprintf(&b, `<text x="%d" y="%.1f" class="s f%d">%s</text>`+"\n", plotRight+8, ends[i]+4, i%5, html.EscapeString(l.Name))
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// grid draws the axes with their numbers.
func (p Plot) grid(b *strings.Builder) {
	for y := p.Low; y <= p.High*1.001; y *= 10 {
		fmt.Fprintf(b, `<path d="M%d %.1fH%d" class="g"/><text x="%d" y="%.1f" class="s e">%s</text>`+"\n", left, p.y(y), plotRight, left-8, p.y(y)+4, short(y))
	}
	for _, x := range Sizes {
		fmt.Fprintf(b, `<path d="M%.1f %dV%d" class="g"/><text x="%.1f" y="%d" class="s m">%d</text>`+"\n", p.x(float64(x)), upper, plotBottom, p.x(float64(x)), plotBottom+18, x)
	}
	fmt.Fprintf(b, `<path d="M%d %dV%dH%d" class="x"/>`+"\n", left, upper, plotBottom, plotRight)
	fmt.Fprintf(b, `<text x="%d" y="%d" class="s m">%s</text>`+"\n", (left+plotRight)/2, plotHigh-10, html.EscapeString(p.X))
	fmt.Fprintf(b, `<text x="%d" y="40" class="s">%s</text>`+"\n", left, html.EscapeString(p.Y))
}

func (p Plot) line(b *strings.Builder, l Line, color int) {
	if l.Dots {
		for _, q := range l.Points {
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="4" class="f%d"/>`+"\n", p.x(q[0]), p.y(q[1]), color)
		}
		return
	}
	cmd := "M"
	b.WriteString(`<path d="`)
	for _, q := range l.Points {
		fmt.Fprintf(b, "%s%.1f %.1f", cmd, p.x(q[0]), p.y(q[1]))
		cmd = "L"
	}
	fmt.Fprintf(b, `" class="c%d"/>`+"\n", color)
}

// ends are the heights of the names beside the lines' ends, moved apart where lines end together.
func (p Plot) ends() []float64 {
	const apart = 15
	out := make([]float64, len(p.Lines))
	order := make([]int, 0, len(p.Lines))
	for i, l := range p.Lines {
		out[i] = p.y(l.Points[len(l.Points)-1][1])
		at := len(order)
		for at > 0 && out[order[at-1]] > out[i] {
			at--
		}
		if !l.Dots {
			order = append(order[:at], append([]int{i}, order[at:]...)...)
		}
	}
	for i := 1; i < len(order); i++ {
		out[order[i]] = max(out[order[i]], out[order[i-1]]+apart)
	}
	for i := len(order) - 1; i >= 0; i-- {
		floor := float64(plotBottom)
		if i < len(order)-1 {
			floor = out[order[i+1]] - apart
		}
		out[order[i]] = min(out[order[i]], floor)
	}
	return out
}

func (p Plot) x(v float64) float64 {
	return left + (plotRight-left)*math.Log(v/plotLeast)/math.Log(plotMost/plotLeast)
}

func (p Plot) y(v float64) float64 {
	at := math.Log(min(max(v, p.Low), p.High)/p.Low) / math.Log(p.High/p.Low)
	return plotBottom - (plotBottom-upper)*at
}

// short writes a power of ten.
func short(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%gM", v/1e6)
	case v >= 1e3:
		return fmt.Sprintf("%gk", v/1e3)
	}
	return fmt.Sprintf("%.3g", v)
}
