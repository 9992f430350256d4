package owner

import "sync/atomic"

const (
	pageBits    = 7
	pageRecords = 1 << pageBits
)

// record is what does not fit in an entry: the slot of another writer or another time, or the entry's debt. It holds no
// pointers; an entry's records are chained by their numbers.
type record struct {
	writer   uint64 // 0: this is a debt
	at       int64
	charged  uint64
	refunded uint64
	next     uint32
	bits     uint32 // of a debt, see below; of a bucket's first slot the high half of the TAT
}

// A debt is the first record of its entry's chain. It says what other members do not know yet: charged is the hits to
// tell of since it was made, refunded those of them that somebody else has; at is the window of both, 0 without windows.
const (
	queuedBit    = 1 << 31 // its key waits in the shard's queue
	attemptsBits = 8
	attemptsMask = 1<<attemptsBits - 1 // how often in a row nobody confirmed in time
)

// seq tells a debt from the key's earlier ones.
func (d *record) seq() uint32 { return d.bits &^ queuedBit >> attemptsBits }

// unconfirmed is the hits that no other member is known to have.
func (d *record) unconfirmed() uint64 { return d.charged - d.refunded }

// slab holds the records of one shard, in pages so that it never moves what it holds. Guarded by the shard's mu. One
// page is its own. The others come from a pool for all shards: a log takes 64 records, and with an even part of a small
// pool two logs that meet in one shard would fill it.
type slab struct {
	pages [][]record
	used  uint32 // records ever taken from the pages
	free  uint32 // first of those given back
	live  int
	pool  *pool
}

// pool is what all slabs share.
type pool struct {
	pages   atomic.Int64              // that are left
	reserve int64                     // of these, for debts alone: a charge whose debt finds no place is refused, whosever it is
	quota   int64                     // slots of one domain, at most
	domains [domainSlots]atomic.Int64 // slots, by domain
}

// allow charges n slots to a domain; false, and nothing has changed, when that is more than its quota.
func (p *pool) allow(domain uint16, n int) bool {
	if p.domains[domain].Add(int64(n)) > p.quota {
		p.domains[domain].Add(-int64(n))
		return false
	}
	return true
}

func (p *pool) release(domain uint16, n int) { p.domains[domain].Add(-int64(n)) }

// at is record i, from 1.
func (s *slab) at(i uint32) *record {
	i--
	return &s.pages[i>>pageBits][i&(pageRecords-1)]
}

// reserve makes sure that n records can be taken, and leaves spare pages in the pool; false, and nothing has changed, when there is no room
// for them.
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

// take is the number of an empty record; 0 when all are taken but what is spare.
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

// unreplicated is the debt of the chain that begins at i; nil if there is none.
func (s *slab) unreplicated(i uint32) *record {
	if i == 0 {
		return nil
	}
	if r := s.at(i); r.writer == 0 {
		return r
	}
	return nil
}

// slots is the first record of the chain that is a slot.
func (s *slab) slots(i uint32) uint32 {
	if r := s.unreplicated(i); r != nil {
		return r.next
	}
	return i
}

// add puts a slot in the chain of e; nil when there is no room.
func (s *slab) add(e *entry, at int64, writer uint64) *record {
	if !s.allow(e, 1) {
		return nil
	}
	return s.link(e, at, writer)
}

// allow charges n slots to the domain of e and makes sure that they can be linked; false, and nothing has changed, when there is no room.
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

// link puts a slot, which was allowed, in the chain of e.
func (s *slab) link(e *entry, at int64, writer uint64) *record {
	i := s.take(s.pool.reserve)
	r := s.at(i)
	r.at, r.writer = at, writer
	if d := s.unreplicated(e.more); d != nil {
		r.next, d.next = d.next, i
	} else {
		r.next, e.more = e.more, i
	}
	return r
}

// find is the slot of (at, writer) in the chain of e.
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

// unconfirmedHits is the most of one debt, and the sum of all.
func (s *slab) unconfirmedHits() (most, sum uint64) {
	for i := range s.pages {
		for j := range s.pages[i] {
			if r := &s.pages[i][j]; r.writer == 0 && r.bits != 0 {
				most, sum = max(most, r.unconfirmed()), saturatingAdd(sum, r.unconfirmed())
			}
		}
	}
	return most, sum
}
