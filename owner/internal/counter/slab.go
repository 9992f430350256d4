package counter

import (
	"math"

	"github.com/keyward/keyward/internal/limit"
)

const (
	pageBits    = 7
	pageRecords = 1 << pageBits
)

// record holds a value that does not fit into an entry: a slot of another writer or another time, or the entry's
// Unreplicated. It holds no pointers; the records of an entry are chained by their numbers.
type record struct {
	writer   uint64 // 0: an Unreplicated
	at       int64
	charged  uint64
	refunded uint64
	next     uint32
	bits     uint32 // of an Unreplicated: see below; of the first slot of a bucket: the high half of the TAT
}

// Unreplicated records the charges of a counter that the successor has not confirmed. It is the first record of the
// counter's chain: at is the window of its charges, or 0 without windows, and refunded is the part that is confirmed.
type Unreplicated record

// The bits of an Unreplicated: whether its key is queued; its sequence number; how often in a row it was not confirmed
// in time.
const (
	queuedBit    = 1 << 31
	attemptsBits = 8
	attemptsMask = 1<<attemptsBits - 1
)

// Seq returns a number that is different from those of the key's earlier Unreplicated.
func (u *Unreplicated) Seq() uint32 { return u.bits &^ queuedBit >> attemptsBits }

// Charged returns the hits charged since the window began.
func (u *Unreplicated) Charged() uint64 { return u.charged }

// Confirmed returns how many of the charged hits another member has confirmed.
func (u *Unreplicated) Confirmed() uint64 { return u.refunded }

// Unconfirmed returns how many of the charged hits no other member has confirmed.
func (u *Unreplicated) Unconfirmed() uint64 { return u.charged - u.refunded }

// Confirm records that another member has upTo of the charged hits.
func (u *Unreplicated) Confirm(upTo uint64) {
	u.refunded = min(u.charged, max(u.refunded, upTo))
	u.bits &^= attemptsMask
}

// Queued reports whether the key is queued.
func (u *Unreplicated) Queued() bool { return u.bits&queuedBit != 0 }

// SetQueued records that the key is queued.
func (u *Unreplicated) SetQueued() { u.bits |= queuedBit }

// SetUnqueued records that the key is not queued.
func (u *Unreplicated) SetUnqueued() { u.bits &^= queuedBit }

// Attempts returns how often in a row the charges were not confirmed in time, at most 255.
func (u *Unreplicated) Attempts() int { return int(u.bits & attemptsMask) }

// AddAttempt counts an attempt.
func (u *Unreplicated) AddAttempt() {
	if u.bits&attemptsMask < attemptsMask {
		u.bits++
	}
}

// Unreplicated returns what is not confirmed of e, or nil.
func (s *Shard) Unreplicated(e *Owned) *Unreplicated {
	return (*Unreplicated)(s.slab.unreplicated(e.more))
}

// TrackUnreplicated adds hits, charged in a window of rule r, to the Unreplicated of e. It returns nil if there is no
// room for it.
func (s *Shard) TrackUnreplicated(e *Owned, r limit.Rule, hits uint64) *Unreplicated {
	u := s.slab.unreplicated(e.more)
	if u == nil {
		i := s.slab.take(0)
		if i == 0 {
			return nil
		}
		u = s.slab.at(i)
		u.at, u.next, e.more = math.MinInt64, e.more, i
	}
	window := int64(0)
	if r.Algorithm == limit.FixedWindow {
		window = s.Newest(e, r)
	}
	if u.at != window {
		s.seq++
		u.at, u.charged, u.refunded = window, 0, 0
		u.bits = u.bits&queuedBit | s.seq<<attemptsBits&^queuedBit
	}
	u.charged = limit.SaturatingAdd(u.charged, hits)
	return (*Unreplicated)(u)
}

// DropUnreplicated removes the Unreplicated of e, which must have one.
func (s *Shard) DropUnreplicated(e *Owned) {
	next := s.slab.unreplicated(e.more).next
	s.slab.give(e.more)
	e.more = next
}

// Unconfirmed returns the most unconfirmed hits of one counter, and the sum of all.
func (s *Shard) Unconfirmed() (most, sum uint64) {
	for i := range s.slab.pages {
		for j := range s.slab.pages[i] {
			if r := &s.slab.pages[i][j]; r.writer == 0 && r.bits != 0 {
				hits := (*Unreplicated)(r).Unconfirmed()
				most, sum = max(most, hits), limit.SaturatingAdd(sum, hits)
			}
		}
	}
	return most, sum
}

// slab holds the records of one shard, in pages so that it never moves them. One page is its own. The others come from
// a pool for all shards: a log takes 64 records, and if a small pool were divided evenly, two logs in one shard would
// fill its part.
type slab struct {
	pages [][]record
	used  uint32 // records ever taken from the pages
	free  uint32 // first of the records that were given back
	live  int
	pool  *pool
}

// at returns record i, from 1 on.
func (s *slab) at(i uint32) *record {
	i--
	return &s.pages[i>>pageBits][i&(pageRecords-1)]
}

// reserve makes sure that n records can be taken, and leaves spare pages in the pool. It returns false, and changes
// nothing, if there is no room for them.
func (s *slab) reserve(n int, spare int64) bool {
	need := (s.live+n+pageRecords-1)/pageRecords - len(s.pages)
	if need <= 0 {
		return true
	}
	shared := int64(need)
	if len(s.pages) == 0 {
		shared--
	}
	if shared > 0 && s.pool.pages.Add(-shared) < spare {
		s.pool.pages.Add(shared)
		return false
	}
	for range need {
		s.pages = append(s.pages, make([]record, pageRecords))
	}
	return true
}

// take returns the number of an empty record. It returns 0 if none is left, apart from spare pages.
func (s *slab) take(spare int64) uint32 {
	if !s.reserve(1, spare) {
		return 0
	}
	s.live++
	if i := s.free; i != 0 {
		r := s.at(i)
		s.free = r.next
		*r = record{}
		return i
	}
	s.used++
	return s.used
}

// give returns record i to the slab.
func (s *slab) give(i uint32) {
	if s.live--; s.live == 0 {
		s.pool.pages.Add(int64(len(s.pages) - 1))
		s.pages, s.used, s.free = nil, 0, 0
		return
	}
	*s.at(i) = record{next: s.free}
	s.free = i
}

// drop gives back the chain that begins at i, of a key of that domain.
func (s *slab) drop(i uint32, domain uint16) {
	slots := 0
	for i != 0 {
		r := s.at(i)
		if r.writer != 0 {
			slots++
		}
		next := r.next
		s.give(i)
		i = next
	}
	s.pool.release(domain, slots)
}

// unreplicated returns the Unreplicated of the chain that begins at i, or nil.
func (s *slab) unreplicated(i uint32) *record {
	if i == 0 {
		return nil
	}
	if r := s.at(i); r.writer == 0 {
		return r
	}
	return nil
}

// slots returns the first record of the chain that is a slot.
func (s *slab) slots(i uint32) uint32 {
	if r := s.unreplicated(i); r != nil {
		return r.next
	}
	return i
}

// add adds a slot to the chain of e. It returns nil if there is no room.
func (s *slab) add(e *entry, at int64, writer uint64) *record {
	if !s.allow(e, 1) {
		return nil
	}
	return s.link(e, at, writer)
}

// allow charges n slots to the domain of e and makes sure that they can be linked. It returns false, and changes
// nothing, if there is no room.
func (s *slab) allow(e *entry, n int) bool {
	if !s.pool.allow(e.domain(), n) {
		return false
	}
	if !s.reserve(n, s.pool.reserve) {
		s.pool.release(e.domain(), n)
		return false
	}
	return true
}

// link adds a slot, which was allowed, to the chain of e.
func (s *slab) link(e *entry, at int64, writer uint64) *record {
	i := s.take(s.pool.reserve)
	r := s.at(i)
	r.at, r.writer = at, writer
	if u := s.unreplicated(e.more); u != nil {
		r.next, u.next = u.next, i
	} else {
		r.next, e.more = e.more, i
	}
	return r
}

// find returns the slot of (at, writer) in the chain of e, or nil.
func (s *slab) find(e *entry, at int64, writer uint64) *record {
	for i := s.slots(e.more); i != 0; {
		r := s.at(i)
		if r.at == at && r.writer == writer {
			return r
		}
		i = r.next
	}
	return nil
}

// hasWriter reports whether the chain of e has a slot of that writer.
func (s *slab) hasWriter(e *entry, writer uint64) bool {
	for i := s.slots(e.more); i != 0; {
		r := s.at(i)
		if r.writer == writer {
			return true
		}
		i = r.next
	}
	return false
}
