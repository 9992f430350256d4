package limit

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// base is the start of a minute.
var base = t0 - t0%int64(time.Minute)

func TestAlgorithmNames(t *testing.T) {
	for i, name := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "leaky_bucket", "in_flight"} {
		a, ok := ParseAlgorithm(name)
		if !ok || a != Algorithm(i) || a.String() != name {
			t.Errorf("%s is %v, %v, %d", name, a, ok, a)
		}
		if err := (Rule{Window: 1, Algorithm: a}).Validate(); err != nil {
			t.Error(err)
		}
	}
	if a, ok := ParseAlgorithm("Fixed_Window"); ok || a != 0 {
		t.Error("names are exact")
	}
	for _, r := range []Rule{{Window: 1, Algorithm: 6}, {Algorithm: 255, Window: 1}, {}, {Window: -1},
		{Window: 24 * time.Hour, Limit: 1, Burst: 40000, Algorithm: TokenBucket}} {
		if r.Validate() == nil {
			t.Errorf("%+v is valid", r)
		}
	}
}

func TestDepth(t *testing.T) {
	for _, c := range []struct {
		r    Rule
		want uint32
	}{
		{Rule{Limit: 5, Burst: 9}, 5},
		{Rule{Limit: 5, Burst: 9, Algorithm: SlidingLog}, 5},
		{Rule{Limit: 5, Burst: 9, Algorithm: TokenBucket}, 9},
		{Rule{Limit: 5, Burst: 2, Algorithm: LeakyBucket}, 2},
		{Rule{Limit: 5, Algorithm: LeakyBucket}, 5},
		{Rule{Limit: 0, Burst: 9, Algorithm: TokenBucket}, 0},
	} {
		if got := c.r.Depth(); got != c.want {
			t.Errorf("%+v: %d", c.r, got)
		}
	}
}

// TestHeaders covers the header values of each algorithm for a limit of 10 per minute and hits at given seconds.
func TestHeaders(t *testing.T) {
	type ask struct {
		second float64
		hits   uint64
		want   Decision
	}
	d := func(before, after uint64, remaining uint32, reset time.Duration, over bool) Decision {
		return Decision{Before: before, After: after, Remaining: remaining, Reset: reset * time.Second, Over: over}
	}
	for _, c := range []struct {
		algorithm Algorithm
		burst     uint32
		asks      []ask
	}{
		{FixedWindow, 0, []ask{
			{10, 4, d(0, 4, 6, 50, false)}, {50, 7, d(4, 11, 0, 10, true)}, {59.9, 0, d(11, 11, 0, 1, true)}, {60, 1, d(0, 1, 9, 60, false)},
		}},
		{SlidingWindow, 0, []ask{
			{10, 8, d(0, 8, 2, 50, false)},
			{60, 1, d(8, 9, 1, 60, false)}, // all 8 count, and 1
			{90, 1, d(5, 6, 4, 30, false)}, // half of the 8
			{91, 6, d(6, 12, 0, 22, true)}, // 8 count in this window: one fits when only one of the previous 8 counts, at 112.5 s
			{127, 1, d(8, 9, 1, 53, false)},
		}},
		{SlidingWindow, 0, []ask{
			{30, 10, d(0, 10, 0, 30, false)},
			{60, 1, d(10, 11, 0, 12, true)}, // 1 + 10*48/60 = 9 count 12 s later
		}},
		{SlidingLog, 0, []ask{
			{10, 4, d(0, 4, 6, 60, false)}, {40, 6, d(4, 10, 0, 30, false)}, {41, 1, d(10, 11, 0, 29, true)},
			{70, 0, d(7, 7, 3, 30, false)}, {100, 0, d(1, 1, 9, 1, false)}, {101, 0, d(0, 0, 10, 60, false)},
		}},
		{InFlight, 0, []ask{
			{10, 4, d(0, 4, 6, 60, false)}, {40, 6, d(4, 10, 0, 30, false)}, {41, 1, d(10, 11, 0, 29, true)},
			{70, 0, d(6, 6, 4, 30, false)}, {71, 5, d(6, 11, 0, 29, true)}, {72, 4, d(6, 10, 0, 28, false)}, {100, 0, d(4, 4, 6, 32, false)},
		}},
		{TokenBucket, 3, []ask{
			{0, 1, d(0, 1, 2, 6, false)}, {0, 2, d(1, 3, 0, 18, false)}, {3, 1, d(3, 4, 0, 3, true)}, {6, 1, d(2, 3, 0, 18, false)},
			{24, 0, d(0, 0, 3, 1, false)},
		}},
		{LeakyBucket, 0, []ask{
			{0, 9, d(0, 9, 1, 54, false)}, {1, 2, d(9, 11, 0, 11, true)}, {2, 1, d(11, 12, 0, 10, true)}, {12, 1, d(9, 10, 0, 60, false)},
		}},
	} {
		r := Rule{Window: time.Minute, Limit: 10, Burst: c.burst, Algorithm: c.algorithm}
		var s State
		for _, a := range c.asks {
			if got := r.Take(&s, base+int64(a.second*1e9), me, a.hits); got != a.want {
				t.Errorf("%v: %d hits at %v s: %+v, want %+v", c.algorithm, a.hits, a.second, got, a.want)
			}
		}
	}
}

// TestResetWhenOver requires that, after Over, nothing fits before the time of Reset and one hit fits then.
func TestResetWhenOver(t *testing.T) {
	for seed := range uint64(500) {
		for _, a := range all[1:] {
			rnd := rand.New(rand.NewPCG(seed, 31))
			r := anyRule(rnd, a)
			var s State
			now := base + rnd.Int64N(1e12)
			for range 40 {
				now += rnd.Int64N(int64(r.Window) / 8)
				r.Take(&s, now, me, rnd.Uint64N(6))
			}
			for r.Used(&s, now) < uint64(r.Depth()) {
				r.Take(&s, now, me, 1)
			}
			at := map[bool]func(*State, int64, bool) int64{true: r.resetBucket, false: r.resetWindows}[a.Bucket()]
			if a.Log() {
				at = r.resetLog
			}
			open := at(&s, now, true)
			if open <= now || r.Peek(&s, open, 1).Over || !r.Peek(&s, open-1, 1).Over {
				t.Fatalf("seed %d, %+v: opens %d ns from now: %+v, %+v before", seed, r, open-now, r.Peek(&s, open, 1), r.Peek(&s, open-1, 1))
			}
		}
	}
}

func TestTheWindowAhead(t *testing.T) {
	r := Rule{Window: time.Minute, Limit: 10}
	end := base + int64(time.Minute)
	w := r.Index(base)
	other := State{Slots: []Slot{{Writer: 3, At: w + 1, Charged: 4}, {Writer: 3, At: w + 9, Charged: 5}}}
	for _, c := range []struct {
		now  int64
		used uint64
	}{
		{end - int64(ClockTolerance) - 1, 2},
		{end - int64(ClockTolerance), 4},
		{end + 1, 4},
		{r.start(w + 9), 5},
	} {
		s := State{Slots: []Slot{{Writer: me, At: w, Charged: 2}}}
		r.Merge(&s, &other)
		if got := r.Used(&s, c.now); got != c.used {
			t.Errorf("%d ns before the end: %d used, want %d", end-c.now, got, c.used)
		}
		if r.Take(&s, c.now, me, 1); r.Used(&s, c.now) != c.used+1 {
			t.Errorf("%d ns before the end: %d used after one more", end-c.now, r.Used(&s, c.now))
		}
	}
	// Another member's clock may still be in the window that ended here.
	s := State{Slots: []Slot{{Writer: me, At: w, Charged: 2}}}
	if r.Trim(&s, end+int64(ClockTolerance)-1); len(s.Slots) != 1 {
		t.Error("trimmed too early")
	}
	if r.Trim(&s, end+int64(ClockTolerance)); len(s.Slots) != 0 {
		t.Error("not trimmed")
	}
}

// TestTheLogAhead requires that a log from a member whose clock is ahead by more than clocks may differ counts
// completely and immediately.
func TestTheLogAhead(t *testing.T) {
	r := Rule{Window: 2 * time.Second, Limit: 30, Algorithm: SlidingLog}
	other := State{}
	for i := range int64(20) {
		r.Take(&other, base+i*int64(time.Second)/16, 3, 1)
	}
	last := base + 19*int64(time.Second)/16
	other.Slots = append(other.Slots, Slot{Writer: 3, At: base + 2*int64(maxClockError), Charged: 5})
	if n := r.Clean(&other, base); n != 1 {
		t.Errorf("%d dropped, want 1", n)
	}
	s := State{}
	r.Merge(&s, &other)
	for now := base; now <= last; now += int64(time.Second) / 16 {
		if r.Trim(&s, now); r.Used(&s, now) != 20 {
			t.Errorf("%d ns before the last hit: %d used, want 20", last-now, r.Used(&s, now))
		}
	}
	if used := r.Used(&s, last+int64(r.Window)); used != 0 {
		t.Errorf("%d used a window after the last hit", used)
	}
}

func TestLimitChangesInMidWindow(t *testing.T) {
	for _, a := range []Algorithm{FixedWindow, SlidingWindow, SlidingLog, InFlight} {
		r := Rule{Window: time.Minute, Limit: 10, Algorithm: a}
		var s State
		r.Take(&s, t0, me, 8)
		for _, c := range []struct {
			limit     uint32
			remaining uint32
			over      bool
		}{{20, 11, false}, {9, 0, false}, {5, 0, true}, {0, 0, true}} {
			r.Limit = c.limit
			if d := r.Peek(&s, t0, 1); d.After != 9 || d.Remaining != c.remaining || d.Over != c.over {
				t.Errorf("%v: %d: %+v", a, c.limit, d)
			}
		}
	}
}

func TestChargeLost(t *testing.T) {
	const limit = 80
	for _, a := range all {
		for _, after := range []time.Duration{0, 15 * time.Second, 59 * time.Second} {
			r := Rule{Window: time.Minute, Limit: limit, Algorithm: a}
			now := base + int64(after)
			var s State
			r.ChargeLost(&s, now)
			again := clone(s)
			if r.ChargeLost(&again, now); !same(&s, &again) {
				t.Errorf("%v: twice: %+v and %+v", a, s, again)
			}
			check(t, &s)
			var admitted int
			end := base + int64(time.Minute)
			for at := now; at < end; at += int64(10 * time.Millisecond) {
				if !r.Take(&s, at, me, 1).Over {
					admitted++
				} else if !a.Bucket() && a != InFlight {
					takeBack(&s, r, at) // windows are charged for refusals, which would hide free hits here
				}
			}
			if most := int(limit * (time.Minute - after) / time.Minute); admitted > most || admitted < most-limit/lostSteps {
				t.Errorf("%v: %d admitted in the rest of a window after %v, want %d", a, admitted, after, most)
			}
		}
	}
}

func takeBack(s *State, r Rule, at int64) { r.Refund(s, at, me, 1) }

func TestClean(t *testing.T) {
	w := Rule{Window: time.Minute}.Index(base)
	for _, c := range []struct {
		name  string
		rule  Rule
		in    State
		want  State
		wrong int
	}{
		{"windows", Rule{Window: time.Minute}, State{TAT: 5, Slots: []Slot{
			{5, w + 1, 1, 0}, {3, w, 4, 1}, {3, w, 2, 2}, {3, w - 1, 1, 0}, {3, w - 2, 1, 0}, {3, w + 2, 1, 0}, {3, math.MinInt64, 1, 0}, {9, w, 0, 0},
		}}, State{Slots: []Slot{{3, w - 1, 1, 0}, {3, w, 4, 2}, {5, w + 1, 1, 0}}}, 2}, // the empty slot and the future window
		{"log", Rule{Window: time.Minute, Algorithm: SlidingLog}, State{Slots: []Slot{
			{3, base + 1, 1, 0}, {3, base - int64(time.Minute), 1, 0}, {3, base + int64(time.Minute), 1, 0}, {3, base - 5, 1, 0},
		}}, State{Slots: []Slot{{3, base - 5, 1, 0}, {3, base + 1, 1, 0}}}, 1},
		{"bucket", Rule{Window: time.Minute, Limit: 60, Algorithm: TokenBucket}, State{TAT: math.MaxInt64, Slots: []Slot{
			{3, math.MaxInt64, 100, 90}, {5, base - 4, 30, 40}, {3, base, 110, 80},
		}}, State{TAT: base + int64(maxClockError) + 20, Slots: []Slot{{5, base - 4, 30, 30}, {3, base + int64(maxClockError), 110, 90}}}, 0},
	} {
		if n := c.rule.Clean(&c.in, base); n != c.wrong || !same(&c.in, &c.want) {
			t.Errorf("%s: %d wrong slots, %+v, want %d, %+v", c.name, n, c.in, c.wrong, c.want)
		}
	}
}

// TestCleanKeepsWhatIsRight requires that Clean does not change what a member made.
func TestCleanKeepsWhatIsRight(t *testing.T) {
	for seed := range uint64(300) {
		for _, a := range all {
			rnd := rand.New(rand.NewPCG(seed, 41))
			r := anyRule(rnd, a)
			var s State
			now := t0
			for range 100 {
				now += rnd.Int64N(int64(r.Window) / 32)
				r.Take(&s, now, 3+2*rnd.Uint64N(2), rnd.Uint64N(4))
				if rnd.IntN(4) == 0 {
					r.Refund(&s, now, 3, 1)
				}
			}
			used, c := r.Used(&s, now), clone(s)
			r.Clean(&c, now)
			if got := r.Used(&c, now); got != used {
				t.Fatalf("seed %d, %+v: %d used, %d before", seed, r, got, used)
			}
			r.Trim(&s, now)
			if r.Clean(&s, now); r.Used(&s, now) < used {
				t.Fatalf("seed %d, %+v: %d used when trimmed, %d before", seed, r, r.Used(&s, now), used)
			}
		}
	}
}

// TestBucketStartsAgain requires that a member that forgets a drained bucket and starts again is above what old copies
// contain for it.
func TestBucketStartsAgain(t *testing.T) {
	r := Rule{Window: time.Second, Limit: 10, Algorithm: TokenBucket}
	var s State
	r.Take(&s, t0, me, 10)
	r.Refund(&s, t0, me, 4)
	r.Take(&s, t0, me, 4)
	old := clone(s)
	if got := r.Used(&s, r.Expires(&s)); got != 0 {
		t.Fatalf("%d used at expiry", got)
	}
	now := r.Expires(&s)
	s = State{}
	r.Take(&s, now, me, 3)
	for _, both := range [][2]State{{s, old}, {old, s}} {
		m := clone(both[0])
		if r.Merge(&m, &both[1]); r.Used(&m, now) != 3 {
			t.Errorf("%d used with an old copy, want 3: %+v", r.Used(&m, now), m)
		}
	}
}

func TestStatesAllocateNothing(t *testing.T) {
	for _, a := range all {
		r := Rule{Window: time.Second, Limit: 1000, Algorithm: a}
		s := State{Slots: make([]Slot, 0, 2*logSlots)}
		now := t0
		if n := testing.AllocsPerRun(1000, func() {
			now += int64(time.Millisecond)
			r.Take(&s, now, me, 1)
			r.Take(&s, now, 9, 1)
			r.Peek(&s, now, 1)
			r.Refund(&s, now, me, 1)
			r.Trim(&s, now)
		}); n != 0 {
			t.Errorf("%v: %v allocations", a, n)
		}
		from := clone(s)
		s.Slots = slices.Grow(s.Slots, 2*logSlots)
		if n := testing.AllocsPerRun(100, func() { r.Merge(&s, &from) }); n != 0 {
			t.Errorf("%v: merge: %v allocations", a, n)
		}
	}
}

func BenchmarkTake(b *testing.B) {
	for _, a := range all {
		b.Run(a.String(), func(b *testing.B) {
			r := Rule{Window: time.Second, Limit: 1000, Algorithm: a}
			var s State
			for now := t0; b.Loop(); now += int64(time.Millisecond) {
				r.Take(&s, now, me, 1)
			}
		})
	}
}
