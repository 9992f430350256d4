package main

import (
	"fmt"
	"math"

	"github.com/keyward/keyward/bench/internal/plot"
)

// keyCounts are the counters of a cluster.
var keyCounts = []float64{1e6, 1e7, 1e8, 1e9}

// curve follows a value over the sizes.
func curve(name string, value func(n int) float64) plot.Curve {
	l := plot.Curve{Label: name}
	for _, n := range Sizes {
		l.Points = append(l.Points, [2]float64{position(n), value(n)})
	}
	return l
}

// position is where n members are on the x axis, which is logarithmic.
func position(n int) float64 {
	const least, most = 2, 3000
	return math.Log(float64(n)/least) / math.Log(most/least)
}

// chart returns a chart over the sizes.
func chart(title, y string, low, high float64, curves ...plot.Curve) plot.Chart {
	c := plot.Chart{Title: title, X: "members", Y: y, Low: low, High: high, Curves: curves}
	for _, n := range Sizes {
		c.Steps = append(c.Steps, plot.Step{At: position(n), Label: fmt.Sprint(n)})
	}
	return c
}

// changePlot shows how long the parts of one change of the ring take.
func (m *Measured) changePlot() plot.Chart {
	h := m.handoff()
	return chart("One change of the ring: the time of each part", "seconds", 1e-4, 1e3,
		curve("gossip: news of the change", ChangeTime),
		curve("100 million counters move", func(n int) float64 { return h.JoinTime(inAll, n) }),
		curve("500 Envoys are updated", func(n int) float64 { return m.push(n, 500).Wall / 1e3 }),
		curve("an Envoy builds its ring", func(n int) float64 { return m.envoy(n).Millis / 1e3 }),
		curve("a sidecar builds its ring", func(n int) float64 { return m.ring(n).Millis / 1e3 }),
	)
}

// beatPlot shows what heartbeats cost.
func (m *Measured) beatPlot() plot.Chart {
	dots := plot.Curve{Dots: true}
	for _, c := range m.Meshes {
		dots.Points = append(dots.Points, [2]float64{position(c.Members), 100 * c.MeshBeat(c.Members).CPU})
	}
	return chart("Heartbeats: CPU of a member", "% of a core; dots: measured", 1e-3, 100,
		curve("every member", func(n int) float64 { return 100 * m.mesh().MeshBeat(n).CPU }), dots)
}

// keysPlot shows how long a join takes.
func (m *Measured) keysPlot() plot.Chart {
	var curves []plot.Curve
	for _, keys := range []float64{1e9, 1e8, 1e7, 1e6} {
		curves = append(curves, curve(count(keys)+" counters in all", func(n int) float64 { return m.handoff().JoinTime(keys, n) }))
	}
	return chart("A join: time until the new member has its counters", "seconds", 0.001, 1e4, curves...)
}
