package owner

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/owner/internal/writeback"
)

const (
	// journalRound is how long hits are collected before they are written, if no request waits for that.
	journalRound = 100 * time.Millisecond
	// lateRound is the time between two looks for counters that have few unwritten hits and have had them for long.
	lateRound = time.Second
	// maxLateness is the longest time between a hit and its record.
	maxLateness = time.Minute

	journalKeys = 256 // most counters of one JournalBatch
)

// journaling is the state of the member's journal that the Node needs.
type journaling struct {
	up      atomic.Bool   // records become durable, so that requests may wait for them
	urgency atomic.Uint32 // the highest writeback.Urgency of the queued keys
	next    int           // the shard at which Due continues
	missed  bool          // only a complete generation contains some hits
	// inFlight is the number of hits in records that are not durable, or were not when the journal failed.
	inFlight atomic.Uint64

	restarted atomic.Int64 // when all members had restarted; 0: they have not
	lost      atomic.Int64 // the journals that were not loaded then
}

// raise makes the urgency at least u.
func (j *journaling) raise(u writeback.Urgency) {
	for was := j.urgency.Load(); was < uint32(u); was = j.urgency.Load() {
		if j.urgency.CompareAndSwap(was, uint32(u)) {
			return
		}
	}
}

// JournalBatch holds what Due and JournalScan return, to be written to the journal as one record. The caller uses it
// again.
type JournalBatch struct {
	Counters []protocol.CounterRecord
	// Ahead is, for each of Counters, how many hits of its newest window, by this boot, count as charged when the record
	// is loaded, because this member may admit them without another record.
	Ahead []uint32

	items []writeback.Mark // of all records since Written
	hits  uint64           // that these records are the first to contain
	bytes int
}

// Reset removes the counters, so that the next record can be collected. What Written has to confirm stays.
func (b *JournalBatch) Reset() { b.Counters, b.Ahead, b.bytes = b.Counters[:0], b.Ahead[:0], 0 }

// Forget drops what Written has to confirm, because the journal has failed.
func (b *JournalBatch) Forget() { b.items, b.hits = b.items[:0], 0 }

func (b *JournalBatch) full() bool {
	return len(b.Counters) >= journalKeys || b.bytes >= protocol.MaxBytes
}

// addToBatch adds e, a counter of shard s, to b.
func (n *Node) addToBatch(s *shard, e *counter.Owned, b *JournalBatch) {
	b.Counters = extendCounters(b.Counters)
	c := &b.Counters[len(b.Counters)-1]
	s.counters.Export(e, c)
	ahead := uint64(0)
	if s.view.Ownership(e.RingPos(), e.Epoch()).State == handoff.OwnedHere {
		ahead = s.writes.Ahead(e, c.Rule, c.Rule.Used(&c.State, s.now))
	}
	it, owed := s.writes.Recorded(e, ahead)
	if it.Awaited() {
		b.items = append(b.items, it)
	}
	b.hits += owed
	n.journal.inFlight.Add(owed)
	b.Ahead = append(b.Ahead, uint32(ahead))
	b.bytes += c.Size()
}

// journals reports whether counters of req's rule are in the journal.
func (n *Node) journals(req *Request) bool {
	w := n.options.DataWindow
	if w <= 0 || req.Volatile || req.Mechanism == policy.Approximate {
		return false
	}
	return req.Rule.Window >= w && !req.Rule.Algorithm.Bucket() || req.Rule.Algorithm.Bucket() && req.Rule.Span() >= w
}

// journalsEntry reports whether e is in the journal.
func (n *Node) journalsEntry(s *shard, e *counter.Owned) bool {
	w := n.options.DataWindow
	return w > 0 && s.counters.Rule(e).Span() >= w && !s.counters.Volatile(e)
}

// trackUnwritten adds h, hits of e by rule r, to what the journal has to write.
func (n *Node) trackUnwritten(s *shard, e *counter.Owned, r limit.Rule, h *writeback.Hits) *counter.Unwritten {
	u, urgency := s.writes.Track(e, r, h)
	if urgency != writeback.Idle {
		n.journal.raise(urgency)
	}
	return u
}

// JournalIn returns within which time the driver has to write what Due returns: 0 is at once, because a request waits,
// and math.MaxInt64 is never, because nothing is due. Like FlushIn, it takes no lock, and decisions may shorten it.
func (n *Node) JournalIn() time.Duration {
	switch writeback.Urgency(n.journal.urgency.Load()) {
	case writeback.Now:
		return 0
	case writeback.Soon:
		return journalRound
	case writeback.Late:
		return min(lateRound, n.lateness()/4)
	}
	return math.MaxInt64
}

// lateness returns the longest time between a hit and its record.
func (n *Node) lateness() time.Duration { return min(n.options.DataWindow/100, maxLateness) }

// Due adds counters that the journal has to write now to b, as many as one record holds. more reports whether there are
// others. Due is called by one goroutine, which calls BeginRound before.
func (n *Node) Due(now int64, b *JournalBatch) (more bool) {
	for ; n.journal.next < counter.Shards; n.journal.next++ {
		s := &n.shards[n.journal.next]
		s.mu.Lock()
		more = n.dueOf(s, s.clock(now), b)
		s.mu.Unlock()
		if more {
			return true
		}
	}
	return false
}

// BeginRound begins a round of calls of Due. It returns true if only a complete generation contains all hits, because
// there was no room to queue them.
func (n *Node) BeginRound() (missed bool) {
	j := &n.journal
	j.urgency.Store(uint32(writeback.Idle))
	j.next, missed, j.missed = 0, j.missed, false
	return missed
}

// dueOf adds the due counters of shard s to b. It returns true if b is full.
func (n *Node) dueOf(s *shard, now int64, b *JournalBatch) (full bool) {
	for !b.full() {
		e, more := s.writes.Next(now)
		if !more {
			n.journal.missed = s.writes.Missed() || n.journal.missed
			if s.writes.Pending() {
				n.journal.raise(writeback.Late)
			}
			return false
		}
		if e != nil && !e.Expired(now) {
			n.addToBatch(s, e, b)
		}
	}
	return true
}

// JournalCursor is a position in a walk over all counters of the journal. The zero value is the beginning.
type JournalCursor struct {
	shard  int
	cursor counter.Cursor // in this shard
}

// Walk adds the next counters of the journal to b, as many as one record holds, so that all calls from the zero Cursor on
// return every counter that is there from the first to the last call. more is false when there are no others. A call
// visits a limited number of counters, so b may be empty.
func (n *Node) Walk(now int64, c *JournalCursor, b *JournalBatch) (more bool) {
	for slots := 0; slots < chunkSlots && c.shard < counter.Shards && !b.full(); slots += lockSlots {
		s := &n.shards[c.shard]
		s.mu.Lock()
		at := s.clock(now)
		end := s.counters.Owned.Scan(&c.cursor, lockSlots, at+holdScan, func(e *counter.Owned) bool {
			if !e.Expired(at) && n.journalsEntry(s, e) {
				n.addToBatch(s, e, b)
			}
			return !b.full()
		})
		s.mu.Unlock()
		if end {
			c.shard, c.cursor = c.shard+1, counter.Cursor{}
		}
	}
	return c.shard < counter.Shards
}

// Written processes that all records that were collected in b since the last call are durable.
func (n *Node) Written(now int64, b *JournalBatch) (fx Ready) {
	for i := range b.items {
		it := &b.items[i]
		s, _ := n.shard(it.Key)
		s.mu.Lock()
		if s.writes.Confirm(it) {
			n.resolveWritten(s, it, &fx)
		}
		s.mu.Unlock()
	}
	n.journal.inFlight.Add(-b.hits)
	b.items, b.hits = b.items[:0], 0
	n.finish(&fx)
	return fx
}

// AllWritten records that a complete generation is durable, which contains also what a failed journal may have lost. It is
// called after Written.
func (n *Node) AllWritten() { n.journal.inFlight.Store(0) }

// SetJournal records whether the journal makes records durable now. While it does not, no request waits for it.
func (n *Node) SetJournal(up bool) (fx Ready) {
	if n.journal.up.Store(up); !up {
		for i := range n.shards {
			s := &n.shards[i]
			s.mu.Lock()
			n.releaseWritten(s, &fx)
			s.mu.Unlock()
		}
	}
	n.finish(&fx)
	return fx
}

// Load merges counters that a journal contains. Before the member has a ring, they become replicas, which the first
// handoff sends to the keys' owners; later they are sent to them like charges of a local share. It returns the number of
// counters that found no room, so that a sketch counts them.
func (n *Node) Load(now int64, cs []protocol.CounterRecord) (dropped int) {
	n.serial.Lock()
	defer n.serial.Unlock()
	before := n.serial.counts
	for ; len(cs) > 0; cs = cs[min(len(cs), protocol.MaxCounters):] {
		part := cs[:min(len(cs), protocol.MaxCounters)]
		n.merge(now, part)
		if n.serial.view.Ring().Len() > 0 {
			n.deliver(part)
		}
	}
	dropped = int(n.serial.counts.dropped - before.dropped)
	return dropped
}

// Restarted records that no member was running at now, so that only journals have the counters of before, and how many
// journals of the last ring no member has loaded.
func (n *Node) Restarted(now int64, missing int) {
	n.journal.lost.Store(int64(missing))
	n.journal.restarted.Store(now)
}

// restartExcess returns how many hits of req's key journals may lack after a restart of all members. Owner and successor
// of a key each write a journal.
func (n *Node) restartExcess(req *Request) uint64 {
	u := req.Rule.Unreplicated()
	switch n.journal.lost.Load() {
	case 0:
		return tolerance(req)
	case 1:
		return limit.SaturatingAdd(u, tolerance(req))
	}
	return uint64(req.Rule.Depth())
}

// deliver queues counters that other members own by the ring to be sent to them.
func (n *Node) deliver(cs []protocol.CounterRecord) {
	for i := range cs {
		s, hash := n.shard(cs[i].Key)
		s.mu.Lock()
		if e := s.counters.Owned.Find(hash, cs[i].Key); e != nil {
			n.trackUnreplicated(s, e, s.counters.Rule(e), 0)
		}
		s.mu.Unlock()
	}
}

// Counters returns the number of counters that this member stores, its own and replicas.
func (n *Node) Counters() int { return n.counters.Len(counter.TableOwned) + n.counters.Copies() }
