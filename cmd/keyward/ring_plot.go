package main

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"

	"github.com/spf13/cobra"

	"github.com/keyward/keyward/ring"
)

func newRingPlot() *cobra.Command {
	var f ringFlags
	cmd := &cobra.Command{
		Use:     "plot",
		Short:   "Draw the ring, in the terminal or as SVG",
		Long:    helpText("ring-plot"),
		Example: helpExamples("ring-plot"),
		Args:    cobra.NoArgs,
	}
	f.define(cmd)
	output := outputFlagOf(cmd, "text", "json", "svg")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r, err := f.ring(cmd.Context())
		if err != nil {
			return err
		}
		if *output == "svg" {
			_, err := io.WriteString(cmd.OutOrStdout(), ringSVG(r))
			return err
		}
		plot := ringPlot{Members: sharesOf(r), Sectors: sectorsOf(r, ringSectors)}
		return show(cmd.OutOrStdout(), *output, plot, func(out io.Writer) error { return writeRing(out, r) })
	}
	return cmd
}

// ringPlot is the data of a picture of a ring.
type ringPlot struct {
	Members []ringMember `json:"members"`
	Sectors []int        `json:"sectors"` // index into members, from position 0 on
}

const ringSectors = 720

// sectorsOf returns the owner in the middle of each of n equal parts of the hash space.
func sectorsOf(r *ring.Ring, n int) []int {
	sectors := make([]int, n)
	for i := range sectors {
		sectors[i] = r.Owner(uint64((float64(i) + 0.5) / float64(n) * math.MaxUint64))
	}
	return sectors
}

// letters represent members in the terminal. Further members share the last.
const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ*"

func letter(i int) byte { return letters[min(i, len(letters)-1)] }

func writeRing(out io.Writer, r *ring.Ring) error {
	const width, rows = 64, 8
	var b strings.Builder
	for i, owner := range sectorsOf(r, width*rows) {
		if i%width == 0 {
			fmt.Fprintf(&b, "%3d %%  ", 100*i/(width*rows))
		}
		b.WriteByte(letter(owner))
		if i%width == width-1 {
			b.WriteByte('\n')
		}
	}
	b.WriteByte('\n')
	longest := 0.0
	shares := sharesOf(r)
	for _, m := range shares {
		longest = math.Max(longest, m.Share)
	}
	for i, m := range shares {
		bar := strings.Repeat("█", int(math.Round(40*m.Share/longest)))
		fmt.Fprintf(&b, "%c  %-40s %5.2f %%  %s\n", letter(i), bar, 100*m.Share, printable(m.ID))
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// ringSVG returns the ring as an SVG image with a textual description.
func ringSVG(r *ring.Ring) string {
	const size = ringSize
	shares, sectors := sharesOf(r), sectorsOf(r, ringSectors)
	height := max(size, 40+24*len(shares))
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" font-family="system-ui, sans-serif" font-size="14">`+"\n", size+260, height)
	fmt.Fprintf(&b, "<title>Hash ring of %s</title>\n<style>text{fill:#222}@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>\n", count(r.Len(), "member"))
	for first := 0; first < len(sectors); {
		last := first
		for last+1 < len(sectors) && sectors[last+1] == sectors[first] && last-first < ringSectors/3 {
			last++
		}
		owner := sectors[first]
		fmt.Fprintf(&b, `<path d="%s" fill="%s"><title>%s</title></path>`+"\n",
			arc(float64(first)/ringSectors, float64(last+1)/ringSectors), color(owner, r.Len()), html.EscapeString(shares[owner].ID))
		first = last + 1
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", size/2, size/2+5, count(r.Len(), "member"))
	for i, m := range shares {
		y := 30 + 24*i
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="14" height="14" fill="%s"/><text x="%d" y="%d">%s  %.2f %%</text>`+"\n",
			size+20, y-12, color(i, r.Len()), size+44, y, html.EscapeString(m.ID), 100*m.Share)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// Measures of the ring's image, in pixels.
const (
	ringSize    = 420
	outerRadius = 190.0
	innerRadius = 120.0
)

// arc returns the path of a part of the ring. from and to are fractions of a turn, clockwise from the top.
func arc(from, to float64) string {
	const outer, inner = outerRadius, innerRadius
	at := func(turn, radius float64) string {
		sin, cos := math.Sincos(2 * math.Pi * turn)
		return fmt.Sprintf("%.2f %.2f", ringSize/2+radius*sin, ringSize/2-radius*cos)
	}
	return fmt.Sprintf("M%s A%g %g 0 0 1 %s L%s A%g %g 0 0 0 %sZ", at(from, outer), outer, outer, at(to, outer), at(to, inner), inner, inner, at(from, inner))
}

// color returns the i-th of a series of colors, with very different hues for consecutive numbers, in three shades.
func color(i, n int) string {
	hue := math.Mod(float64(i)*137.508, 360) // the golden angle
	return fmt.Sprintf("hsl(%.0f 60%% %d%%)", hue, 45+10*(i*3/max(1, n)))
}
