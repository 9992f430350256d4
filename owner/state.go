package owner

import (
	"cmp"
	"math"
	"slices"

	"github.com/keyward/keyward/limit"
)

// An entry holds inline, in charged: for windows what this member's instance has charged in the newest one; for buckets
// the TAT. Everything else of a limit.State is in records. Hits that were given back by this instance stand in a record
// of its own; charges in such a record and inline ones add up.

// newest is the window that e's inline charges belong to.
func (e *entry) newest(r limit.Rule) int64 {
	w := r.Index(e.end - 1)
	if r.Algorithm == limit.SlidingWindow {
		w--
	}
	return w
}

func windowed(r limit.Rule) bool {
	return r.Algorithm == limit.FixedWindow || r.Algorithm == limit.SlidingWindow
}

func inOrder(a, b limit.Slot) int {
	return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Writer, b.Writer))
}

// load makes st what e holds.
func (s *shard) load(e *entry, r limit.Rule, st *limit.State) {
	st.TAT, st.Slots = 0, st.Slots[:0]
	for i := s.slab.slots(e.more); i != 0; {
		x := s.slab.at(i)
		st.Slots = append(st.Slots, limit.Slot{Writer: x.writer, At: x.at, Charged: x.charged, Refunded: x.refunded})
		i = x.next
	}
	switch {
	case r.Algorithm.Bucket():
		st.TAT = int64(e.charged)
	case e.charged > 0 && windowed(r):
		w := e.newest(r)
		i := slices.IndexFunc(st.Slots, func(f limit.Slot) bool { return f.At == w && f.Writer == s.inst })
		if i < 0 {
			i = len(st.Slots)
			st.Slots = append(st.Slots, limit.Slot{Writer: s.inst, At: w})
		}
		st.Slots[i].Charged = saturatingAdd(st.Slots[i].Charged, e.charged)
	}
	if !slices.IsSortedFunc(st.Slots, inOrder) {
		slices.SortFunc(st.Slots, inOrder)
	}
}

// store makes e hold st; false if there is no room for it, and nothing has changed then.
func (s *shard) store(e *entry, r limit.Rule, st *limit.State) bool {
	inline := -1
	if n := len(st.Slots); n > 0 && windowed(r) {
		for i := n - 1; i >= 0 && st.Slots[i].At == st.Slots[n-1].At; i-- {
			if f := &st.Slots[i]; f.Writer == s.inst && f.Refunded == 0 {
				inline = i
			}
		}
	}
	need := len(st.Slots)
	if inline >= 0 {
		need--
	}
	if !s.resizeChain(e, need) {
		return false
	}
	e.end, e.charged = r.Expires(st), 0
	if r.Algorithm.Bucket() {
		e.charged = uint64(st.TAT)
	}
	next := s.slab.slots(e.more)
	for i, f := range st.Slots {
		if i == inline {
			e.charged = f.Charged
			continue
		}
		x := s.slab.at(next)
		x.writer, x.at, x.charged, x.refunded = f.Writer, f.At, f.Charged, f.Refunded
		next = x.next
	}
	return true
}

// resizeChain makes e's chain have n slots.
func (s *shard) resizeChain(e *entry, n int) bool {
	have := 0
	for i := s.slab.slots(e.more); i != 0; i = s.slab.at(i).next {
		have++
	}
	if n-have > s.slab.room() {
		return false
	}
	for ; have < n; have++ {
		s.slab.add(e, 0, 1)
	}
	for ; have > n; have-- {
		first := s.slab.slots(e.more)
		next := s.slab.at(first).next
		if d := s.slab.debt(e.more); d != nil {
			d.next = next
		} else {
			e.more = next
		}
		s.slab.give(first)
	}
	return true
}

// renew makes e an empty counter of the fixed window that now lies in.
func (s *shard) renew(e *entry, r limit.Rule, now int64) {
	slots := s.slab.slots(e.more)
	if d := s.slab.debt(e.more); d != nil {
		d.next = 0
	} else {
		e.more = 0
	}
	s.slab.drop(slots)
	e.charged, e.end = 0, r.End(r.Index(now))
}

// tally is what stands in e's newest window, which is a fixed one.
func (s *shard) tally(e *entry, r limit.Rule) limit.Tally {
	t := limit.Tally{Window: r.Index(e.end - 1), Charged: e.charged}
	for i := s.slab.slots(e.more); i != 0; {
		x := s.slab.at(i)
		if x.at == t.Window {
			t.Charged = saturatingAdd(t.Charged, x.charged)
			t.Refunded = saturatingAdd(t.Refunded, x.refunded)
		}
		i = x.next
	}
	t.Refunded = min(t.Refunded, t.Charged)
	return t
}

// shape is the number of rule r apart from its limit, for an entry to hold; false if there are too many shapes.
func (s *shard) shape(r limit.Rule) (uint16, bool) {
	r.Limit = 0
	if !r.Algorithm.Bucket() {
		r.Burst = 0
	}
	if i := slices.Index(s.shapes, r); i >= 0 {
		return uint16(i), true
	}
	if len(s.shapes) >= maxShapes {
		return 0, false
	}
	s.shapes = append(s.shapes, r)
	return uint16(len(s.shapes) - 1), true
}

// rule is the rule by which e was last charged or sent.
func (s *shard) rule(e *entry) limit.Rule {
	r := s.shapes[e.shape]
	r.Limit = e.limit
	return r
}

// maxShapes caps the windows, algorithms and bursts that one shard knows at a time.
const maxShapes = 1024

func saturatingSub(a, b uint64) uint64 { return a - min(a, b) }

func saturatingAdd(a, b uint64) uint64 {
	if s := a + b; s >= a {
		return s
	}
	return math.MaxUint64
}
