package counter

import (
	"cmp"
	"math"
	"slices"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/protocol"
)

// An entry holds inline, in charged: for windows what this boot has charged in the newest one, if it fits; for buckets
// the low half of the TAT, whose high half is in the bits of the first slot. The rest of a limit.State is in records.
// This boot's refunds are in a record of their own; charges in such a record and inline ones add up.

// inlined reports whether entries hold charges by rule r inline: until, though rounded up, must still identify a
// window.
func inlined(r limit.Rule) bool { return Windowed(r) && r.End(0) >= Unit }

// Windowed reports whether rule r counts in windows of a fixed length.
func Windowed(r limit.Rule) bool {
	return r.Algorithm == limit.FixedWindow || r.Algorithm == limit.SlidingWindow
}

// Newest returns the newest window of e, which counts by r, a rule with windows.
func (s *Shard) Newest(e *Owned, r limit.Rule) int64 { return s.newest((*entry)(e), r) }

func (s *Shard) newest(e *entry, r limit.Rule) int64 {
	w := r.Index(e.until() - Unit) // less than a Unit before the end, so within the window
	if r.Algorithm == limit.SlidingWindow {
		w--
	}
	if r.End(0) < Unit {
		return s.newestRecord(e, r)
	}
	return w
}

// newestRecord is newest for windows shorter than a Unit, whose charges are all in records. Tables without records
// treat all windows within a Unit as one.
func (s *Shard) newestRecord(e *entry, r limit.Rule) int64 {
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

// End returns when e, which counts by r, has no effect any more: to the nanosecond for windows, otherwise like Until.
func (s *Shard) End(e *Owned, r limit.Rule) int64 { return s.end((*entry)(e), r) }

// EndLocal is End for a Local.
func (s *Shard) EndLocal(e *Local, r limit.Rule) int64 { return s.end((*entry)(e), r) }

// EndQuota is End for a Quota.
func (s *Shard) EndQuota(e *Quota, r limit.Rule) int64 { return s.end((*entry)(e), r) }

func (s *Shard) end(e *entry, r limit.Rule) int64 {
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

// Load sets st to the state of e, which counts by r.
func (s *Shard) Load(e *Owned, r limit.Rule, st *limit.State) { s.load((*entry)(e), r, st) }

// LoadLocal is Load for a Local.
func (s *Shard) LoadLocal(e *Local, r limit.Rule, st *limit.State) { s.load((*entry)(e), r, st) }

func (s *Shard) load(e *entry, r limit.Rule, st *limit.State) {
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
	case e.charged > 0 && Windowed(r):
		w := s.newest(e, r)
		i := slices.IndexFunc(st.Slots, func(f limit.Slot) bool { return f.At == w && f.Writer == s.bootID })
		if i < 0 {
			i = len(st.Slots)
			st.Slots = append(st.Slots, limit.Slot{Writer: s.bootID, At: w})
		}
		st.Slots[i].Charged = limit.SaturatingAdd(st.Slots[i].Charged, uint64(e.charged))
	}
	if !slices.IsSortedFunc(st.Slots, inOrder) {
		slices.SortFunc(st.Slots, inOrder)
	}
}

// Export sets c to all that is recorded in e. It uses the slots of c again.
func (s *Shard) Export(e *Owned, c *protocol.CounterRecord) {
	r, st := s.Rule(e), c.State
	s.Load(e, r, &st)
	*c = protocol.CounterRecord{
		Key: e.Key(), RingPos: e.RingPos(), Domain: uint64(e.Domain()), Rule: r, Volatile: s.Volatile(e), ExpiresAt: s.End(e, r), State: st,
	}
}

// Store makes st the state of e, which counts by r. It returns false, and changes nothing, if there is no room.
func (s *Shard) Store(e *Owned, r limit.Rule, st *limit.State) bool {
	return s.write((*entry)(e), r, st)
}

// StoreLocal is Store for a Local.
func (s *Shard) StoreLocal(e *Local, r limit.Rule, st *limit.State) bool {
	return s.write((*entry)(e), r, st)
}

func (s *Shard) write(e *entry, r limit.Rule, st *limit.State) bool {
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

// resizeChain makes the chain of e have n slots. It returns false, and changes nothing, if there is no room.
func (s *Shard) resizeChain(e *entry, n int) bool {
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
		s.slab.setSlots(e, next)
		s.slab.give(first)
	}
	return true
}

// Renew makes e an empty counter of the fixed window of now.
func (s *Shard) Renew(e *Owned, r limit.Rule, now int64) { s.renew((*entry)(e), r, now) }

// RenewLocal makes e an empty counter of the fixed window of now, with nothing admitted.
func (s *Shard) RenewLocal(e *Local, r limit.Rule, now int64) {
	s.renew((*entry)(e), r, now)
	e.Reset(0)
}

func (s *Shard) renew(e *entry, r limit.Rule, now int64) {
	slots := s.slab.slots(e.more)
	s.slab.setSlots(e, 0)
	s.slab.drop(slots, e.domain())
	e.charged = 0
	e.setUntil(r.End(r.Index(now)))
}

// Charge adds hits of this boot in window w, the newest of e. It returns false if there is no room for a record.
func (s *Shard) Charge(e *Owned, r limit.Rule, w int64, hits uint64) bool {
	if sum := limit.SaturatingAdd(uint64(e.charged), hits); sum <= math.MaxUint32 && inlined(r) {
		e.charged = uint32(sum)
		return true
	}
	x := s.own(e, w)
	if x == nil {
		return false
	}
	x.charged = limit.SaturatingAdd(x.charged, hits)
	return true
}

// Refund records that this boot has refunded hits of window w. It returns false if there is no room for a record.
func (s *Shard) Refund(e *Owned, w int64, hits uint64) bool {
	x := s.own(e, w)
	if x == nil {
		return false
	}
	x.refunded = limit.SaturatingAdd(x.refunded, hits)
	return true
}

// own returns this boot's record of window w, which it adds if there is none. It returns nil if there is no room.
func (s *Shard) own(e *Owned, w int64) *record {
	if x := s.slab.find((*entry)(e), w, s.bootID); x != nil {
		return x
	}
	return s.slab.add((*entry)(e), w, s.bootID)
}

// Inline returns the hits of this boot that e holds inline, for a rule with windows.
func (s *Shard) Inline(e *Owned) uint64 { return uint64(e.charged) }

// Recorded returns what is recorded of writer's hits in window w of e, without this boot's hits that Inline returns.
func (s *Shard) Recorded(e *Owned, w int64, writer uint64) (charged, refunded uint64, found bool) {
	if x := s.slab.find((*entry)(e), w, writer); x != nil {
		return x.charged, x.refunded, true
	}
	return 0, 0, false
}

// HasWriter reports whether e has a record of that writer.
func (s *Shard) HasWriter(e *Owned, writer uint64) bool { return s.slab.hasWriter((*entry)(e), writer) }

// Tally returns the count of e in window w, its newest, which is a fixed one.
func (s *Shard) Tally(e *Owned, w int64) limit.Tally {
	t := limit.Tally{Window: w, Charged: uint64(e.charged)}
	for i := s.slab.slots(e.more); i != 0; {
		x := s.slab.at(i)
		if x.at == t.Window {
			t.Charged = limit.SaturatingAdd(t.Charged, x.charged)
			t.Refunded = limit.SaturatingAdd(t.Refunded, x.refunded)
		}
		i = x.next
	}
	t.Refunded = min(t.Refunded, t.Charged)
	return t
}

// SetRule makes e count by rule r, apart from its limit, unless the shard stores too many rules.
func (s *Shard) SetRule(e *Owned, r limit.Rule) {
	x := s.shapes[(*entry)(e).shape()]
	x.rule = shapeOf(r)
	s.setShape(e, x)
}

// SetAudited records with e whether its rule has audit logs. It returns false if the shard stores too many rules.
func (s *Shard) SetAudited(e *Owned, audited bool) bool {
	x := s.shapes[(*entry)(e).shape()]
	x.audited = audited
	return s.setShape(e, x)
}

// Audited reports whether SetAudited has recorded that the rule of e has audit logs.
func (s *Shard) Audited(e *Owned) bool { return s.shapes[(*entry)(e).shape()].audited }

// SetVolatile records with e whether its rule keeps it out of the journal. If the shard stores too many rules, e stays
// as it is.
func (s *Shard) SetVolatile(e *Owned, volatile bool) {
	x := s.shapes[(*entry)(e).shape()]
	x.volatile = volatile
	s.setShape(e, x)
}

// Volatile reports whether SetVolatile has recorded that the rule of e keeps it out of the journal.
func (s *Shard) Volatile(e *Owned) bool { return s.shapes[(*entry)(e).shape()].volatile }

func (s *Shard) setShape(e *Owned, x shape) bool {
	if s.shapes[(*entry)(e).shape()] == x {
		return true
	}
	n, ok := s.shape(x)
	if ok {
		(*entry)(e).setShape(n)
	}
	return ok
}

// Rule returns the rule by which e was last charged or received.
func (s *Shard) Rule(e *Owned) limit.Rule {
	r := s.shapes[(*entry)(e).shape()].rule
	r.Limit = e.limit
	return r
}

// shape holds the properties that all entries of a rule have in common.
type shape struct {
	rule     limit.Rule // without what entries hold themselves
	audited  bool       // the rule has audit logs
	volatile bool       // the rule keeps its counters out of the journal
}

// shapeOf returns r without what entries hold themselves.
func shapeOf(r limit.Rule) limit.Rule {
	r.Limit = 0
	if !r.Algorithm.Bucket() {
		r.Burst = 0
	}
	return r
}

// shape returns the number of x, for an entry to hold. ok is false if there are too many.
func (s *Shard) shape(x shape) (n uint16, ok bool) {
	if i := slices.Index(s.shapes, x); i >= 0 {
		return uint16(i), true
	}
	if len(s.shapes) >= maxShapes {
		return 0, false
	}
	s.shapes = append(s.shapes, x)
	return uint16(len(s.shapes) - 1), true
}

// Insert adds a counter for r's key, which TableOwned must not have. A copy is another member's counter; any other
// starts with what sketches have counted of the key. Insert returns nil if there is no room. It uses st as scratch
// space.
func (s *Shard) Insert(r Ref, copied bool, st *limit.State) *Owned {
	x := s.insert(&r, copied)
	if x == nil {
		return nil
	}
	e := (*Owned)(x)
	e.value, e.limit = r.RingPos, r.Full.Limit
	if copied { // Complete adds what sketches have counted when this member decides the key
		return e
	}
	if !s.absorb(&r, e, st) {
		s.Owned.Remove(r.Hash, r.Key)
		return nil
	}
	e.SetComplete()
	return e
}

// InsertLocal adds a counter for r's key, which r's table must not have. It starts with what sketches have counted of
// the key, of which all may have been admitted. It returns nil if there is no room.
func (s *Shard) InsertLocal(r Ref) *Local {
	x := s.insert(&r, false)
	if x == nil {
		return nil
	}
	est := s.store.Sketches.Estimate(r)
	x.raise(est)
	e := (*Local)(x)
	e.Reset(est)
	return e
}

// insert adds an empty entry that lasts until the end of r's window.
func (s *Shard) insert(r *Ref, copied bool) *entry {
	n, ok := s.shape(shape{rule: shapeOf(r.Rule)})
	if !ok {
		return nil
	}
	e := s.table(r.Table).insert(r, copied)
	if e == nil {
		return nil
	}
	e.setShape(n)
	w := r.Rule.Index(r.Now)
	if r.Rule.Algorithm == limit.SlidingWindow {
		w++
	}
	e.setUntil(r.Rule.End(w))
	return e
}

// ChargeShare adds hits to e that this boot has admitted without the key's owner. It returns false if there is no room.
// It uses st as scratch space.
func (s *Shard) ChargeShare(r Ref, e *Owned, hits uint64, st *limit.State) bool {
	s.Load(e, r.Full, st)
	chargeAdmitted(r.Full, st, r.Now, s.bootID&^1, hits)
	r.Full.Trim(st, r.Now)
	return s.Store(e, r.Full, st)
}

// chargeAdmitted charges hits to st that were admitted elsewhere.
func chargeAdmitted(r limit.Rule, st *limit.State, now int64, writer, hits uint64) {
	if r.Algorithm == limit.InFlight { // Take charges none that do not fit
		r.Charge(st, now, writer, hits)
		return
	}
	r.Take(st, now, writer, hits)
}

// Complete makes e contain what sketches have counted of r's key, because this member decides it from now on. It
// returns false if there is no room; then st holds the state that e would need. Otherwise st is scratch space.
func (s *Shard) Complete(r Ref, e *Owned, st *limit.State) bool {
	e.SetComplete()
	return s.absorb(&r, e, st)
}

// absorb makes e count no less than sketches have counted of r's key. It returns false if there is no room, and leaves
// in st what e would have to hold.
func (s *Shard) absorb(r *Ref, e *Owned, st *limit.State) bool {
	if !s.store.Sketches.Live() {
		return true
	}
	s.Load(e, r.Full, st)
	if !s.store.Sketches.AddTo(*r, st, s.bootID) {
		return true
	}
	r.Full.Trim(st, r.Now)
	until := e.Until()
	if !s.Store(e, r.Full, st) {
		return false
	}
	e.Prolong(until)
	return true
}
