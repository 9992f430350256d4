package owner

import (
	"cmp"
	"math"
	"slices"

	"github.com/keyward/keyward/internal/limit"
)

// An entry holds inline, in charged: for windows what this member's instance has charged in the newest one, as far as it
// fits; for buckets the low half of the TAT, whose high half is in the bits of the first slot. Everything else of a
// limit.State is in records. Hits that were given back by this instance stand in a record of its own; charges in such a
// record and inline ones add up.

// inlined says that entries hold charges by rule r inline: until, though rounded up, still tells its windows apart.
func inlined(r limit.Rule) bool { return windowed(r) && r.End(0) >= unit }

func windowed(r limit.Rule) bool {
	return r.Algorithm == limit.FixedWindow || r.Algorithm == limit.SlidingWindow
}

// newest is the newest window that e knows of, of a rule with windows.
func (s *shard) newest(e *entry, r limit.Rule) int64 {
	w := r.Index(e.until() - unit) // less than a unit before the end, so within the window
	if r.Algorithm == limit.SlidingWindow {
		w--
	}
	if r.End(0) < unit {
		return s.newestRecord(e, r)
	}
	return w
}

// newestRecord is newest for windows shorter than a unit, whose charges are all in records. Tables that have none take
// for one window what a unit holds.
func (s *shard) newestRecord(e *entry, r limit.Rule) int64 {
	w := int64(-1)
	if e.charged > 0 {
		w = r.Index(e.until() - 1)
	}
	for i := s.slab.slots(e.more); i != 0; {
		x := s.slab.at(i)
		w, i = max(w, x.at), x.next
	}
	return w
}

// end is when e, which counts by r, has no effect any more: for windows to the nanosecond, else as until.
func (s *shard) end(e *entry, r limit.Rule) int64 {
	switch r.Algorithm {
	case limit.FixedWindow:
		return r.End(s.newest(e, r))
	case limit.SlidingWindow:
		return r.End(s.newest(e, r) + 1)
	}
	return e.until()
}

func inOrder(a, b limit.Slot) int {
	return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Writer, b.Writer))
}

// load makes st what e holds.
func (s *shard) load(e *entry, r limit.Rule, st *limit.State) {
	st.TAT, st.Slots = 0, st.Slots[:0]
	first := s.slab.slots(e.more)
	for i := first; i != 0; {
		x := s.slab.at(i)
		st.Slots = append(st.Slots, limit.Slot{Writer: x.writer, At: x.at, Charged: x.charged, Refunded: x.refunded})
		i = x.next
	}
	switch {
	case r.Algorithm.Bucket():
		if first != 0 {
			st.TAT = int64(s.slab.at(first).bits)<<32 | int64(e.charged)
		}
	case e.charged > 0 && windowed(r):
		w := s.newest(e, r)
		i := slices.IndexFunc(st.Slots, func(f limit.Slot) bool { return f.At == w && f.Writer == s.bootID })
		if i < 0 {
			i = len(st.Slots)
			st.Slots = append(st.Slots, limit.Slot{Writer: s.bootID, At: w})
		}
		st.Slots[i].Charged = saturatingAdd(st.Slots[i].Charged, uint64(e.charged))
	}
	if !slices.IsSortedFunc(st.Slots, inOrder) {
		slices.SortFunc(st.Slots, inOrder)
	}
}

// store makes e hold st; false if there is no room for it, and nothing has changed then.
func (s *shard) store(e *entry, r limit.Rule, st *limit.State) bool {
	inline := -1
	if n := len(st.Slots); n > 0 && inlined(r) {
		for i := n - 1; i >= 0 && st.Slots[i].At == st.Slots[n-1].At; i-- {
			if f := &st.Slots[i]; f.Writer == s.bootID && f.Refunded == 0 && f.Charged <= math.MaxUint32 {
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
	e.setUntil(r.Expires(st))
	e.charged = 0
	next := s.slab.slots(e.more)
	if r.Algorithm.Bucket() && next != 0 {
		e.charged, s.slab.at(next).bits = uint32(st.TAT), uint32(st.TAT>>32)
	}
	for i, f := range st.Slots {
		if i == inline {
			e.charged = uint32(f.Charged)
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
	if n > have && !s.slab.allow(e, n-have) {
		return false
	}
	for ; have < n; have++ {
		s.slab.link(e, 0, 1)
	}
	s.slab.pool.release(e.domain(), max(0, have-n))
	for ; have > n; have-- {
		first := s.slab.slots(e.more)
		next := s.slab.at(first).next
		if d := s.slab.unreplicated(e.more); d != nil {
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
	if d := s.slab.unreplicated(e.more); d != nil {
		d.next = 0
	} else {
		e.more = 0
	}
	s.slab.drop(slots, e.domain())
	e.charged = 0
	e.setUntil(r.End(r.Index(now)))
}

// charge adds hits in window w, the newest of e, as this instance's; false if there is no room for a record.
func (s *shard) charge(e *entry, r limit.Rule, w int64, hits uint64) bool {
	if sum := saturatingAdd(uint64(e.charged), hits); sum <= math.MaxUint32 && inlined(r) {
		e.charged = uint32(sum)
		return true
	}
	x := s.slab.find(e, w, s.bootID)
	if x == nil {
		if x = s.slab.add(e, w, s.bootID); x == nil {
			return false
		}
	}
	x.charged = saturatingAdd(x.charged, hits)
	return true
}

// raise adds hits to what e, of a table without records, has charged. It stops where no limit is higher.
func (e *entry) raise(hits uint64) { e.charged = saturated(uint64(e.charged), hits) }

// saturated is a + b, at most the highest limit.
func saturated(a, b uint64) uint32 { return uint32(min(saturatingAdd(a, b), math.MaxUint32)) }

// tally is what stands in e's newest window, which is a fixed one.
func (s *shard) tally(e *entry, w int64) limit.Tally {
	t := limit.Tally{Window: w, Charged: uint64(e.charged)}
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

// reshape makes e count by rule r, apart from the limit, unless there are too many shapes.
func (s *shard) reshape(e *entry, r limit.Rule) {
	if s.shapes[e.shape()] == shapeOf(r) {
		return
	}
	if n, ok := s.shape(r); ok {
		e.setShape(n)
	}
}

// shapeOf is r without what entries hold themselves.
func shapeOf(r limit.Rule) limit.Rule {
	r.Limit = 0
	if !r.Algorithm.Bucket() {
		r.Burst = 0
	}
	return r
}

// shape is the number of rule r apart from its limit, for an entry to hold; false if there are too many shapes.
func (s *shard) shape(r limit.Rule) (uint16, bool) {
	r = shapeOf(r)
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
	r := s.shapes[e.shape()]
	r.Limit = e.limit
	return r
}

func saturatingSub(a, b uint64) uint64 { return a - min(a, b) }

func saturatingAdd(a, b uint64) uint64 {
	if s := a + b; s >= a {
		return s
	}
	return math.MaxUint64
}
