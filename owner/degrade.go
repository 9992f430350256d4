package owner

import (
	"math"

	"github.com/keyward/keyward/limit"
)

// Degrade answers q by its rule's degraded policy, for when the owner cannot be reached in time. Refunds are dropped
// and counted: only an owner may un-count hits.
//
// Before and After of such a Decision are moved by what the policy withholds from this member, so that After exceeds
// the rule's limit exactly when Over, and Remaining is what this member may still admit.
func (n *Node) Degrade(now int64, q *Question) Answer {
	var a Answer
	s, h := n.shard(q.Key)
	s.mu.Lock()
	switch q.Degraded {
	case FailOpen:
		n.openLocked(s, h, now, q, &a)
	case FailClosed:
		n.closedLocked(s, h, now, q, &a)
	default:
		n.shareLocked(s, h, now, q, &a)
	}
	s.mu.Unlock()
	return a
}

// shareLocked answers from this member's share of the limit. Its own charges as the owner count against the share, so
// a former owner that knows the limit to be spent admits nothing.
func (n *Node) shareLocked(s *shard, hash uint64, now int64, q *Question, a *Answer) {
	h := hit{Question: q, now: s.clock(now), hash: hash, kind: shared, rule: q.Rule}
	h.rule.Limit = s.view.share(q.Rule.Limit, q.Owner)
	h.extra = s.spent(&h, owned)
	a.Authority = Share
	s.spend(&h, a)
}

// openLocked admits up to the rule's local cap a window, whatever others admit.
func (n *Node) openLocked(s *shard, hash uint64, now int64, q *Question, a *Answer) {
	h := hit{Question: q, now: s.clock(now), hash: hash, kind: opened, rule: q.Rule}
	if q.LocalCap > 0 {
		h.rule.Limit = q.LocalCap
	}
	a.Authority = Open
	s.spend(&h, a)
}

// closedLocked admits this member's share of what the owner last said was left in this window, then refuses.
func (n *Node) closedLocked(s *shard, hash uint64, now int64, q *Question, a *Answer) {
	h := hit{Question: q, now: s.clock(now), hash: hash, kind: quoted, rule: q.Rule}
	e := s.tables[quoted].find(hash, q.Key)
	a.Authority = Closed
	if e == nil || e.end <= h.now || h.now-int64(e.refunded) > int64(n.options.SnapshotAge) {
		s.refuse(&h, a)
		return
	}
	h.rule.Limit = s.view.share(e.limit, q.Owner)
	s.answerPart(&h, e.charged, a)
	if h.charges() && !a.Over {
		e.charged = saturatingAdd(e.charged, h.Hits)
		s.peaks[closedPeak].push(h.now, e.end, e.charged)
	}
}

// spent is the hits of h's key in this window that stand in another table: all of those charged as the owner, the
// admitted part of those charged under SHARE.
func (s *shard) spent(h *hit, in kind) uint64 {
	if e := s.tables[in].find(h.hash, h.Key); e != nil {
		switch {
		case e.end <= h.now:
			return 0
		case in == owned:
			return e.count()
		}
		return e.refunded
	}
	if len(s.sketches) == 0 {
		return 0
	}
	return s.sketchFor(h.rule, h.now, false).estimate(sketchHash(h.hash, in, h.rule.Index(h.now)))
}

// spend answers h from a table whose entries remember what was charged, and how much of it was admitted.
func (s *shard) spend(h *hit, a *Answer) {
	e := s.tables[h.kind].find(h.hash, h.Key)
	if e != nil && e.end <= h.now {
		e.charged, e.refunded, e.end = 0, 0, h.rule.End(h.rule.Index(h.now))
	}
	if e == nil && h.charges() {
		if e = s.insert(h); e != nil {
			e.refunded = e.charged // what the sketch counted may all have been admitted
		}
	}
	if e != nil {
		s.answerPart(h, e.charged, a)
		if h.charges() {
			e.charged = saturatingAdd(e.charged, h.Hits)
			if !a.Over {
				e.refunded = saturatingAdd(e.refunded, h.Hits)
				s.peaks[peakOf(h.kind)].push(h.now, e.end, e.refunded)
			}
		}
		return
	}
	w := h.rule.Index(h.now)
	at := sketchHash(h.hash, h.kind, w)
	k := s.sketchFor(h.rule, h.now, h.charges())
	est := k.estimate(at)
	s.answerPart(h, est, a)
	if h.charges() {
		k.add(at, h.Hits)
		s.countOverflow(est)
		s.peaks[peakOf(h.kind)].push(h.now, h.rule.End(w), uint64(h.rule.Limit))
	}
}

// answerPart answers h against a part of its limit, of which charged is used up in h's table.
func (s *shard) answerPart(h *hit, charged uint64, a *Answer) {
	st := limit.Tally{Window: h.rule.Index(h.now), Charged: saturatingAdd(charged, h.extra)}
	d := &a.Decision
	if h.Op == Refund {
		s.counts.refundsDropped++
		*d = h.rule.PeekTally(st, h.now, 0)
		d.Over = false
	} else {
		h.answer(st, d)
	}
	whole := h.Question.Rule.Limit
	d.After = shift(d.After, h.rule.Limit, whole)
	if d.Before = shift(d.Before, h.rule.Limit, whole); h.Op == Look {
		d.Before = d.After - h.Hits
	}
	s.decidedPart(h, a)
}

// shift moves count x of a part of a limit to where it would stand in the whole: part goes to whole.
func shift(x uint64, part, whole uint32) uint64 {
	if part <= whole {
		return saturatingAdd(x, uint64(whole-part))
	}
	if x == math.MaxUint64 {
		return x
	}
	return x - min(x, uint64(part-whole))
}

// refuse answers a question of which nothing is known.
func (s *shard) refuse(h *hit, a *Answer) {
	n := uint64(h.rule.Limit)
	st := limit.Tally{Window: h.rule.Index(h.now), Charged: n}
	a.Decision = h.rule.PeekTally(st, h.now, max(1, h.Hits))
	if h.Op == Refund {
		s.counts.refundsDropped++
		a.Over, a.After = false, a.Before
	}
	s.decidedPart(h, a)
}

func (s *shard) decidedPart(h *hit, a *Answer) {
	a.Kind, a.Path = Decided, Fallback
	s.counts.decided[a.Authority]++
	if h.charges() && !a.Over {
		s.counts.admitted[a.Authority] += h.Hits
	}
}

// Observe learns from what the owner answered q, when another member is the owner: how much is left, for rules that
// fail closed, and that a key is over.
func (n *Node) Observe(now int64, q *Question, a *Answer) {
	if a.Kind != Decided || a.Authority != Full && a.Authority != Part && a.Authority != Overflow {
		return
	}
	if q.Degraded != FailClosed && n.options.DenyCache <= 0 {
		return
	}
	s, hash := n.shard(q.Key)
	s.mu.Lock()
	h := hit{Question: q, now: s.clock(now), hash: hash, rule: q.Rule}
	if q.Degraded == FailClosed {
		h.kind = quoted
		s.observe(&h, a)
	}
	n.remember(s, &h, a)
	s.mu.Unlock()
}

// standing is the count that a leaves behind.
func (h *hit) standing(a *Answer) uint64 {
	if h.Op == Peek {
		return a.Before
	}
	return a.After
}

func (s *shard) observe(h *hit, a *Answer) {
	t := &s.tables[quoted]
	e := t.find(h.hash, h.Key)
	if e == nil {
		if e = t.insert(h.now, h.hash, h.Key, uint16(h.Domain%domainSlots)); e == nil {
			return
		}
	}
	if end := h.rule.End(h.rule.Index(h.now)); e.end != end {
		e.end, e.charged = end, 0
	}
	v := h.standing(a)
	e.limit, e.refunded = h.rule.Limit-uint32(min(v, uint64(h.rule.Limit))), uint64(h.now)
}
