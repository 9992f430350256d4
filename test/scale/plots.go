package scale

// keyCounts are the counters of a cluster.
var keyCounts = []float64{1e6, 1e7, 1e8, 1e9}

// curve follows a value over the sizes.
func curve(name string, sizes []int, value func(n int) float64) Line {
	l := Line{Name: name}
	for _, n := range sizes {
		l.Points = append(l.Points, [2]float64{float64(n), value(n)})
	}
	return l
}

// changePlot is how long the parts of one change of the ring take.
func (m *Measured) changePlot() Plot {
	h := m.handover()
	return Plot{
		Title: "One change of the ring: what each part takes", X: "members", Y: "seconds", Low: 1e-4, High: 1e3,
		Lines: []Line{
			curve("gossip: news of the change", Sizes, ChangeTime),
			curve("100 million counters move", Sizes, func(n int) float64 { return h.JoinTime(inAll, n) }),
			curve("500 Envoys are told", Sizes, func(n int) float64 { return m.push(n, 500).Wall / 1e3 }),
			curve("an Envoy builds its ring", Sizes, func(n int) float64 { return m.envoy(n).Millis / 1e3 }),
			curve("a sidecar builds its ring", Sizes, func(n int) float64 { return m.ring(n).Millis / 1e3 }),
		},
	}
}

// beatPlot is the heartbeats' price.
func (m *Measured) beatPlot() Plot {
	c := m.mesh()
	percents := func(b Beat) float64 { return 100 * b.CPU }
	return Plot{
		Title: "Heartbeats: CPU of a member", X: "members", Y: "% of a core; dots: measured", Low: 1e-3, High: 100,
		Lines: []Line{
			curve("the mesh, every member", Sizes, func(n int) float64 { return percents(c.MeshBeat(n)) }),
			curve("witnesses: one of the k", Sizes, func(n int) float64 { return percents(c.WitnessBeat(n, SampleSize(n))) }),
			curve("witnesses: all others", Sizes, func(n int) float64 { return percents(c.SampleBeat(SampleSize(n))) }),
			{Dots: true, Points: m.meshDots()},
		},
	}
}

func (m *Measured) meshDots() (dots [][2]float64) {
	for _, c := range m.Meshes {
		dots = append(dots, [2]float64{float64(c.Members), 100 * c.MeshBeat(c.Members).CPU})
	}
	return dots
}

// cutPlot is what a cut may add by right, by who confirms.
func cutPlot() Plot {
	of := func(f func(n int) float64) func(n int) float64 { return func(n int) float64 { return 100 * f(n) } }
	return Plot{
		Title: "A third of the members is cut off: owners in both parts admit beyond the limit", X: "members", Y: "% of the limit", Low: 0.01, High: 100,
		Lines: []Line{
			curve("own samples, 1 key in 1000", cutSizes, of(func(n int) float64 { return third(n, SampleSize(n), Own).Exact().Tail })),
			curve("own, k = 64, 1 in 1000", cutSizes[1:], of(func(n int) float64 { return third(n, wide, Own).Exact().Tail })),
			curve("common witnesses, at most", Sizes[1:], of(func(n int) float64 { return 1 / float64(SampleSize(n)) })),
			curve("mesh, at most", Sizes[1:], of(func(n int) float64 { return 1 / float64(n) })),
		},
	}
}

// keysPlot is how long a join takes.
func (m *Measured) keysPlot() Plot {
	h := m.handover()
	p := Plot{Title: "A join: time until the newcomer has its counters", X: "members", Y: "seconds", Low: 0.001, High: 1e4}
	for _, keys := range []float64{1e9, 1e8, 1e7, 1e6} {
		p.Lines = append(p.Lines, curve(count(keys)+" counters in all", Sizes, func(n int) float64 { return h.JoinTime(keys, n) }))
	}
	return p
}
