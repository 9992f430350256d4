package limit

import (
	"encoding/binary"
	"math"
	"testing"
	"time"
)

// decode makes a State from arbitrary bytes, as a broken or hostile member might send it.
func decode(b []byte) (s State) {
	word := func() (x uint64) {
		var w [8]byte
		b = b[copy(w[:], b):]
		return binary.LittleEndian.Uint64(w[:])
	}
	s.TAT = int64(word())
	for len(b) > 0 && len(s.Slots) < 200 {
		s.Slots = append(s.Slots, Slot{Writer: word(), At: int64(word()), Charged: word(), Refunded: word()})
	}
	return s
}

func encode(s State) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(s.TAT))
	for _, f := range s.Slots {
		for _, w := range []uint64{f.Writer, uint64(f.At), f.Charged, f.Refunded} {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
	}
	return b
}

func FuzzTake(f *testing.F) {
	for _, a := range all {
		r := Rule{Window: time.Minute, Limit: 10, Algorithm: a}
		var s State
		r.Take(&s, t0, 3, 4)
		r.Take(&s, t0+1e9, 5, 4)
		f.Add(uint8(a), int64(r.Window), r.Limit, uint32(0), t0+2e9, uint64(2), uint64(1), encode(s))
		f.Add(uint8(a), int64(1), uint32(math.MaxUint32), uint32(1), int64(math.MinInt64), uint64(math.MaxUint64), uint64(math.MaxUint64), encode(s))
		f.Add(uint8(a), int64(math.MaxInt64), uint32(1), uint32(math.MaxUint32), int64(math.MaxInt64), uint64(1), uint64(9), []byte{1})
		f.Add(uint8(a), int64(-5), uint32(0), uint32(3), int64(-1), uint64(0), uint64(1), encode(State{TAT: math.MaxInt64,
			Slots: []Slot{{1, math.MinInt64, 1, 2}, {1, math.MaxInt64, math.MaxUint64, 0}}}))
	}
	f.Fuzz(func(t *testing.T, a uint8, window int64, limit, burst uint32, now int64, hits, back uint64, b []byte) {
		r := Rule{Window: time.Duration(window), Limit: limit, Burst: burst, Algorithm: Algorithm(a % 7)}
		s := decode(b)
		r.Clean(&s, now)
		fuzzTake(t, r, s, now, hits, back)
		fuzzTake(t, r, State{}, now, hits, back)
	})
}

func fuzzTake(t *testing.T, r Rule, s State, now int64, hits, back uint64) {
	peek, slots, before := r.Peek(&s, now, hits), len(s.Slots), chargedBy(r, &s, me)
	d := r.Take(&s, now, me, hits)
	if d.Before != peek.Before || d.After != peek.After || d.Over != peek.Over || d.Remaining != peek.Remaining {
		t.Fatalf("%+v: take %+v, peek %+v", r, d, peek)
	}
	used := r.Used(&s, now)
	switch {
	case d.Reset < time.Second || d.Reset%time.Second != 0:
		t.Fatalf("%+v: reset %v", r, d.Reset)
	case d.Over != (d.After > uint64(r.Depth())), !d.Over && uint64(d.Remaining) != uint64(r.Depth())-d.After:
		t.Fatalf("%+v: inconsistent %+v", r, d)
	case !d.Over && used < d.After && d.Before < used:
		t.Fatalf("%+v: %d used after %+v", r, used, d)
	case len(s.Slots) > slots+1:
		t.Fatalf("%+v: %d slots were %d", r, len(s.Slots), slots)
	case !r.Algorithm.Log() && chargedBy(r, &s, me) < before && slots > 0 && s.slotOf(me) < 0:
		t.Fatalf("%+v: charged %d, then %d", r, before, chargedBy(r, &s, me))
	}
	check(t, &s)
	if g := r.Refund(&s, now, me, back); g.Over || g.After > g.Before || g.Before != used {
		t.Fatalf("%+v: refund of %d at %d: %+v", r, back, used, g)
	}
	check(t, &s)
	used = r.Used(&s, now)
	if r.Trim(&s, now); r.Used(&s, now) < used {
		t.Fatalf("%+v: trimmed from %d to %d", r, used, r.Used(&s, now))
	}
	check(t, &s)
	if end := r.Expires(&s); end < math.MaxInt64 && r.Used(&s, max(end, now)) > 0 {
		t.Fatalf("%+v: %d used at expiry: %+v", r, r.Used(&s, max(end, now)), s)
	}
	r.ChargeLost(&s, now)
	check(t, &s)
}

func FuzzMerge(f *testing.F) {
	for _, a := range all {
		r := Rule{Window: time.Minute, Limit: 10, Algorithm: a}
		var x, y State
		r.Take(&x, t0, 3, 4)
		r.Merge(&y, &x)
		r.Take(&x, t0+1e9, 3, 4)
		r.Take(&y, t0+2e9, 5, 4)
		r.Refund(&y, t0+2e9, 5, 2)
		f.Add(uint8(a), int64(r.Window), r.Limit, t0+3e9, encode(x), encode(y))
		f.Add(uint8(a), int64(1), r.Limit, t0+1, encode(y), []byte{})
		f.Add(uint8(a), int64(math.MaxInt64), uint32(math.MaxUint32), int64(math.MinInt64), encode(y), encode(x))
	}
	f.Fuzz(func(t *testing.T, a uint8, window int64, limit uint32, now int64, b1, b2 []byte) {
		r := Rule{Window: time.Duration(window), Limit: limit, Algorithm: Algorithm(a % 7)}
		x, y := decode(b1), decode(b2)
		r.Clean(&x, now)
		r.Clean(&y, now)
		check(t, &x)
		xy, yx := clone(x), clone(y)
		r.Merge(&xy, &y)
		r.Merge(&yx, &x)
		check(t, &xy)
		if !same(&xy, &yx) {
			t.Fatalf("%+v: %+v and %+v: %+v or %+v", r, x, y, xy, yx)
		}
		again := clone(xy)
		for _, s := range []*State{&x, &y, &xy} {
			if r.Merge(&again, s); !same(&again, &xy) {
				t.Fatalf("%+v: %+v and %+v: %+v, then %+v", r, x, y, xy, again)
			}
		}
		for _, writer := range []uint64{3, 5} {
			if !r.Algorithm.Log() && chargedBy(r, &xy, writer) < chargedBy(r, &x, writer) && !windows(r) {
				t.Fatalf("%+v: less charged by %d", r, writer)
			}
		}
		r.Used(&xy, now)
	})
}

func windows(r Rule) bool { return !r.Algorithm.Bucket() && !r.Algorithm.Log() }
