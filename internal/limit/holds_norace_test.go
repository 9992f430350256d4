//go:build !race

package limit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// hold is a charge that may be given back. For buckets, at is lowered by what is given back since.
type hold struct {
	at    int64
	hits  uint64
	event int // that charged it
	done  bool
}

// holder is a member with its copy of the counter, and the holds whose charges the copy contains.
type holder struct {
	state State
	known map[int]bool
}

// holdCode is the part of Rule that holdHistory uses, so that broken variants can replace it.
type holdCode struct {
	giveBack func(r Rule, s *State, now int64, writer uint64, at int64, hits uint64) uint64
	extend   func(r Rule, s *State, now int64, writer uint64, at int64, hits uint64) (int64, bool)
}

var soundHolds = holdCode{Rule.GiveBack, Rule.Extend}

// holdHistory runs members that charge holds, give them back once, and copy their states to each other late, twice and
// out of order. It compares their counts with one that remembers each hold. With handOff, one member at a time charges,
// and the next one starts with its state.
type holdHistory struct {
	rule    Rule
	code    holdCode
	handOff bool
	now     int64
	holds   []hold
	events  []event
	given   int64 // buckets: nanoseconds given back so far
	members []*holder
	copies  []*holder
}

func (h *holdHistory) used(now int64) uint64 {
	e := every{rule: h.rule, events: h.events}
	if h.rule.Algorithm.Bucket() {
		return uint64(e.level(now))
	}
	return e.used(now)
}

func (h *holdHistory) writer(i int) uint64 { return uint64(2*i + 3) }

// take charges a hold, or hits that nothing gives back.
func (h *holdHistory) take(i int, hits uint64, held bool) {
	m := h.members[i]
	d := h.rule.Take(&m.state, h.now, h.writer(i), hits)
	if !h.rule.charges(d.Before, hits) {
		return
	}
	h.events = append(h.events, event{at: h.now, hits: hits})
	if held {
		at := h.rule.ChargedAt(&m.state, h.now, h.writer(i))
		h.remember(m, hold{at: at, hits: hits, event: len(h.events) - 1})
	}
}

func (h *holdHistory) remember(m *holder, x hold) {
	if h.rule.Algorithm.Bucket() {
		x.at += h.given
	}
	m.known[len(h.holds)] = true
	h.holds = append(h.holds, x)
}

// giveBack gives back hits of hold k at member i. It returns an error if it gives back more than the hold's charge that
// still counts, or less.
func (h *holdHistory) giveBack(i, k int, hits uint64) error {
	x, m := &h.holds[k], h.members[i]
	x.done = true
	if h.rule.Algorithm.Bucket() {
		return h.giveBackBucket(i, k, hits)
	}
	back := h.code.giveBack(h.rule, &m.state, h.now, h.writer(i), x.at, hits)
	h.events[x.event].back += back
	want := uint64(0)
	if h.counts(h.events[x.event].at) {
		want = hits
	}
	if back != want {
		return fmt.Errorf("%d of %d given back, want %d: hold %+v at %d in %+v", back, hits, want, *x, h.now, m.state)
	}
	return nil
}

// giveBackBucket does so for a bucket. TestBucketGivesBackWhatHasNotDrained checks how much comes back.
func (h *holdHistory) giveBackBucket(i, k int, hits uint64) error {
	x, m := &h.holds[k], h.members[i]
	level := m.state.level(h.now)
	back := h.code.giveBack(h.rule, &m.state, h.now, h.writer(i), x.at-h.given, hits)
	ns := h.rule.spanOf(back)
	if gone := level - m.state.level(h.now); gone != ns || back > hits {
		return fmt.Errorf("the level fell by %d for %d of %d hits", gone, back, hits)
	}
	h.given += ns
	h.events = append(h.events, event{at: h.now, back: uint64(ns)})
	return nil
}

// counts reports whether what was charged at that time counts now.
func (h *holdHistory) counts(at int64) bool {
	switch i := h.rule.Index(h.now); h.rule.Algorithm {
	case FixedWindow:
		return h.rule.Index(at) == i
	case SlidingWindow:
		return h.rule.Index(at) >= i-1
	}
	return at > h.now-int64(h.rule.Window)
}

// extend moves hold k to now at member i.
func (h *holdHistory) extend(i, k int) error {
	x, m := h.holds[k], h.members[i]
	before := h.rule.Used(&m.state, h.now)
	at, ok := h.code.extend(h.rule, &m.state, h.now, h.writer(i), x.at, x.hits)
	switch {
	case ok != (h.rule.Algorithm == InFlight && h.counts(h.events[x.event].at)):
		return fmt.Errorf("extended: %v: hold %+v at %d in %+v", ok, x, h.now, m.state)
	case h.rule.Used(&m.state, h.now) != before:
		return fmt.Errorf("%d used, %d before hold %+v was extended", h.rule.Used(&m.state, h.now), before, x)
	case !ok || at == x.at:
		return nil
	}
	h.holds[k].done = true
	h.events[x.event].back += x.hits
	h.events = append(h.events, event{at: h.now, hits: x.hits})
	h.remember(m, hold{at: at, hits: x.hits, event: len(h.events) - 1})
	return nil
}

// merge merges from into member i, which then has its holds.
func (h *holdHistory) merge(i int, from *holder) {
	m := h.members[i]
	h.rule.Merge(&m.state, &from.state)
	for k := range from.known {
		m.known[k] = true
	}
}

// open returns the holds that member i can give back.
func (h *holdHistory) open(i int) (ks []int) {
	for k := range h.holds {
		if h.members[i].known[k] && !h.holds[k].done {
			ks = append(ks, k)
		}
	}
	return ks
}

// compare returns an error if s is below the truth, or above it. A bucket that several members charge may be above.
func (h *holdHistory) compare(what string, s *State, now int64) error {
	got, want := countOf(h.rule, s, now), h.used(now)
	if got < want || got > want && (h.handOff || !h.rule.Algorithm.Bucket()) {
		return fmt.Errorf("%s: count %d, want %d: %+v after %+v", what, got, want, *s, h.events)
	}
	return nil
}

// step does something at random at member i.
func (h *holdHistory) step(rnd *rand.Rand, i int) error {
	ks := h.open(i)
	switch n := 1 + rnd.Uint64N(4); {
	case len(ks) > 0 && rnd.IntN(3) == 0:
		k := ks[rnd.IntN(len(ks))]
		return h.giveBack(i, k, rnd.Uint64N(h.holds[k].hits+1))
	case len(ks) > 0 && rnd.IntN(5) == 0:
		return h.extend(i, ks[rnd.IntN(len(ks))])
	default:
		h.take(i, n, rnd.IntN(4) > 0)
	}
	return nil
}

func newHoldHistory(r Rule, code holdCode, handOff bool, members int) *holdHistory {
	h := &holdHistory{rule: r, code: code, handOff: handOff, now: t0}
	for range members {
		h.members = append(h.members, &holder{known: map[int]bool{}})
	}
	return h
}

func (h *holdHistory) run(rnd *rand.Rand, steps int) error {
	i := 0
	for range steps {
		h.now += rnd.Int64N(int64(h.rule.Window) / 24)
		if !h.rule.Algorithm.Bucket() && rnd.IntN(6) == 0 { // buckets forgive old debts, see TestOldDebtsAreForgiven
			h.now += rnd.Int64N(int64(h.rule.Window))
		}
		if !h.handOff {
			i = rnd.IntN(len(h.members))
		}
		switch rnd.IntN(6) {
		case 0:
			if next := rnd.IntN(len(h.members)); h.handOff {
				h.merge(next, h.members[i])
				i = next
			} else {
				h.merge(next, h.members[i])
			}
		case 1:
			if len(h.copies) > 0 { // late, perhaps for the second time
				h.merge(i, h.copies[rnd.IntN(len(h.copies))])
			}
		case 2:
			h.rule.Trim(&h.members[i].state, h.now)
		default:
			if err := h.step(rnd, i); err != nil {
				return err
			}
			h.copies = append(h.copies, h.members[i].clone())
		}
		if h.handOff {
			if err := h.compare("at its holder", &h.members[i].state, h.now); err != nil {
				return err
			}
		}
	}
	return h.end(rnd)
}

// end merges all states and copies in any order, twice.
func (h *holdHistory) end(rnd *rand.Rand) error {
	parts := append(slices.Clone(h.copies), h.members...)
	parts = append(parts, parts...)
	rnd.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	var sum State
	for _, p := range parts {
		h.rule.Merge(&sum, &p.state)
	}
	for _, later := range []int64{0, int64(h.rule.Window) / 3, int64(h.rule.Window)} {
		if err := h.compare("in the end", &sum, h.now+later); err != nil {
			return err
		}
	}
	return nil
}

// runHolds runs n histories and returns how many fail, and the first error.
func runHolds(n int, a Algorithm, code holdCode, handOff bool) (wrong int, first error) {
	for seed := range uint64(n) {
		rnd := rand.New(rand.NewPCG(seed, uint64(a)))
		r := historyRule(rnd, a)
		if err := newHoldHistory(r, code, handOff, 2+rnd.IntN(2)).run(rnd, 10+rnd.IntN(30)); err != nil {
			if wrong++; first == nil {
				first = fmt.Errorf("seed %d, %+v: %w", seed, r, err)
			}
		}
	}
	return wrong, first
}

func TestHoldHistories(t *testing.T) {
	n := 10000
	if testing.Short() {
		n = 1000
	}
	for _, a := range all {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			for _, handOff := range []bool{false, true} {
				if wrong, err := runHolds(n, a, soundHolds, handOff); wrong > 0 {
					t.Errorf("handoff %v: %d of %d histories: %v", handOff, wrong, n, err)
				}
			}
		})
	}
}

// TestHoldHistoriesFindBugs requires that the histories find known bugs.
func TestHoldHistoriesFindBugs(t *testing.T) {
	newest := holdCode{func(r Rule, s *State, now int64, writer uint64, _ int64, hits uint64) uint64 {
		d := r.Refund(s, now, writer, hits)
		return d.Before - d.After
	}, Rule.Extend}
	uncharged := holdCode{func(r Rule, s *State, now int64, writer uint64, at int64, hits uint64) uint64 {
		back := r.GiveBack(s, now, writer, at, hits)
		for i := range s.Slots {
			if f := &s.Slots[i]; !r.Algorithm.Bucket() && f.Refunded > 0 { // subtracted, so that copies restore it
				f.Charged, f.Refunded = f.Charged-min(f.Charged, f.Refunded), 0
			}
		}
		return back
	}, Rule.Extend}
	copied := holdCode{Rule.GiveBack, func(r Rule, s *State, now int64, writer uint64, at int64, hits uint64) (int64, bool) {
		if r.Algorithm != InFlight || at <= now-int64(r.Window) {
			return at, false
		}
		r.Charge(s, now, writer, hits)
		return now, true
	}}
	for _, c := range []struct {
		name string
		code holdCode
		in   []Algorithm
	}{
		{"the newest hits", newest, []Algorithm{FixedWindow, SlidingWindow, SlidingLog, InFlight}},
		{"subtracted", uncharged, []Algorithm{FixedWindow, SlidingWindow, SlidingLog, InFlight}},
		{"extended by a charge", copied, []Algorithm{InFlight}},
	} {
		for _, a := range c.in {
			wrong, err := runHolds(500, a, c.code, true)
			if wrong == 0 {
				t.Errorf("%s, %v: not found", c.name, a)
			}
			t.Logf("%s, %v: %d of 500 histories: %v", c.name, a, wrong, err)
		}
	}
}

// TestJoinedSlotsComeBack requires that holds come back whose slots in a log were joined, and that a log that is joined
// never counts less than the hits in use.
func TestJoinedSlotsComeBack(t *testing.T) {
	for seed := range uint64(200) {
		for _, a := range []Algorithm{SlidingLog, InFlight} {
			rnd := rand.New(rand.NewPCG(seed, uint64(a)))
			h := newHoldHistory(Rule{Window: time.Minute, Limit: math.MaxUint32, Algorithm: a}, soundHolds, true, 1)
			s := &h.members[0].state
			for range 600 {
				h.now += rnd.Int64N(int64(h.rule.Window) / 250)
				if rnd.IntN(8) == 0 {
					h.now += rnd.Int64N(int64(h.rule.Window) / 20)
				}
				ks := h.open(0)
				switch {
				case len(ks) > 0 && rnd.IntN(3) == 0:
					k := ks[rnd.IntN(len(ks))]
					x := &h.holds[k]
					if old := h.events[x.event].at <= h.now-int64(h.rule.Window); old {
						h.holds[k].done = true
						continue // counts for one more segment if it was joined
					}
					if err := h.giveBack(0, k, h.holds[k].hits); err != nil {
						t.Fatalf("seed %d, %v: %v", seed, a, err)
					}
				case rnd.IntN(9) == 0:
					h.rule.Trim(s, h.now)
				default:
					h.take(0, 1+rnd.Uint64N(3), true)
				}
				least, most := h.used(h.now), uint64(0)
				for _, e := range h.events {
					if e.at > h.now-int64(h.rule.Window)-h.rule.segmentWidth() {
						most += e.hits - e.back
					}
				}
				if got := h.rule.Used(s, h.now); got < least || got > most {
					t.Fatalf("seed %d, %v: %d used, want %d to %d", seed, a, got, least, most)
				}
			}
		}
	}
}
