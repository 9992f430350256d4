//go:build !race

package limit

import (
	"fmt"
	"slices"
	"testing"
)

// step is an event of the small model.
type step struct {
	member int
	merge  bool // a merge with the other's state, otherwise a charge
	hits   uint64
	wait   int64 // in the drain time of a hit
}

// TestEveryBucketHistory visits every history of two members up to a length, with every interleaving of charges, merges
// and pauses, and merges their final states.
func TestEveryBucketHistory(t *testing.T) {
	length := 6
	if testing.Short() {
		length = 5
	}
	seen, first := everyHistory(length, sound)
	if first != nil {
		t.Error(first)
	}
	t.Logf("%d histories", seen)
	if _, err := everyHistory(4, counter{sound.take, sound.refund, mergeByLargerTAT}); err == nil {
		t.Error("the larger TAT: not found")
	}
}

func everyHistory(length int, code counter) (seen int, wrong error) {
	r := Rule{Window: 16, Limit: 16, Burst: 3, Algorithm: TokenBucket} // a hit drains in a nanosecond
	var steps []step
	for m := range 2 {
		steps = append(steps,
			step{member: m, hits: 1}, step{member: m, hits: 3}, step{member: m, hits: 2, wait: 1},
			step{member: m, hits: 1, wait: 4}, step{member: m, merge: true})
	}
	var visit func(h history, left int)
	visit = func(h history, left int) {
		if wrong != nil {
			return
		}
		if left == 0 {
			seen++
			wrong = h.together()
			return
		}
		for _, st := range steps {
			next := h
			next.states = []State{clone(h.states[0]), clone(h.states[1])}
			next.truth.events = slices.Clip(h.truth.events)
			next.step(st)
			visit(next, left-1)
		}
	}
	visit(history{rule: r, code: code, now: t0, truth: truth{rule: r}, states: make([]State, 2)}, length)
	return seen, wrong
}

func (h *history) step(st step) {
	h.now += st.wait
	s := &h.states[st.member]
	if st.merge {
		h.code.merge(h.rule, s, &h.states[1-st.member])
		return
	}
	h.truth.charged(h.now, h.rule.Used(s, h.now), st.hits)
	h.code.take(h.rule, s, h.now, uint64(2*st.member+3), st.hits)
}

// together merges both ways. The results must be equal and not below the truth.
func (h *history) together() error {
	a, b := clone(h.states[0]), clone(h.states[1])
	h.code.merge(h.rule, &a, &h.states[1])
	h.code.merge(h.rule, &b, &h.states[0])
	if !same(&a, &b) {
		return fmt.Errorf("not commutative: %+v and %+v from %+v", a, b, h.states)
	}
	if got, want := countOf(h.rule, &a, h.now), h.truth.used(h.now); got < want {
		return fmt.Errorf("count %d, want %d: %+v from %+v after %+v", got, want, a, h.states, h.truth.events)
	}
	again := clone(a)
	h.code.merge(h.rule, &again, &h.states[0])
	h.code.merge(h.rule, &again, &a)
	if !same(&again, &a) {
		return fmt.Errorf("not idempotent: %+v, then %+v", a, again)
	}
	return nil
}
