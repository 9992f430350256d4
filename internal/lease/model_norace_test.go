//go:build !race

package lease

import (
	"fmt"
	"hash/maphash"
	"testing"
)

// explore visits all worlds and stops at one that admits more than the limit in a window. It returns the number of
// worlds, the most hits admitted in a window, and the violations that Books and Holdings counted. A broad search finds
// the shortest path; a deep one uses less memory.
func (mo *model) explore(most int, broad bool) (visited int, admitted uint8, broken Violations) {
	mo.asks, mo.lends = map[ask]int{}, map[lend]int{}
	seed := maphash.MakeSeed()
	seen, first := map[uint64]struct{}{}, &world{tick: mo.from}
	for i := range first.holders {
		first.holders[i].rule, first.holders[i].seq = modelRule, 1<<62 // so that it numbers requests
	}
	queue, buf := []*world{first}, []byte(nil)
	for len(queue) > 0 && visited < most && admitted <= uint8(modelRule.Limit) {
		var w *world
		if broad {
			w, queue[0], queue = queue[0], nil, queue[1:]
		} else {
			w, queue = queue[len(queue)-1], queue[:len(queue)-1]
		}
		visited++
		mo.next(w, func(c *world) {
			admitted = max(admitted, c.admitted[0], c.admitted[1])
			mo.forget(c)
			for i := range c.books {
				broken.Add(c.books[i].TakeViolations())
				broken.Add(c.holders[i].TakeStats().Violations)
			}
			buf = c.state(buf[:0])
			k := maphash.Bytes(seed, buf)
			if _, ok := seen[k]; !ok {
				seen[k] = struct{}{}
				queue = append(queue, c)
			}
		})
	}
	return visited, admitted, broken
}

func TestEveryOrder(t *testing.T) {
	all := []uint64{0, 1, 2, 3}
	models := []model{
		{requests: [2]int8{2, 1}, sizes: []uint64{1, 3}, from: 1, ticks: 3, crashes: 1},
		{requests: [2]int8{2, 1}, sizes: []uint64{1, 3}, from: 1, ticks: 3, moves: 1, crashes: 1},
		{requests: [2]int8{3, 1}, sizes: all, ticks: 3, drops: 1},
	}
	if !testing.Short() {
		models = append(models,
			model{requests: [2]int8{2, 2}, sizes: []uint64{1, 2, 3}, ticks: 3},
			model{requests: [2]int8{2, 2}, sizes: []uint64{1, 2}, from: 1, ticks: 3, crashes: 1},
			model{requests: [2]int8{2, 1}, sizes: []uint64{1, 2, 3}, from: 1, ticks: 3, moves: 2},
			model{requests: [2]int8{3, 0}, sizes: []uint64{1, 2, 3}, from: 1, ticks: 2, moves: 2, drops: 1},
		)
	}
	for _, mo := range models {
		name := fmt.Sprintf("%v requests, %d moves, %d crashes, %d drops", mo.requests, mo.moves, mo.crashes, mo.drops)
		t.Run(name, func(t *testing.T) {
			const most = 3_000_000
			n, admitted, broken := mo.explore(most, false)
			if n == most || admitted != uint8(modelRule.Limit) || broken != (Violations{}) {
				t.Fatalf("%d states, at most %d of %d admitted, violations %v", n, admitted, modelRule.Limit, broken)
			}
			t.Logf("%d states", n)
		})
	}
}

// TestEachCondition drops one condition at a time. The model must then find a window with more hits than its limit.
func TestEachCondition(t *testing.T) {
	two := model{requests: [2]int8{2, 2}, sizes: []uint64{1, 2, 3}, ticks: 3, own: 1}
	three := model{requests: [2]int8{3, 1}, sizes: []uint64{1, 3}, ticks: 3}
	crash := model{requests: [2]int8{2, 1}, sizes: []uint64{1, 3}, from: 1, ticks: 3, crashes: 1}
	few := model{requests: [2]int8{2, 0}, sizes: []uint64{0, 1}, from: 1, ticks: 2, own: 2}
	back := model{requests: [2]int8{3, 0}, sizes: []uint64{1, 2}, from: 1, ticks: 2, moves: 2, drops: 1}
	for _, c := range []struct {
		name string
		in   model
		drop func(mo *model)
	}{
		{"C1: charged after it is sent", two, func(mo *model) { mo.chargeLate = true }},
		{"C2: old requests count", few, func(mo *model) {
			mo.receive = func(l *HolderRecord, _ *GrantRequest, _ int64) { l.Seq = 0 }
		}},
		{"C2: credited twice", three, func(mo *model) {
			mo.credit = func(l *HolderRecord, before HolderRecord) {
				if l.Window == before.Window {
					l.Granted, l.lent = before.Granted, before.lent
				}
			}
		}},
		{"C2: old grants count", three, func(mo *model) {
			mo.accept = func(h *Holding, g *Grant) { g.Seq, h.inFlight = h.seq, true }
		}},
		{"C3: carried over", two, func(mo *model) { mo.carryOver = true }},
		{"C3: the window of a grant is ignored", three, func(mo *model) {
			mo.accept = func(h *Holding, g *Grant) {
				if h.window != 0 && g.Window != h.window {
					g.Window, g.Total = h.window, g.Total+h.have
				}
			}
		}},
		{"C4: returns count in the next window", three, func(mo *model) {
			mo.receive = func(l *HolderRecord, r *GrantRequest, window int64) {
				if r.Window != 0 {
					l.Window, r.Window = window, window
				}
			}
		}},
		{"C4: a Book that has missed decisions", back, func(mo *model) { mo.keepBook = true }},
		{"C5: sent before it is replicated", crash, func(mo *model) { mo.unseen = true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.drop(&c.in)
			n, admitted, _ := c.in.explore(3_000_000, true)
			if admitted <= uint8(modelRule.Limit) {
				t.Fatalf("not found in %d states", n)
			}
			t.Logf("%d of %d admitted, found after %d states", admitted, modelRule.Limit, n)
		})
	}
}
