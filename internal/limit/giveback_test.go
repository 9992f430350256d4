package limit

import (
	"math"
	"testing"
	"time"
)

func TestChargedAt(t *testing.T) {
	minute := int64(time.Minute)
	ahead := State{Slots: []Slot{{Writer: 9, At: base/minute + 1, Charged: 1}}}
	log := Rule{Window: time.Minute, Limit: 10, Algorithm: InFlight}
	end := log.segmentEnd(base + 1)
	for _, c := range []struct {
		name string
		r    Rule
		s    State
		now  int64
		want int64
	}{
		{"window", Rule{Window: time.Minute, Limit: 10}, State{}, base + 5, base / minute},
		{"a window that a faster clock has begun", Rule{Window: time.Minute, Limit: 10}, ahead, base + minute - 1, base/minute + 1},
		{"sliding window", Rule{Window: time.Minute, Limit: 10, Algorithm: SlidingWindow}, State{}, base + 5, base / minute},
		{"log", log, State{}, base + 1, base + 1},
		{"log with another writer's joined slot", log, State{Slots: []Slot{{Writer: 9, At: end, Charged: 1}}}, base + 1, base + 1},
		{"joined log", log, State{Slots: []Slot{{Writer: me, At: end, Charged: 1}}}, base + 1, end},
		{"bucket", Rule{Window: time.Minute, Limit: 60, Algorithm: TokenBucket}, State{}, base, base + 2*int64(time.Second)},
	} {
		s := clone(c.s)
		c.r.Take(&s, c.now, me, 2)
		if at := c.r.ChargedAt(&s, c.now, me); at != c.want {
			t.Errorf("%s: at %d, want %d", c.name, at, c.want)
		}
		if back := c.r.GiveBack(&s, c.now, 11, c.want, 2); back != 2 {
			t.Errorf("%s: %d given back", c.name, back)
		}
	}
}

// TestGiveBackOfTheNextWindow requires that hits which a fixed window was charged before it begins come back at any time before.
func TestGiveBackOfTheNextWindow(t *testing.T) {
	const minute = int64(time.Minute)
	w := t0 / minute
	for _, a := range []Algorithm{FixedWindow, SlidingWindow} {
		for _, now := range []int64{w * minute, w*minute + minute/2, (w+1)*minute - int64(ClockTolerance) - 1} {
			for at := w; at <= w+2; at++ {
				r, s := Rule{Window: time.Minute, Limit: 10, Algorithm: a}, State{Slots: []Slot{{Writer: me, At: at, Charged: 5}}}
				want := uint64(3)
				if at > w+1 || at > w && a == SlidingWindow {
					want = 0 // no member charges that far ahead
				}
				if back := r.GiveBack(&s, now, 11, at, 3); back != want {
					t.Errorf("%v, %v into the window, window +%d: %d given back, want %d", a, time.Duration(now-w*minute), at-w, back, want)
				}
			}
		}
	}
}

// TestInFlightChargesNoRefusedHits requires that a client that repeats refused requests does not keep others out.
func TestInFlightChargesNoRefusedHits(t *testing.T) {
	r := Rule{Window: time.Hour, Limit: 3, Algorithm: InFlight}
	var s State
	r.Take(&s, t0, me, 2)
	at := r.ChargedAt(&s, t0, me)
	for i := range int64(1000) {
		if d := r.Take(&s, t0+i, me, 2); !d.Over || d.Before != 2 {
			t.Fatalf("%+v", d)
		}
	}
	r.GiveBack(&s, t0+1000, me, at, 1)
	if d := r.Take(&s, t0+1000, me, 2); d.Over || d.After != 3 {
		t.Errorf("after a hit came back: %+v", d)
	}
	if r.Charge(&s, t0+1000, me, 5); r.Used(&s, t0+1000) != 8 {
		t.Errorf("%d used after a charge without a limit, want 8", r.Used(&s, t0+1000))
	}
}

// TestExtend requires that a slot that is extended counts for another window, and others do not.
func TestExtend(t *testing.T) {
	r := Rule{Window: time.Minute, Limit: 10, Algorithm: InFlight}
	half := int64(r.Window) / 2
	var s State
	r.Take(&s, t0, me, 2)
	r.Take(&s, t0+1, me, 3)
	at, ok := r.Extend(&s, t0+half, 9, t0, 2)
	if !ok || at != t0+half || r.Used(&s, t0+half) != 5 {
		t.Fatalf("slot %d, %v, %d used", at-t0, ok, r.Used(&s, t0+half))
	}
	now := t0 + 1 + int64(r.Window)
	if got := r.Used(&s, now); got != 2 {
		t.Errorf("%d used a window later, want 2", got)
	}
	if at, ok := r.Extend(&s, now, me, t0+1, 3); ok || at != t0+1 {
		t.Error("an expired slot was extended")
	}
	if back := r.GiveBack(&s, now, me, at, 2); back != 2 || r.Used(&s, now) != 0 {
		t.Errorf("%d given back after it was extended", back)
	}
	if _, ok := r.Extend(&s, now, me, at, 2); ok {
		t.Error("a slot was extended after it was given back")
	}
	r.Algorithm = SlidingLog
	r.Take(&s, now, me, 2)
	if _, ok := r.Extend(&s, now+1, me, now, 2); ok {
		t.Error("a sliding_log was extended")
	}
}

// TestExtendTheSegment requires that an extension within the segment of a joined slot changes nothing.
func TestExtendTheSegment(t *testing.T) {
	r := Rule{Window: time.Minute, Limit: 10, Algorithm: InFlight}
	end := r.segmentEnd(base + 1)
	s := State{Slots: []Slot{{Writer: me, At: end, Charged: 4}}}
	before := clone(s)
	if at, ok := r.Extend(&s, base+2, me, base+1, 2); !ok || at != end || !same(&s, &before) {
		t.Errorf("slot %d, %v: %+v", at, ok, s)
	}
}

// TestGiveBackSaturated requires that nothing comes back from a count that is too large to be known.
func TestGiveBackSaturated(t *testing.T) {
	for _, a := range all {
		r := Rule{Window: time.Minute, Limit: 10, Algorithm: a}
		var s State
		r.Charge(&s, t0, me, math.MaxUint64)
		at := r.ChargedAt(&s, t0, me)
		if back := r.GiveBack(&s, t0, me, at, 5); back != 0 || r.Used(&s, t0) != math.MaxUint64 {
			t.Errorf("%v: %d given back, %d used", a, back, r.Used(&s, t0))
		}
	}
}

func TestGiveBackAllocatesNothing(t *testing.T) {
	for _, a := range all {
		r := Rule{Window: time.Second, Limit: 1000, Algorithm: a}
		s := State{Slots: make([]Slot, 0, 3*logSlots)}
		now := t0
		if n := testing.AllocsPerRun(1000, func() {
			now += int64(time.Millisecond)
			r.Take(&s, now, me, 2)
			at, _ := r.Extend(&s, now, 9, r.ChargedAt(&s, now, me), 2)
			r.GiveBack(&s, now, 9, at, 1)
			r.Trim(&s, now)
		}); n != 0 {
			t.Errorf("%v: %v allocations", a, n)
		}
	}
}

// FuzzGiveBack requires that a give-back changes only its own place, and that a copy from before restores nothing.
func FuzzGiveBack(f *testing.F) {
	for _, a := range all {
		r := Rule{Window: time.Minute, Limit: 10, Algorithm: a}
		var s State
		r.Take(&s, t0, 3, 4)
		at := r.ChargedAt(&s, t0, 3)
		r.Take(&s, t0+1e9, 5, 4)
		f.Add(uint8(a), int64(r.Window), r.Limit, t0+2e9, at, uint64(2), encode(s))
		f.Add(uint8(a), int64(1), uint32(math.MaxUint32), int64(math.MinInt64), int64(math.MaxInt64), uint64(math.MaxUint64), encode(s))
		f.Add(uint8(a), int64(math.MaxInt64), uint32(1), int64(math.MaxInt64), int64(math.MinInt64), uint64(1), []byte{1})
	}
	f.Fuzz(func(t *testing.T, a uint8, window int64, limit uint32, now, at int64, hits uint64, b []byte) {
		r := Rule{Window: time.Duration(window), Limit: limit, Algorithm: Algorithm(a % 7)}
		s := decode(b)
		r.Clean(&s, now)
		before, used := clone(s), r.Used(&s, now)
		back := r.GiveBack(&s, now, me, at, hits)
		check(t, &s)
		if after := r.Used(&s, now); back > hits || after > used || used-after > back {
			t.Fatalf("%+v: %d of %d at %d: %d used, then %d", r, back, hits, at, used, r.Used(&s, now))
		}
		changed := uint64(0)
		for i := range s.Slots {
			if x := s.Slots[i]; !r.Algorithm.Bucket() && s.windowCount(x.At) != before.windowCount(x.At) {
				if x.At != at && (!r.Algorithm.Log() || x.At != r.segmentEnd(at)) {
					t.Fatalf("%+v: %d at %d changed %d", r, back, at, x.At)
				}
				changed = before.windowCount(x.At) - s.windowCount(x.At)
			}
		}
		if changed != back && !r.Algorithm.Bucket() {
			t.Fatalf("%+v: %d at %d changed %d", r, back, at, changed)
		}
		merged := clone(s)
		if r.Merge(&merged, &before); windows(r) && !same(&merged, &s) {
			t.Fatalf("%+v: %+v, with the copy from before %+v", r, s, merged)
		}
		before = clone(s)
		used = r.Used(&s, now)
		if _, ok := r.Extend(&s, now, me, at, hits); !ok && !same(&s, &before) || ok && r.Used(&s, now) < used {
			t.Fatalf("%+v: extended %v: %+v, then %+v", r, ok, before, s)
		}
		check(t, &s)
	})
}
