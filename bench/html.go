package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"slices"
	"strings"

	"github.com/keyward/keyward/bench/internal/plot"
	"github.com/keyward/keyward/internal/ops/loadtest"
)

//go:embed report.html
var page string

// writeHTML saves the report as one page that needs nothing else.
func (rep *Report) writeHTML(file string) error {
	if file == "" {
		return nil
	}
	t, err := template.New("report").Funcs(template.FuncMap{"ours": ours, "remarks": rep.remarks}).Parse(page)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	err = t.Execute(&b, map[string]any{
		"Report": rep, "Tables": rep.tables(), "Setting": rep.setting(), "Notes": rep.notes(), "Plots": rep.plots(),
	})
	if err != nil {
		return err
	}
	return save(file, b.Bytes())
}

// ours reports whether a contestant is Keyward.
func ours(name string) bool { return strings.Contains(name, "keyward") }

// side returns the class of a contestant in plots.
func side(name string) string {
	if ours(name) {
		return "ours"
	}
	return "theirs"
}

// figurePlot is a plot with what is said about it.
type figurePlot struct {
	Title, Text string
	SVG         template.HTML
}

func (rep *Report) plots() []figurePlot {
	n := rep.middle()
	all := []figurePlot{
		{"CPU per decision", fmt.Sprintf("Times the constant server's, %d in flight; the line spans the rounds. Less is better.", n), plot.Bars(rep.ratioBars(n), "%.2f x")},
		{"CPU per decision by calls in flight", "Times the constant server's with as many in flight: what a decision costs when a server is hardly busy, and when it is full.", rep.levelChart().Inline()},
		{"Throughput", fmt.Sprintf("Calls a second, %d in flight. The load itself runs on the same cores. More is better.", n), plot.Bars(rep.throughputBars(n), "%.0f")},
	}
	if rep.Rate > 0 {
		all = append(all, figurePlot{"Latency", fmt.Sprintf("At %g calls a second, from when each was due, in milliseconds: p50, p90, p99 and p99.9.", rep.Rate), plot.Dots(rep.latencies(false))})
	}
	if rep.entry(nameEnvoyNone) == nil {
		return all
	}
	all = append(all, figurePlot{"CPU of a request through Envoy", fmt.Sprintf("Microseconds, %d in flight: Envoy's, and that of the service it asks.", n), plot.Stacked(rep.envoyBars(n), "Envoy", "the service")})
	if rep.Rate > 0 {
		all = append(all, figurePlot{"Latency through Envoy", fmt.Sprintf("At %g requests a second, in milliseconds: p50, p90, p99 and p99.9.", rep.Rate), plot.Dots(rep.latencies(true))})
	}
	return all
}

// direct are the contestants that are asked directly.
func (rep *Report) direct(envoy bool) []*Entry {
	return slices.DeleteFunc(slices.Clone(rep.Contestants), func(e *Entry) bool { return e.Envoy != envoy })
}

func (rep *Report) ratioBars(n int) (all []plot.Bar) {
	for _, e := range rep.direct(false) {
		if s := rep.ratio(e, n); s.Median > 0 {
			all = append(all, plot.Bar{Label: e.Title, Class: side(e.Name), Value: s.Median, Low: s.Min, High: s.Max})
		}
	}
	return all
}

func (rep *Report) throughputBars(n int) (all []plot.Bar) {
	for _, e := range rep.direct(false) {
		s := rep.at(e.Name, n).Over(loadtest.Throughput)
		all = append(all, plot.Bar{Label: e.Title, Class: side(e.Name), Value: s.Median, Low: s.Min, High: s.Max})
	}
	return all
}

func (rep *Report) envoyBars(n int) (all []plot.Bar) {
	for _, e := range rep.direct(true) {
		m := rep.at(e.Name, n).Median()
		all = append(all, plot.Bar{Label: e.Title, Class: side(e.Name), Value: m.Proxy, More: m.CPU})
	}
	return all
}

// levelChart shows the ratio to the constant server for each number of calls in flight.
func (rep *Report) levelChart() (c plot.Chart) {
	for i, n := range rep.Levels {
		c.Steps = append(c.Steps, plot.Step{At: (float64(i) + 0.5) / float64(len(rep.Levels)), Label: fmt.Sprint(n)})
	}
	for _, e := range rep.direct(false) {
		l := plot.Curve{Label: e.Title, Class: side(e.Name)}
		for i, n := range rep.Levels {
			if r := rep.ratio(e, n); r.Median > 0 {
				l.Points = append(l.Points, [2]float64{c.Steps[i].At, r.Median})
			}
		}
		c.Curves = append(c.Curves, l)
	}
	return c
}

func (rep *Report) latencies(envoy bool) (all []plot.Row) {
	for _, e := range rep.direct(envoy) {
		if r := loadtest.Find(rep.Results, e.Name, rep.paced()); r != nil {
			m := r.Median()
			all = append(all, plot.Row{Label: e.Title, Class: side(e.Name), Values: []float64{m.P50 / 1000, m.P90 / 1000, m.P99 / 1000, m.P999 / 1000}})
		}
	}
	return all
}
