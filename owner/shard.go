package owner

import (
	"math"
	"sync"

	"github.com/keyward/keyward/limit"
)

// kind is what a table counts.
type kind uint8

const (
	owned  kind = iota // charges with the whole limit, by their key's owner; refunded is what was given back
	shared             // charges under SHARE; refunded is the admitted part of them
	opened             // charges under fail_open; refunded is the admitted part of them
	quoted             // what owners said was left (limit) and when (refunded); charged is what was spent of it since
	denied             // keys that are over their limit; charged is what they stood at, at least
	kinds
)

const (
	shardBits = 6 // a mask of shards fits a uint64
	shards    = 1 << shardBits
	// stepBack is the largest difference between two readings of one clock that is taken for concurrency or slewing:
	// a shard then stays at the later reading, so that no hit is counted in a window that was already closed.
	stepBack = 1e9
)

// shard is a part of all tables, with its own lock. Everything in it is guarded by mu. No lock is taken under mu but
// other shards' in ascending order, and nothing is waited for.
type shard struct {
	mu       sync.Mutex
	now      int64
	view     *view
	tables   [kinds]table
	sketches []sketch
	counts   counts
	peaks    [peaks]peak
	_        [128]byte // keeps neighbours' mutexes off this cache line
}

// clock is now, never before what the shard has seen, save for a real step back.
func (s *shard) clock(now int64) int64 {
	if back := s.now - now; back > 0 && back <= stepBack {
		return s.now
	}
	s.now = now
	return now
}

// hit is one question on its way through a shard.
type hit struct {
	*Question
	now  int64
	hash uint64
	kind kind
	rule limit.Rule // the question's, with the limit that its authority allows
	// extra are hits that count against the limit and stand elsewhere.
	extra uint64
}

// charges says that h adds to its counter.
func (h *hit) charges() bool { return h.Op == Take && h.Hits > 0 }

// count answers h from entry e of its table, nil if there is none, or from the sketch when the key has no place there,
// and charges as h.Op says. It returns the entry charged, and whether the sketch answered.
func (s *shard) count(h *hit, e *entry, d *limit.Decision) (to *entry, overflow bool) {
	if e == nil && h.charges() {
		if e = s.insert(h); e == nil {
			s.countInSketch(h, d)
			return nil, true
		}
	}
	if e == nil || !h.charges() && e.end <= h.now {
		return nil, s.countNothing(h, d)
	}
	st := h.rule.TallyAt(e.state(h.rule), h.now)
	if h.extra == 0 {
		st = h.answer(st, d)
	} else {
		sum := st
		sum.Charged = saturatingAdd(st.Charged, h.extra)
		sum = h.answer(sum, d)
		if st.Refunded = min(sum.Refunded, st.Charged); h.charges() {
			st.Charged = saturatingAdd(st.Charged, h.Hits)
		}
	}
	e.end, e.charged, e.refunded = h.rule.End(st.Window), st.Charged, st.Refunded
	return e, false
}

// countNothing answers h for a key that has no entry, and charges nothing.
func (s *shard) countNothing(h *hit, d *limit.Decision) (overflow bool) {
	w := h.rule.Index(h.now)
	est := s.sketchFor(h.rule, h.now, false).estimate(sketchHash(h.hash, h.kind, w))
	st := limit.Tally{Window: w, Charged: saturatingAdd(est, h.extra)}
	if h.Op == Refund && est > 0 {
		s.counts.refundsDropped++
		*d = h.rule.PeekTally(st, h.now, 0)
		d.Over = false
		return true
	}
	h.answer(st, d)
	return est > 0
}

// answer decides h on state st.
func (h *hit) answer(st limit.Tally, d *limit.Decision) limit.Tally {
	switch h.Op {
	case Take:
		st, *d = h.rule.TakeTally(st, h.now, h.Hits)
	case Refund:
		st, *d = h.rule.RefundTally(st, h.now, h.Hits)
	case Look:
		*d = h.rule.PeekTally(st, h.now, 0)
		d.Before = d.After - h.Hits
		st = h.rule.TallyAt(st, h.now)
	default:
		*d = h.rule.PeekTally(st, h.now, h.Hits)
		st = h.rule.TallyAt(st, h.now)
	}
	return st
}

// insert makes an entry that starts with what the sketch may have counted for it in this window.
func (s *shard) insert(h *hit) *entry {
	t := &s.tables[h.kind]
	e := t.insert(h.now, h.hash, h.Key, uint16(h.Domain%domainSlots))
	if e == nil {
		return nil
	}
	w := h.rule.Index(h.now)
	e.owner, e.end, e.limit = h.Owner, h.rule.End(w), h.rule.Limit
	if k := s.sketchFor(h.rule, h.now, false); k != nil {
		e.charged = k.estimate(sketchHash(h.hash, h.kind, w))
	}
	return e
}

func (s *shard) countInSketch(h *hit, d *limit.Decision) {
	k := s.sketchFor(h.rule, h.now, true)
	w := h.rule.Index(h.now)
	at := sketchHash(h.hash, h.kind, w)
	est := k.estimate(at)
	s.countOverflow(est)
	h.answer(limit.Tally{Window: w, Charged: saturatingAdd(est, h.extra)}, d)
	k.add(at, h.Hits)
}

// countOverflow counts a charge to the sketch of a key with estimate est.
func (s *shard) countOverflow(est uint64) {
	if est == 0 {
		s.counts.overflowKeys++
	}
	s.counts.overflowCharges++
}

func saturatingAdd(a, b uint64) uint64 {
	if s := a + b; s >= a {
		return s
	}
	return math.MaxUint64
}
