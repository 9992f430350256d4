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

// counter is the part of Rule that histories use, so that broken variants can replace it.
type counter struct {
	take   func(r Rule, s *State, now int64, writer, hits uint64)
	refund func(r Rule, s *State, now int64, writer, hits uint64)
	merge  func(r Rule, into, from *State)
}

var sound = counter{
	take:   func(r Rule, s *State, now int64, w, n uint64) { r.Take(s, now, w, n) },
	refund: func(r Rule, s *State, now int64, w, n uint64) { r.Refund(s, now, w, n) },
	merge:  func(r Rule, into, from *State) { r.Merge(into, from) },
}

// truth records what all members charged and refunded, in one counter that sees every event at once.
type truth struct {
	rule   Rule
	events []event // in order of time
}

// used returns the count at now; for a bucket the level in nanoseconds.
func (w *truth) used(now int64) uint64 {
	e := every{rule: w.rule, events: w.events}
	if w.rule.Algorithm.Bucket() {
		return uint64(e.level(now))
	}
	return e.used(now)
}

// charged records a take by a member whose count was before.
func (w *truth) charged(now int64, before, hits uint64) {
	if w.rule.charges(before, hits) {
		w.events = append(w.events, event{at: now, hits: hits})
	}
}

// most returns the highest acceptable count of a long log at now. A long log may keep a hit for one segment longer, and
// may lose a refund of another member's hit if only a part of the segment is joined.
func (w *truth) most(now int64) (n uint64) {
	for _, e := range w.events {
		if e.at > now-int64(w.rule.Window)-w.rule.segmentWidth() {
			n += e.hits
		}
	}
	return n
}

// refunded refunds hits, the newest first, as a member with complete information would.
func (w *truth) refunded(now int64, hits uint64) {
	e := every{rule: w.rule, events: w.events}
	e.refund(now, hits)
	w.events = e.events
}

// countOf returns s's count in the unit of truth.used.
func countOf(r Rule, s *State, now int64) uint64 {
	if r.Algorithm.Bucket() {
		return uint64(s.level(now))
	}
	return r.Used(s, now)
}

// history runs members that charge at random and copy their states to each other late, twice and out of order. It
// reports what is wrong with their final states. With handOff, one member at a time charges and refunds, and the next
// one starts with its state: then all counts must be exact.
type history struct {
	rule    Rule
	code    counter
	handOff bool
	long    bool // enough hits to join the slots of a log
	keep    bool // no refunds
	rnd     *rand.Rand
	now     int64
	truth   truth
	states  []State
	copies  []State // copies of states at some time
}

func newHistory(seed uint64, r Rule, code counter, handOff bool) *history {
	rnd := rand.New(rand.NewPCG(seed, 17))
	h := &history{rule: r, code: code, handOff: handOff, rnd: rnd, truth: truth{rule: r}}
	h.now = t0 + rnd.Int64N(int64(time.Hour))
	h.states = make([]State, 2+rnd.IntN(2))
	return h
}

func (h *history) run() error {
	holder := 0
	steps, pace := 5+h.rnd.IntN(20), int64(24)
	if h.long {
		steps, pace = 400, 200
	}
	for range steps {
		h.now += h.rnd.Int64N(int64(h.rule.Window) / pace)
		if !h.handOff {
			holder = h.rnd.IntN(len(h.states))
		}
		switch h.rnd.IntN(5) {
		case 0: // a late copy, perhaps for the second time
			if len(h.copies) > 0 && !h.handOff {
				h.code.merge(h.rule, &h.states[holder], &h.copies[h.rnd.IntN(len(h.copies))])
			}
		case 1:
			next := h.rnd.IntN(len(h.states))
			if err := h.move(holder, next); err != nil {
				return err
			}
			if h.handOff {
				holder = next
			}
		default:
			h.charge(holder)
		}
		if !h.long || h.rnd.IntN(20) == 0 {
			h.copies = append(h.copies, clone(h.states[holder]))
		}
	}
	return h.end()
}

func (h *history) charge(i int) {
	s, n := &h.states[i], 1+h.rnd.Uint64N(5)
	writer := uint64(2*i + 3)
	if h.handOff && !h.keep && h.rnd.IntN(3) == 0 {
		h.code.refund(h.rule, s, h.now, writer, n)
		h.truth.refunded(h.now, n)
		return
	}
	if h.rule.Algorithm.Bucket() && h.rnd.IntN(4) == 0 { // each member refunds the hits in its own state
		before := s.level(h.now)
		h.code.refund(h.rule, s, h.now, writer, n)
		h.truth.events = append(h.truth.events, event{at: h.now, back: uint64(before - s.level(h.now))})
		return
	}
	h.truth.charged(h.now, h.rule.Used(s, h.now), n)
	h.code.take(h.rule, s, h.now, writer, n)
}

// move merges i's state into that of j, followed by old copies, which must have no effect.
func (h *history) move(i, j int) error {
	h.code.merge(h.rule, &h.states[j], &h.states[i])
	if !h.handOff {
		return nil
	}
	for range h.rnd.IntN(3) {
		if len(h.copies) > 0 {
			h.code.merge(h.rule, &h.states[j], &h.copies[h.rnd.IntN(len(h.copies))])
		}
	}
	return h.compare("handed over", &h.states[j], h.now)
}

// end merges all states in any order.
func (h *history) end() error {
	parts := append(slices.Clone(h.copies), h.states...)
	h.rnd.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	var sum State
	for i := range parts {
		h.code.merge(h.rule, &sum, &parts[i])
	}
	for _, later := range []int64{0, int64(h.rule.Window) / 7, int64(h.rule.Window) * 2 / 3} {
		now := h.now + later
		if err := h.compare("in the end", &sum, now); err != nil {
			return err
		}
	}
	return nil
}

// compare returns an error if s is below the truth, or unnecessarily above it.
func (h *history) compare(what string, s *State, now int64) error {
	got, least, most := countOf(h.rule, s, now), h.truth.used(now), h.truth.used(now)
	if h.long {
		most = h.truth.most(now)
	}
	if h.rule.Algorithm.Bucket() && !h.handOff {
		most = math.MaxUint64
	}
	if got < least || got > most {
		return fmt.Errorf("%s count %d, want %d to %d", what, got, least, most)
	}
	return nil
}

func historyRule(rnd *rand.Rand, a Algorithm) Rule {
	r := Rule{Window: time.Minute, Limit: 1 + rnd.Uint32N(60), Algorithm: a}
	if a.Bucket() && rnd.IntN(2) == 0 {
		r.Burst = 1 + rnd.Uint32N(60)
	}
	return r
}

// run runs n histories and returns how many fail, and the first error.
func run(n int, a Algorithm, code counter, handOff bool) (wrong int, first error) {
	for seed := range uint64(n) {
		r := historyRule(rand.New(rand.NewPCG(seed, 18)), a)
		if err := newHistory(seed, r, code, handOff).run(); err != nil {
			if wrong++; first == nil {
				first = fmt.Errorf("seed %d, %+v: %w", seed, r, err)
			}
		}
	}
	return wrong, first
}

func TestHistories(t *testing.T) {
	n := 20000
	if testing.Short() {
		n = 2000
	}
	for _, a := range all {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			for _, handOff := range []bool{false, true} {
				if wrong, err := run(n, a, sound, handOff); wrong > 0 {
					t.Errorf("handoff %v: %d of %d histories: %v", handOff, wrong, n, err)
				}
			}
		})
	}
}

func TestLongLogHistories(t *testing.T) {
	for seed := range uint64(300) {
		r := Rule{Window: time.Minute, Limit: 500, Algorithm: SlidingLog}
		for i := range 4 {
			h := newHistory(seed, r, sound, i%2 == 0)
			h.long, h.keep = true, i < 2
			if err := h.run(); err != nil {
				t.Fatalf("seed %d, handoff %v, no refunds %v: %v", seed, h.handOff, h.keep, err)
			}
		}
	}
}

// TestOldDebtsAreForgiven requires that members that decided separately for a long time ignore each other's charges
// older than a Window.
func TestOldDebtsAreForgiven(t *testing.T) {
	r := Rule{Window: time.Minute, Limit: 60, Burst: 5, Algorithm: TokenBucket}
	var a, b State
	now := t0
	for ; now < t0+int64(time.Hour); now += int64(900 * time.Millisecond) {
		r.Take(&a, now, 3, 1)
		r.Take(&b, now, 5, 1)
	}
	now -= int64(900 * time.Millisecond)
	levels := a.level(now) + b.level(now)
	r.Merge(&a, &b)
	if got, most := a.level(now), levels+int64(r.Window); got > most || got < most-int64(time.Minute) {
		t.Errorf("level %v, want at most %v", time.Duration(got), time.Duration(most))
	}
}

// mergeByLargerTAT is a broken merge that takes the larger TAT.
func mergeByLargerTAT(r Rule, into, from *State) {
	tat := max(into.TAT, from.TAT)
	if r.Merge(into, from); r.Algorithm.Bucket() {
		into.TAT = tat
	}
}

// mergeBySum is a broken merge that adds slots instead of taking the larger numbers.
func mergeBySum(_ Rule, into, from *State) {
	for _, f := range from.Slots {
		into.slot(f.At, f.Writer).add(f)
	}
}

// refundBySubtraction is a broken refund that subtracts from its writer's charge.
func refundBySubtraction(r Rule, s *State, now int64, writer, hits uint64) {
	before := clone(*s)
	r.Refund(s, now, writer, hits)
	if r.Algorithm.Bucket() {
		if i := s.slotOf(writer); i >= 0 {
			s.Slots[i].Charged -= min(s.Slots[i].Charged, uint64(before.level(now)-s.level(now)))
		}
		return
	}
	for i := range s.Slots {
		f := &s.Slots[i]
		back := f.Refunded
		if k, ok := before.find(f.At, f.Writer); ok {
			back -= before.Slots[k].Refunded
		}
		f.Charged -= min(f.Charged, back)
		f.Refunded -= back
	}
}

// TestHistoriesFindBugs requires that the histories find known bugs.
func TestHistoriesFindBugs(t *testing.T) {
	for _, c := range []struct {
		name    string
		code    counter
		in      []Algorithm
		handOff bool
	}{
		{"larger TAT", counter{sound.take, sound.refund, mergeByLargerTAT}, []Algorithm{TokenBucket, LeakyBucket}, false},
		{"sum of slots", counter{sound.take, sound.refund, mergeBySum}, []Algorithm{FixedWindow, SlidingWindow, SlidingLog, InFlight}, false},
		{"refund by subtraction", counter{sound.take, refundBySubtraction, sound.merge}, all, true},
	} {
		for _, a := range c.in {
			wrong, err := run(1000, a, c.code, c.handOff)
			if wrong == 0 {
				t.Errorf("%s, %v: not found", c.name, a)
			}
			t.Logf("%s, %v: %d of 1000 histories: %v", c.name, a, wrong, err)
		}
	}
}

// anyState returns an arbitrary ordered State, as a malicious peer might send it.
func anyState(rnd *rand.Rand, r Rule, now int64) State {
	s := State{TAT: now + rnd.Int64N(3*r.width()) - r.width()}
	for range rnd.IntN(9) {
		at := now - rnd.Int64N(2*r.width()) + r.width()/2
		if r.Algorithm == FixedWindow || r.Algorithm == SlidingWindow {
			at = r.Index(now) - rnd.Int64N(3) + 1
		}
		f := Slot{Writer: rnd.Uint64N(3), At: at, Charged: rnd.Uint64N(40)}
		if rnd.IntN(20) == 0 {
			f.Charged = math.MaxUint64 - rnd.Uint64N(3)
		}
		f.Refunded = rnd.Uint64N(f.Charged/2 + 1)
		s.Slots = append(s.Slots, f)
	}
	r.Clean(&s, now)
	return s
}

func TestMergeIsALattice(t *testing.T) {
	for seed := range uint64(3000) {
		for _, a := range all {
			rnd := rand.New(rand.NewPCG(seed, 23))
			r := historyRule(rnd, a)
			x, y, z := anyState(rnd, r, t0), anyState(rnd, r, t0), anyState(rnd, r, t0)
			merged := func(states ...State) State {
				m := clone(states[0])
				for i := range states[1:] {
					r.Merge(&m, &states[i+1])
					check(t, &m)
				}
				return m
			}
			xy, yx := merged(x, y), merged(y, x)
			if !same(&xy, &yx) {
				t.Fatalf("seed %d, %v: %+v and %+v: %+v or %+v", seed, a, x, y, xy, yx)
			}
			if got := merged(xy, y, x, xy); !same(&got, &xy) {
				t.Fatalf("seed %d, %v: %+v, then %+v", seed, a, xy, got)
			}
			if empty := merged(State{}, x); len(x.Slots) > 0 && !same(&empty, &x) {
				t.Fatalf("seed %d, %v: %+v from %+v alone", seed, a, empty, x)
			}
			left, right := merged(xy, z), merged(x, merged(y, z))
			if (a == FixedWindow || a == SlidingWindow) && !same(&left, &right) {
				t.Fatalf("seed %d, %v: %+v or %+v", seed, a, left, right)
			}
		}
	}
}
