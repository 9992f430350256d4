package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	ringsKept = 8     // rings that a member remembers while keys may still be where one of them put them
	inAll     = 100e6 // counters of the whole cluster in the summary
	mebi      = 1 << 20
)

// table is one of Markdown.
func table(head []string, rows [][]string) string {
	var b strings.Builder
	row := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	row(head)
	row(slices.Repeat([]string{"---:"}, len(head)))
	for _, r := range rows {
		row(r)
	}
	return b.String()
}

// sig writes v with three digits that count, and no more.
func sig(v float64) string {
	switch {
	case v >= 99.5:
		return fmt.Sprintf("%.0f", v)
	case v >= 9.95:
		return fmt.Sprintf("%.3g", v)
	}
	return fmt.Sprintf("%.2g", v)
}

func percent(v float64) string { return sig(100*v) + " %" }

// bytesOf writes a size.
func bytesOf(v float64) string {
	switch {
	case v >= 1<<30:
		return sig(v/(1<<30)) + " GiB"
	case v >= mebi:
		return sig(v/mebi) + " MiB"
	case v >= 1<<10:
		return sig(v/(1<<10)) + " KiB"
	}
	return sig(v) + " B"
}

// secondsOf writes a time.
func secondsOf(v float64) string {
	switch {
	case v >= 5400:
		return sig(v/3600) + " h"
	case v >= 90:
		return sig(v/60) + " min"
	case v >= 1:
		return sig(v) + " s"
	case v >= 0.001:
		return sig(v*1e3) + " ms"
	}
	return sig(v*1e6) + " µs"
}

func count(v float64) string {
	switch {
	case v >= 1e9:
		return sig(v/1e9) + " billion"
	case v >= 1e6:
		return sig(v/1e6) + " million"
	}
	return fmt.Sprintf("%.0f", v)
}

// complete says what has not been measured yet.
func (m *Measured) complete() error {
	for _, n := range Sizes {
		if m.ring(n) == nil || m.envoy(n) == nil || m.push(n, 500) == nil {
			return errors.New("not measured yet: rings, envoys or pushes")
		}
	}
	if len(m.Gossips) == 0 || len(m.Meshes) == 0 || len(m.Handoff) == 0 {
		return errors.New("not measured yet: gossips, meshes or handoffs")
	}
	return nil
}

// find is the first of list that fits; nil if none does.
func find[T any](list []T, fits func(*T) bool) *T {
	for i := range list {
		if fits(&list[i]) {
			return &list[i]
		}
	}
	return nil
}

func (m *Measured) ring(n int) *RingCost {
	return find(m.Rings, func(c *RingCost) bool { return c.Members == n })
}

func (m *Measured) envoy(n int) *EnvoyCost {
	return find(m.Envoys, func(c *EnvoyCost) bool { return c.Members == n && c.Capacity == Capacity(n) })
}

func (m *Measured) push(n, envoys int) *PushCost {
	return find(m.Pushes, func(c *PushCost) bool { return c.Members == n && c.Envoys == envoys })
}

// mesh is the largest that was measured, which fixed costs distort least.
func (m *Measured) mesh() MeshCost { return m.Meshes[len(m.Meshes)-1] }

// handoff is the largest that was measured.
func (m *Measured) handoff() HandoffCost { return m.Handoff[len(m.Handoff)-1] }

// machineLine says where the figures come from.
func (m *Measured) machineLine() string {
	var days []string
	for _, d := range m.Dates {
		days = append(days, d)
	}
	slices.Sort(days)
	return fmt.Sprintf("Measured on %s on a %s, busy with other work: CPU, bytes and memory hold, times are upper bounds.", strings.Join(slices.Compact(days), ", "), m.Machine)
}

// summary is the table that most readers need.
func (m *Measured) summary() string {
	head := []string{"members"}
	rows := [][]string{
		{"`--ring-capacity`"}, {"heartbeats: streams of a sidecar"}, {"their CPU, of a core, at least"}, {"what they send, a second"},
		{"a death is noticed after at least"}, {"news of a change fill gossip's packets for"},
		{"rings in a sidecar's memory: one, and eight"}, {"the ring in an Envoy's memory"}, {"CPU of an Envoy for each change"},
		{"EDS, of each change to each Envoy"}, {fmt.Sprintf("%s counters: memory of a sidecar", count(inAll))}, {"and how long a join takes to move them"},
	}
	for _, n := range []int{3, 30, 300, 2000} {
		head = append(head, fmt.Sprint(n))
		beat, r, e, h := m.mesh().MeshBeat(n), m.ring(n), m.envoy(n), m.handoff()
		for i, cell := range []string{
			fmt.Sprint(Capacity(n)), fmt.Sprintf("%.0f", beat.Streams), percent(beat.CPU), bytesOf(beat.Bytes),
			secondsOf(Suspicion(n).Seconds()), secondsOf(max(ChangeTime(n), gossipEvery.Seconds())),
			bytesOf(r.Bytes) + ", " + bytesOf(ringsKept*r.Bytes), bytesOf(e.Bytes), secondsOf(e.Millis / 1e3),
			bytesOf(m.push(n, 10).Bytes), bytesOf(h.Kept(inAll, n)), secondsOf(h.JoinTime(inAll, n)),
		} {
			rows[i] = append(rows[i], cell)
		}
	}
	return table(head, rows)
}

func ringTable(balances []Balance) string {
	var rows [][]string
	for _, b := range balances {
		rows = append(rows, []string{
			fmt.Sprint(b.Members), fmt.Sprint(b.Points), fmt.Sprintf("%.2f to %.2f", b.Least, b.Most), fmt.Sprintf("%.2f", b.MostKeys),
			fmt.Sprintf("%.2f", b.MostBefore), fmt.Sprintf("%.0f", b.Successors), percent(b.Inherits), fmt.Sprintf("%.2f", b.Second), fmt.Sprintf("%.2f", b.Join),
		})
	}
	return table([]string{
		"members", "points", "hash space of a member", "most of 200,000 keys", "the same with Envoy's default ring", "successors of a lost one",
		"the largest takes", "most space after a loss", "a join moves, x 1/(N+1)",
	}, rows)
}

// ringCosts is the cost of the ring in a sidecar and in an Envoy.
func (m *Measured) ringCosts() string {
	var rows [][]string
	for _, n := range Sizes {
		r, e := m.ring(n), m.envoy(n)
		rows = append(rows, []string{
			fmt.Sprint(n), secondsOf(r.Millis / 1e3), bytesOf(r.Bytes), bytesOf(r.Garbage), secondsOf(e.Millis / 1e3), bytesOf(e.Bytes), bytesOf(m.push(n, 10).Bytes),
		})
	}
	c := m.Envoys[len(m.Envoys)-1]
	rows = append(rows, []string{fmt.Sprintf("%d, C = %d", c.Members, c.Capacity), "", "", "", secondsOf(c.Millis / 1e3), bytesOf(c.Bytes), ""})
	return table([]string{"members", "sidecar: CPU of a build", "memory", "garbage", "Envoy: CPU of a change", "memory", "EDS"}, rows)
}

// pushTable is the server's side of one change.
func (m *Measured) pushTable() string {
	var rows [][]string
	for _, n := range Sizes {
		row := []string{fmt.Sprint(n), bytesOf(m.push(n, 10).Bytes)}
		for _, envoys := range []int{10, 100, 500} {
			p := m.push(n, envoys)
			row = append(row, secondsOf(p.Millis/1e3)+", "+secondsOf(p.Wall/1e3))
		}
		last := m.push(n, 500)
		rows = append(rows, append(row, secondsOf(last.Millis/1e3/500)))
	}
	return table([]string{"members", "one response", "10 Envoys", "100", "500", "CPU for each of 500"}, rows)
}

func (m *Measured) gossipTable() string {
	var rows [][]string
	for _, g := range m.Gossips {
		rows = append(rows, []string{
			fmt.Sprint(g.Members), bytesOf(g.Bytes), sig(g.Packets), percent(g.CPU), bytesOf(g.Change), bytesOf(ChangeNews(g.Members)),
			secondsOf(g.Adopted), secondsOf(g.Known), secondsOf(g.Lost),
		})
	}
	return table([]string{
		"members", "idle: bytes/s sent", "packets/s", "CPU of a core", "one join: bytes sent", "as calculated", "ring adopted by all", "all know it", "a crash: adopted by all",
	}, rows)
}

// newsTable is gossip calculated.
func newsTable() string {
	var rows [][]string
	for _, n := range Sizes {
		rows = append(rows, []string{
			fmt.Sprint(n), sig(repeats(n)), bytesOf(ChangeNews(n)), secondsOf(ChangeTime(n)), percent(LoadNews(n) / roundsRoom()), Suspicion(n).Round(100 * time.Millisecond).String(),
		})
	}
	return table([]string{"members", "each piece is sent", "one change: each sends", "which fills its packets for", "loads of the members take, of the room", "suspicion, at least"}, rows)
}

func (m *Measured) meshTable() string {
	var rows [][]string
	for _, c := range m.Meshes {
		rows = append(rows, []string{
			fmt.Sprint(c.Members), sig(c.Bytes), sig(c.Packets), sig(c.CPU) + " µs", bytesOf(c.Memory), sig(c.Goroutines),
		})
	}
	return table([]string{"members", "bytes/s", "packets/s", "CPU/s", "memory", "goroutines"}, rows)
}

// beatTable is the cost of heartbeats for each member.
func (m *Measured) beatTable() string {
	var rows [][]string
	c := m.mesh()
	for _, n := range Sizes {
		b := c.MeshBeat(n)
		rows = append(rows, []string{fmt.Sprint(n), percent(b.CPU), bytesOf(b.Bytes), bytesOf(b.Memory)})
	}
	return table([]string{"members", "CPU", "bytes/s", "memory"}, rows) +
		fmt.Sprintf("\nHeartbeats take at least 1 %% of a core of each member at %d members, 5 %% at %d and 10 %% at %d.\n", c.MeshUpTo(0.01), c.MeshUpTo(0.05), c.MeshUpTo(0.10))
}

// handoffTable is the cost of moving counters.
func (m *Measured) handoffTable() string {
	var rows [][]string
	for _, h := range m.Handoff {
		rows = append(rows, []string{fmt.Sprint(h.Counters), sig(h.Bytes), sig(h.Rate/1e3) + " k", sig(h.CPU) + " µs", sig(h.Memory)})
	}
	return table([]string{"counters moved", "bytes on the wire for each", "moved a second", "CPU for each, both ends", "memory of each, bytes"}, rows)
}

// keysTable is up to a billion of them.
func (m *Measured) keysTable() string {
	var rows [][]string
	h := m.handoff()
	for _, keys := range keyCounts {
		row := []string{count(keys)}
		for _, n := range Sizes {
			row = append(row, bytesOf(h.Kept(keys, n))+", "+secondsOf(h.JoinTime(keys, n)))
		}
		rows = append(rows, row)
	}
	head := []string{"counters"}
	for _, n := range Sizes {
		head = append(head, fmt.Sprintf("N = %d", n))
	}
	return table(head, rows)
}
