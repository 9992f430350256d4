// Package writeback queues the counters of a shard that this member's journal has to write: soon those of which a crash
// of all members would lose many hits, or for which a request waits, and later all others.
package writeback

import (
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
)

// Queues holds the keys of one shard of the counters that have hits which the journal may lack. The shard's lock guards
// it.
type Queues struct {
	counters *counter.Shard
	delay    int64 // the longest time between a hit and its record, in nanoseconds
	soon     counter.Queue[counter.Key]
	late     counter.Queue[lateKey] // has every key with an Unwritten, once
	missed   bool                   // see Missed
}

// maxUntracked is the most keys in soon when another one without an Unwritten is added.
const maxUntracked = 4096

// lateKey is a key and the time at which it has to be written.
type lateKey struct {
	key   counter.Key
	dueAt int64
}

// Urgency reports how soon the journal has to write the queued keys.
type Urgency uint8

// The urgencies, in ascending order.
const (
	Idle Urgency = iota // nothing was queued
	Late                // within the delay
	Soon                // at the next round
	Now                 // a request waits
)

// Init makes q the queues of the keys in counters, of which each hit is written within delay, in nanoseconds. It is
// called once, before any other method.
func (q *Queues) Init(counters *counter.Shard, delay int64) { q.counters, q.delay = counters, delay }

// Reset empties the queues. The counters must be empty, too.
func (q *Queues) Reset() {
	q.soon, q.late = counter.Queue[counter.Key]{}, counter.Queue[lateKey]{}
}

// Hits describes hits that were charged or merged.
type Hits struct {
	Now  int64
	N    uint64
	Left uint32 // of the limit, after them
	// Reserve reports whether records reserve hits ahead (durability: strict), so that few requests wait for one.
	Reserve bool
	// Await reports whether the caller has to wait until the journal has covered the hits.
	Await bool
}

// Track adds h, hits of e by rule r, to its Unwritten, and queues its key if necessary. It returns nil if there is no
// room for the Unwritten; then the key is queued all the same. Every key with an Unwritten is in the queue for later.
func (q *Queues) Track(e *counter.Owned, r limit.Rule, h *Hits) (u *counter.Unwritten, urgency Urgency) {
	u = q.counters.Unwritten(e)
	if u == nil {
		if u = q.counters.AddUnwritten(e); u == nil {
			return nil, q.pushUntracked(e)
		}
		q.counters.SetVolatile(e, false) // the rule may have been durability: memory
		q.late.Push(lateKey{e.Key(), h.Now + q.delay})
		urgency = Late
	}
	if h.Await || u.Awaited() {
		return u, max(urgency, q.trackAwaited(e, u, r, h))
	}
	if u.Add(h.N); h.N == 0 {
		u.SetChanged()
	}
	if u.Charged() >= max(1, r.Unreplicated()/2) && !u.Soon() {
		q.pushSoon(e, u)
		urgency = Soon
	}
	return u, urgency
}

// trackAwaited is Track for a counter with hits for which requests wait.
func (q *Queues) trackAwaited(e *counter.Owned, u *counter.Unwritten, r limit.Rule, h *Hits) Urgency {
	if q.counters.TrackAwaited(e, u, r, h.N); h.N == 0 {
		u.SetChanged()
	}
	if h.Reserve {
		u.SetReserves()
	}
	switch half := max(1, r.Unreplicated()/2); {
	case h.Await && u.Owed() > 0:
		if !u.Soon() {
			q.pushSoon(e, u)
		}
		return Now
	case u.Soon():
		return Idle
	case u.Reserves() && counter.Windowed(r) &&
		limit.SaturatingAdd(u.Charged(), min(half, uint64(h.Left))) > u.Covered(), u.Owed() >= half:
		// More than half of what was reserved is used, or half of U is not covered.
		q.pushSoon(e, u)
		return Soon
	}
	return Idle
}

func (q *Queues) pushSoon(e *counter.Owned, u *counter.Unwritten) {
	u.SetSoon()
	q.soon.Push(e.Key())
}

// pushUntracked queues the key of e, for whose Unwritten there is no room.
func (q *Queues) pushUntracked(e *counter.Owned) Urgency {
	if q.soon.Len() < maxUntracked {
		q.soon.Push(e.Key())
	} else {
		q.missed = true
	}
	return Soon
}

// Mark names a counter with an Unwritten, and how many of its hits a record covers. The zero Mark names none.
type Mark struct {
	Key   counter.Key
	seq   uint32
	cover uint64 // 0: no request waits for the record
}

// Awaited reports whether Confirm has to be called when the record is durable.
func (it *Mark) Awaited() bool { return it.cover > 0 }

// Covers reports whether a record of the item covers the first hits of the counter.Unwritten with number seq, or shows
// that they need no record any more, because that Unwritten was replaced.
func (it *Mark) Covers(seq uint32, hits uint64) bool { return it.seq != seq || hits <= it.cover }

// Next removes the first key that is due at now and returns its counter, or nil if that is gone or needs no record. more
// is false if no key is due.
func (q *Queues) Next(now int64) (e *counter.Owned, more bool) {
	switch {
	case q.soon.Len() > 0:
		return q.counters.Find(q.soon.Pop()), true
	case q.late.Len() > 0 && q.late.First().dueAt <= now:
		return q.nextLate(now), true
	}
	return nil, false
}

// nextLate removes the first key that is to be written later. It returns its counter if that has changed since its last
// record, and queues the key again as long as its Unwritten is needed.
func (q *Queues) nextLate(now int64) *counter.Owned {
	key := q.late.Pop().key
	e := q.counters.Find(key)
	if e == nil {
		return nil
	}
	u := q.counters.Unwritten(e)
	if u == nil {
		return nil
	}
	if !u.IsDue() && u.Covered() == 0 {
		q.counters.DropUnwritten(e)
		return nil
	}
	q.late.Push(lateKey{key, now + q.delay})
	if !u.IsDue() {
		return nil // what its records have reserved is kept
	}
	return e
}

// Pending reports whether a key is queued.
func (q *Queues) Pending() bool { return q.soon.Len()+q.late.Len() > 0 }

// Recorded processes that a record of e is about to be written, which reserves ahead hits. It returns the Mark to pass to
// Confirm once the record is durable, and how many hits it is the first record to contain.
func (q *Queues) Recorded(e *counter.Owned, ahead uint64) (it Mark, owed uint64) {
	u := q.counters.Unwritten(e)
	if u == nil {
		return it, 0
	}
	if owed = u.Owed(); u.Awaited() {
		it, owed = Mark{e.Key(), u.Seq(), limit.SaturatingAdd(u.Charged(), ahead)}, 0 // owed until Confirm
	}
	u.Recorded()
	return it, owed
}

// Ahead returns how many hits a record of e, which counts used hits by rule r, has to reserve ahead.
func (q *Queues) Ahead(e *counter.Owned, r limit.Rule, used uint64) uint64 {
	u := q.counters.Unwritten(e)
	if u == nil || !u.Reserves() || !counter.Windowed(r) || used >= uint64(r.Limit) {
		return 0
	}
	return min(r.Unreplicated(), uint64(r.Limit)-used)
}

// Missed reports whether there was no room to queue a key, so that only a complete generation contains its hits, and
// forgets it.
func (q *Queues) Missed() (missed bool) {
	missed, q.missed = q.missed, false
	return missed
}

// Confirm processes that the record of it is durable. It reports whether the counter's Unwritten is the one of it, or
// there is none any more.
func (q *Queues) Confirm(it *Mark) bool {
	e := q.counters.Find(it.Key)
	if e == nil {
		return true
	}
	u := q.counters.Unwritten(e)
	if u == nil || u.Seq() != it.seq {
		return u == nil
	}
	u.Cover(it.cover)
	return true
}
