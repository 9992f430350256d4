package limit

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const me = 7 // a writer

var all = []Algorithm{FixedWindow, SlidingWindow, SlidingLog, TokenBucket, LeakyBucket, InFlight}

// every keeps every hit and every refund, and counts all of them each time.
type every struct {
	rule   Rule
	events []event
}

type event struct {
	at   int64
	hits uint64 // charged
	back uint64 // refunded hits; for buckets nanoseconds refunded at that time
}

func (w *every) used(now int64) uint64 {
	switch w.rule.Algorithm {
	case FixedWindow:
		return w.in(w.rule.Index(now))
	case SlidingWindow:
		i, width := w.rule.Index(now), uint64(w.rule.Window)
		gone := uint64(now) - uint64(i)*width
		before := w.in(i-1) * (width - gone)
		return w.in(i) + (before+width-1)/width
	case SlidingLog, InFlight:
		return w.since(now - int64(w.rule.Window))
	}
	t := w.interval()
	return uint64((w.level(now) + t - 1) / t)
}

func (w *every) in(window int64) (n uint64) {
	for _, e := range w.events {
		if w.rule.Index(e.at) == window {
			n += e.hits - e.back
		}
	}
	return n
}

func (w *every) since(at int64) (n uint64) {
	for _, e := range w.events {
		if e.at > at {
			n += e.hits - e.back
		}
	}
	return n
}

func (w *every) interval() int64 {
	return (int64(w.rule.Window) + int64(w.rule.Limit) - 1) / int64(w.rule.Limit)
}

// level pours every hit into a bucket that leaks one nanosecond per nanosecond.
func (w *every) level(now int64) (level int64) {
	var last int64
	for i, e := range append(w.events, event{at: now}) {
		if i > 0 {
			level = max(0, level-(e.at-last))
		}
		last = e.at
		level += int64(e.hits)*w.interval() - int64(e.back)
	}
	return level
}

func (w *every) take(now int64, n uint64) Decision {
	before := w.used(now)
	d := Decision{Before: before, After: before + n, Over: before+n > uint64(w.rule.Depth())}
	if !d.Over {
		d.Remaining = uint32(uint64(w.rule.Depth()) - d.After)
	}
	if w.rule.charges(before, n) {
		w.events = append(w.events, event{at: now, hits: n})
	}
	return d
}

// charges reports whether Take charges hits to a counter whose count is before.
func (r Rule) charges(before, hits uint64) bool {
	switch {
	case r.Algorithm.Bucket():
		return before < uint64(r.Depth())
	case r.Algorithm == InFlight:
		return before+hits <= uint64(r.Limit)
	}
	return true
}

func (w *every) refund(now int64, n uint64) {
	if w.rule.Algorithm.Bucket() {
		w.events = append(w.events, event{at: now, back: uint64(min(w.level(now), int64(n)*w.interval()))})
		return
	}
	i := w.rule.Index(now)
	for k := len(w.events) - 1; k >= 0; k-- {
		e := &w.events[k]
		if w.rule.Algorithm == FixedWindow && w.rule.Index(e.at) != i ||
			w.rule.Algorithm == SlidingWindow && w.rule.Index(e.at) < i-1 ||
			w.rule.Algorithm.Log() && e.at <= now-int64(w.rule.Window) {
			return
		}
		back := min(n, e.hits-e.back)
		e.back += back
		n -= back
	}
}

func anyRule(rnd *rand.Rand, a Algorithm) Rule {
	r := Rule{Window: []time.Duration{time.Second, time.Minute, 250 * time.Millisecond}[rnd.IntN(3)], Limit: 1 + rnd.Uint32N(30), Algorithm: a}
	if a.Bucket() {
		r.Burst = rnd.Uint32N(40)
	}
	return r
}

// TestLogExpiresBySegments requires that an old copy does not restore refunded hits of a segment that has partly
// expired.
func TestLogExpiresBySegments(t *testing.T) {
	r := Rule{Window: time.Minute, Limit: 500, Algorithm: SlidingLog}
	first := r.segmentEnd(t0) + 1
	second := first + r.segmentWidth()/2
	var s State
	r.Take(&s, first, 3, 1)
	r.Take(&s, second, 3, 1)
	old := clone(s)
	r.Refund(&s, second, 3, 2)
	now := first + int64(r.Window) // the first hit has expired
	r.Trim(&s, now)
	for i := range int64(logSlots) {
		r.Take(&s, now+i, 3, 1)
	}
	r.Merge(&s, &old)
	if got := r.Used(&s, now+logSlots); got != logSlots {
		t.Errorf("%d used, want %d", got, logSlots)
	}
}

// TestBucketEnvelope requires that a bucket admits at most its depth plus Limit hits per Window in any period.
func TestBucketEnvelope(t *testing.T) {
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		r := anyRule(rnd, TokenBucket)
		r.Limit = 1 + rnd.Uint32N(1000)
		var s State
		var admitted []event
		for now := t0; len(admitted) < 200; now += rnd.Int64N(3 * int64(r.Window) / int64(r.Limit)) {
			n := 1 + rnd.Uint64N(uint64(min(4, r.Depth())))
			if d := r.Take(&s, now, me, n); !d.Over {
				admitted = append(admitted, event{at: now, hits: n})
			}
		}
		for i := range admitted {
			var sum uint64
			for _, e := range admitted[i:] {
				sum += e.hits
				// sum <= depth + limit * (time between) / window
				if time := uint64(e.at - admitted[i].at); (sum-min(sum, uint64(r.Depth())))*uint64(r.Window) > uint64(r.Limit)*time {
					t.Fatalf("seed %d, %+v: %d hits in %d ns", seed, r, sum, time)
				}
			}
		}
	}
}

// TestRefusalsDoNotStarve requires that a client that repeatedly requests one hit gets the complete rate, whatever is
// refused in between.
func TestRefusalsDoNotStarve(t *testing.T) {
	for _, a := range []Algorithm{TokenBucket, LeakyBucket} {
		r := Rule{Window: time.Second, Limit: 10, Burst: 3, Algorithm: a}
		var s State
		var admitted int
		for now := t0; now < t0+int64(10*time.Second); now += int64(time.Millisecond) {
			if !r.Take(&s, now, me, 1).Over {
				admitted++
			}
		}
		if admitted != 102 {
			t.Errorf("%v: %d admitted in 10 s, want 3 and 99", a, admitted)
		}
	}
}

// check requires what holds for every State.
func check(t *testing.T, s *State) {
	t.Helper()
	for i := range s.Slots {
		if i > 0 && s.Slots[i-1].Compare(s.Slots[i]) >= 0 {
			t.Fatalf("slots out of order: %+v", s.Slots)
		}
	}
}

// clone returns a copy that shares nothing with s.
func clone(s State) State { return State{TAT: s.TAT, Slots: slices.Clone(s.Slots)} }

func same(a, b *State) bool { return a.TAT == b.TAT && slices.Equal(a.Slots, b.Slots) }

// chargedBy returns the hits charged by writer: in its newest window, or in the whole log. For buckets it counts from
// some time before the first charge, so only differences have a meaning.
func chargedBy(r Rule, s *State, writer uint64) (hits uint64) {
	for i := len(s.Slots) - 1; i >= 0; i-- {
		switch f := &s.Slots[i]; {
		case f.Writer != writer:
		case r.Algorithm.Log():
			hits = SaturatingAdd(hits, f.Charged)
		case r.Algorithm.Bucket():
			return f.Charged / uint64(r.interval())
		default:
			return f.Charged
		}
	}
	return hits
}
