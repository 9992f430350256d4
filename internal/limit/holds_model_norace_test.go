//go:build !race

package limit

import (
	"fmt"
	"maps"
	"slices"
	"testing"
)

// holdStep is an event of the small model of holds.
type holdStep struct {
	member int
	do     func(h *holdHistory, i int) error
	wait   int64 // in 16ths of the window
}

// holdSteps returns what each of two members can do.
func holdSteps() (steps []holdStep) {
	oldest := func(ks []int) int { return ks[0] }
	newest := func(ks []int) int { return ks[len(ks)-1] }
	with := func(choose func(ks []int) int, do func(h *holdHistory, i, k int) error) func(*holdHistory, int) error {
		return func(h *holdHistory, i int) error {
			if ks := h.open(i); len(ks) > 0 {
				return do(h, i, choose(ks))
			}
			return nil
		}
	}
	all := func(h *holdHistory, i, k int) error { return h.giveBack(i, k, h.holds[k].hits) }
	one := func(h *holdHistory, i, k int) error { return h.giveBack(i, k, 1) }
	take := func(hits uint64) func(*holdHistory, int) error {
		return func(h *holdHistory, i int) error {
			h.take(i, hits, true)
			return nil
		}
	}
	merge := func(h *holdHistory, i int) error {
		h.merge(i, h.members[1-i])
		return nil
	}
	for i := range 2 {
		steps = append(steps,
			holdStep{i, take(2), 0}, holdStep{i, take(1), 1}, holdStep{i, take(3), 7},
			holdStep{i, with(oldest, all), 0}, holdStep{i, with(newest, one), 5},
			holdStep{i, with(oldest, (*holdHistory).extend), 4}, holdStep{i, merge, 0})
	}
	return steps
}

// TestEveryHoldHistory visits every history of two members up to a length, with every interleaving of charges,
// give-backs, extensions, merges and pauses, and merges their final states.
func TestEveryHoldHistory(t *testing.T) {
	length := 5
	if testing.Short() {
		length = 4
	}
	for _, a := range all {
		t.Run(a.String(), func(t *testing.T) {
			seen, err := everyHoldHistory(a, length)
			if err != nil {
				t.Error(err)
			}
			t.Logf("%d histories", seen)
		})
	}
}

func everyHoldHistory(a Algorithm, length int) (seen int, wrong error) {
	r := Rule{Window: 64, Limit: 64, Algorithm: a} // a hit drains in a nanosecond, and a log has a segment for each
	pause := int64(4)
	if a.Bucket() {
		r.Burst, pause = 5, 1
	}
	steps := holdSteps()
	var visit func(h *holdHistory, left int)
	visit = func(h *holdHistory, left int) {
		if left == 0 {
			seen++
			wrong = h.together()
			return
		}
		for _, st := range steps {
			next := h.clone()
			next.now += st.wait * pause
			if wrong = st.do(next, st.member); wrong == nil {
				visit(next, left-1)
			}
			if wrong != nil {
				return
			}
		}
	}
	h := newHoldHistory(r, soundHolds, false, 2)
	h.now = t0 - t0%64 + 40
	visit(h, length)
	return seen, wrong
}

func (h *holdHistory) clone() *holdHistory {
	c := *h
	c.holds, c.events = slices.Clone(h.holds), slices.Clone(h.events)
	c.members = []*holder{h.members[0].clone(), h.members[1].clone()}
	return &c
}

func (m *holder) clone() *holder { return &holder{state: clone(m.state), known: maps.Clone(m.known)} }

// together merges both ways. The results must be equal, and as the truth.
func (h *holdHistory) together() error {
	a, b := clone(h.members[0].state), clone(h.members[1].state)
	h.rule.Merge(&a, &h.members[1].state)
	h.rule.Merge(&b, &h.members[0].state)
	if !same(&a, &b) {
		return fmt.Errorf("not commutative: %+v and %+v", a, b)
	}
	again := clone(a)
	h.rule.Merge(&again, &h.members[0].state)
	h.rule.Merge(&again, &a)
	if !same(&again, &a) {
		return fmt.Errorf("not idempotent: %+v, then %+v", a, again)
	}
	return h.compare("together", &a, h.now)
}
