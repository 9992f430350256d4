package owner

import (
	"math/bits"
	"sync/atomic"

	"github.com/keyward/keyward/ring"
)

// Node counts the keys one member owns and answers for the rest when it must. Take, TakeAll, Serve, Degrade and
// Observe may run concurrently; SetRing, Tick and Facts must not run concurrently with each other.
type Node struct {
	options Options
	ticked  atomic.Int64 // time of the last Tick or SetRing
	view    *view        // of SetRing; shards hold it too
	ledgers [kinds]ledger
	domains [domainSlots]atomic.Int64
	shards  [shards]shard
}

// New is a Node that has no ring yet: until SetRing it answers every question from its share.
func New(o Options) *Node {
	n := &Node{options: o.withDefaults()}
	n.view = &view{ring: ring.New(nil), self: -1}
	for k := range kinds {
		n.ledgers[k].max = int64(max(1, n.options.MaxKeys/2))
	}
	n.ledgers[owned] = ledger{max: int64(n.options.MaxKeys), quota: int64(n.options.DomainQuota), domains: &n.domains}
	n.ledgers[denied].max = int64(n.options.DenyCache)
	for i := range n.shards {
		s := &n.shards[i]
		s.view = n.view
		for k := range s.tables {
			s.tables[k].seed, s.tables[k].ledger = o.Seed, &n.ledgers[k]
		}
	}
	return n
}

func (n *Node) shard(k Key) (*shard, uint64) {
	h := hash(n.options.Seed, k)
	return &n.shards[h>>(64-shardBits)], h
}

// Take answers one question: it decides what this member owns and names the owner of the rest.
func (n *Node) Take(now int64, q *Question) Answer {
	var a Answer
	s, h := n.shard(q.Key)
	s.mu.Lock()
	if !n.cachedLocked(s, h, now, q, &a) {
		n.takeLocked(s, h, now, q, &a)
	}
	s.mu.Unlock()
	return a
}

// TakeAll answers all questions of one request, in order; two on one key are two hits in a row. What others own gets
// Kind Ask.
//
// With stop, one question that would go over its limit keeps the others from being charged: then only those that would
// go over are charged, and the others answered as by Look. That is exact when this member decides all keys. If it does
// not, nothing is charged and every answer is Ask, with this member itself for what it owns: the caller asks all owners
// with Peek, rewrites the questions with Stop, and asks again.
func (n *Node) TakeAll(now int64, stop bool, qs []Question, as []Answer) {
	as = as[:len(qs)]
	cached := n.cachedAll(now, qs, as)
	switch {
	case stop && cached:
		n.lookAll(now, qs, as)
	case stop:
		n.stopAll(now, false, qs, as)
	default:
		for i := range qs {
			if as[i].Authority != Cached {
				n.take(now, &qs[i], &as[i])
			}
		}
	}
}

// Serve answers a group of questions that another member asks this one as the owner. What this member does not decide
// with full authority gets Kind Ask: not owned, or not trusted to be owned. With stop, one such question makes all Ask.
func (n *Node) Serve(now int64, _ ring.ID, stop bool, qs []Question, as []Answer) {
	as = as[:len(qs)]
	if stop {
		n.stopAll(now, true, qs, as)
		return
	}
	for i := range qs {
		q, a := &qs[i], &as[i]
		*a = Answer{}
		s, h := n.shard(q.Key)
		s.mu.Lock()
		if n.fenced(now, s.view) {
			a.Kind = Ask
		} else {
			n.takeLocked(s, h, now, q, a)
		}
		s.mu.Unlock()
	}
}

func (n *Node) take(now int64, q *Question, a *Answer) {
	*a = Answer{}
	s, h := n.shard(q.Key)
	s.mu.Lock()
	n.takeLocked(s, h, now, q, a)
	s.mu.Unlock()
}

// fenced says that this member may not use whole limits now: it has no ring, has not joined, or was stopped for so long
// that others may have taken over.
func (n *Node) fenced(now int64, v *view) bool {
	return !v.Joined || v.ring.Len() == 0 || now-n.ticked.Load() > int64(n.options.Fence) && !v.alone()
}

// takeLocked answers q, whose shard is s, locked, and whose hash is h.
func (n *Node) takeLocked(s *shard, h uint64, now int64, q *Question, a *Answer) {
	if n.fenced(now, s.view) {
		n.shareLocked(s, h, now, q, a)
		return
	}
	e := s.tables[owned].find(h, q.Key)
	if e == nil || e.epoch != s.view.epoch || e.owner != q.Owner {
		i := s.view.ring.Owner(q.Owner)
		if i != s.view.self {
			a.Kind, a.Member = Ask, s.view.ring.At(i).ID
			s.counts.asked++
			return
		}
	}
	n.decideLocked(s, h, now, q, e, a)
}

// decideLocked answers q with the whole limit; e is its entry, or nil.
func (n *Node) decideLocked(s *shard, h uint64, now int64, q *Question, e *entry, a *Answer) {
	ht := hit{Question: q, now: s.clock(now), hash: h, kind: owned, rule: q.Rule}
	if s.tables[shared].n > 0 || len(s.sketches) > 0 {
		ht.extra = s.spent(&ht, shared)
	}
	var end int64
	known := e != nil && e.epoch == s.view.epoch && e.limit >= q.Rule.Limit
	if known {
		end = e.end
	}
	e, overflow := s.count(&ht, e, &a.Decision)
	switch {
	case !ht.charges():
	case overflow:
		n.noteMoved(s, &ht, q.Rule.End(q.Rule.Index(ht.now)))
	case !known || e.end != end:
		e.owner, e.epoch, e.limit = q.Owner, s.view.epoch, max(e.limit, q.Rule.Limit)
		n.noteMoved(s, &ht, e.end)
	}
	a.Kind, a.Path, a.Authority = Decided, Local, Full
	if overflow {
		a.Authority = Overflow
	}
	s.counts.decided[a.Authority]++
	n.remember(s, &ht, a)
}

// noteMoved records that hits were admitted here in a window in which another member may have admitted some too.
func (n *Node) noteMoved(s *shard, h *hit, end int64) {
	if s.view.touched(h.Owner, end-h.rule.End(0), int64(n.options.Settle)) {
		s.peaks[movedPeak].push(h.now, end, uint64(h.rule.Limit))
	}
}

// SetRing makes r the ring and st the standing from now on. When it returns, no question is answered by the old ones.
func (n *Node) SetRing(now int64, r *ring.Ring, st Standing) {
	if r == nil {
		r = ring.New(nil)
	}
	n.ticked.Store(now)
	n.view = n.view.next(now, r, n.options.Self, st)
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		s.view = n.view
		s.mu.Unlock()
	}
}

// Tick lets time pass: it renews this member's trust in its ownership and drops a part of what has expired. Call it
// about once a second.
func (n *Node) Tick(now int64) {
	n.ticked.Store(now)
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		at := s.clock(now)
		for k := range s.tables {
			t := &s.tables[k]
			t.sweep(at, s.view.epoch, max(256, len(t.slots)/8))
			t.shrink()
		}
		s.dropSketches(at)
		s.mu.Unlock()
	}
}

// involved is the shards of qs as a mask.
func (n *Node) involved(qs []Question) (mask uint64) {
	for i := range qs {
		_, h := n.shard(qs[i].Key)
		mask |= 1 << (h >> (64 - shardBits))
	}
	return mask
}

// lockAll locks the shards of mask in ascending order, the one order in which several are ever held.
func (n *Node) lockAll(mask uint64) {
	for m := mask; m != 0; m &= m - 1 {
		n.shards[bits.TrailingZeros64(m)].mu.Lock()
	}
}

func (n *Node) unlockAll(mask uint64) {
	for m := mask; m != 0; m &= m - 1 {
		n.shards[bits.TrailingZeros64(m)].mu.Unlock()
	}
}
