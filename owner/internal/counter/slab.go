package counter

import (
	"math"

	"github.com/keyward/keyward/internal/limit"
)

const (
	pageBits    = 7
	pageRecords = 1 << pageBits
)

// record holds a value that does not fit into an entry: a slot of another writer or another time, or one of the entry's
// heads, its Unreplicated and its Unwritten, which come before its slots. It holds no pointers; the records of an entry
// are chained by their numbers.
type record struct {
	writer   uint64 // of a slot; see isHead
	at       int64
	charged  uint64
	refunded uint64
	next     uint32
	bits     uint32 // of a head: see there; of the first slot of a bucket: the high half of the TAT
}

// The writers of heads. limit.Rule.Clean refuses slots with these writers.
const (
	unreplicatedWriter = 0
	unwrittenWriter    = math.MaxUint64
)

// isHead reports whether r is no slot.
func (r *record) isHead() bool { return r.writer+1 <= 1 }

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
	if s.at(i).writer == unwrittenWriter {
		s.pool.journal.Add(1)
	}
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
		if !r.isHead() {
			slots++
		}
		next := r.next
		s.give(i)
		i = next
	}
	s.pool.release(domain, slots)
}

// head returns the head of that kind in the chain that begins at i, or nil.
func (s *slab) head(i uint32, writer uint64) *record {
	for i != 0 {
		r := s.at(i)
		switch {
		case r.writer == writer:
			return r
		case !r.isHead():
			return nil
		}
		i = r.next
	}
	return nil
}

// total calls hits for each record of writer. It returns the largest result, and the sum of all.
func (s *slab) total(writer uint64, hits func(*record) uint64) (most, sum uint64) {
	for i := range s.pages {
		for j := range s.pages[i] {
			if r := &s.pages[i][j]; r.writer == writer {
				n := hits(r)
				most, sum = max(most, n), limit.SaturatingAdd(sum, n)
			}
		}
	}
	return most, sum
}

// lastHead returns the last head of the chain that begins at i, or nil.
func (s *slab) lastHead(i uint32) (last *record) {
	for i != 0 {
		r := s.at(i)
		if !r.isHead() {
			break
		}
		last, i = r, r.next
	}
	return last
}

// slots returns the first record of the chain that is a slot.
func (s *slab) slots(i uint32) uint32 {
	for i != 0 {
		r := s.at(i)
		if !r.isHead() {
			break
		}
		i = r.next
	}
	return i
}

// setSlots makes the slots of the chain of e those that begin at first.
func (s *slab) setSlots(e *entry, first uint32) {
	if h := s.lastHead(e.more); h != nil {
		h.next = first
	} else {
		e.more = first
	}
}

// dropHead removes the head of that kind from the chain of e, which must have it.
func (s *slab) dropHead(e *entry, writer uint64) {
	at := &e.more
	for s.at(*at).writer != writer {
		at = &s.at(*at).next
	}
	i := *at
	*at = s.at(i).next
	s.give(i)
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
	r.next = s.slots(e.more)
	s.setSlots(e, i)
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
