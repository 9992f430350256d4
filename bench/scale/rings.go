package main

import (
	"runtime"

	"github.com/keyward/keyward/ring"
)

// rings builds the ring of every size a few times.
func rings(m *Measured) error {
	m.Rings = nil
	for _, n := range Sizes {
		members, times := Members(n), 5
		before := live()
		r := ring.New(members)
		c := RingCost{Members: n, Bytes: live() - before}
		runtime.KeepAlive(r)
		best := 0.0
		for range times {
			var a, b runtime.MemStats
			runtime.ReadMemStats(&a)
			u, err := used()
			if err != nil {
				return err
			}
			rounds := max(1, 300/n)
			for range rounds {
				runtime.KeepAlive(ring.New(members))
			}
			v, err := used()
			if err != nil {
				return err
			}
			runtime.ReadMemStats(&b)
			if ms := v.since(u).cpu * 1e3 / float64(rounds); best == 0 || ms < best {
				best = ms
			}
			c.Garbage = float64(b.TotalAlloc-a.TotalAlloc)/float64(rounds) - c.Bytes
		}
		c.Millis = best
		m.Rings = append(m.Rings, c)
	}
	return nil
}
