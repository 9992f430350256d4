package owner

import (
	"time"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
)

// tellDeny is the shortest refusal that is told to all holders; shorter ones learn only those who ask.
const tellDeny = 100 * time.Millisecond

// tide is how much of a limit is used up.
type tide uint8

const (
	ample  tide = iota
	scarce      // little is left: holders give back, and ask the owner
	gone        // nothing is: holders refuse
)

// heed tells holders of a key what a decision on it means for them.
func (n *Node) heed(s *shard, h *shardOp, e *entry, a *Result) {
	b := s.books[h.Key]
	if b == nil || e == nil {
		return
	}
	a.Hot = a.Hot || b.always
	if h.Op == Take || h.Op == Refund {
		n.ebb(s, b, h.Key, h.Request.Rule, s.windowOf(e, h.rule, h.now), a.After, h.Op == Refund)
	}
}

// ebb looks whether holders of key k are to be told something, now that count stands against rule r.
func (n *Node) ebb(s *shard, b *book, k Key, r limit.Rule, window int64, count uint64, back bool) {
	if r.Algorithm.Bucket() {
		return
	}
	if window != b.window {
		b.window, b.tide = window, ample
	}
	depth := uint64(r.Depth())
	t := ample
	switch left := saturatingSub(depth, count); {
	case left == 0:
		t = gone
	case left <= depth/50:
		t = scarce
	}
	b.lift = b.lift || t < b.tide && b.tide == gone && (back || r.Depth() > b.rule.Depth())
	if (t > b.tide || b.lift) && !b.queued {
		b.queued = true
		s.told = append(s.told, k)
		n.speak(true)
	}
	b.tide, b.rule = t, r
}

// notify tells holders what ebb has found.
func (n *Node) notify(s *shard, now int64, fx *Effects) {
	at := s.clock(now)
	for _, k := range s.told {
		b := s.books[k]
		if b == nil {
			continue
		}
		notice := lease.Notice{Window: b.window, Limit: b.rule.Depth(), Kind: lease.Recall}
		switch {
		case b.tide == gone:
			_, h := n.shard(k)
			notice.Kind, notice.Left = lease.Deny, s.room(s.tables[ownedTable].find(h, k), b.rule, at)
		case b.lift:
			notice.Kind = lease.Lift
		}
		b.queued, b.lift = false, false
		if notice.Kind != lease.Deny || notice.Left >= tellDeny {
			s.tellHolders(at, k, b, &notice, fx)
		}
	}
	s.told = s.told[:0]
}

// tellHolders sends a notice to all holders of key k.
func (s *shard) tellHolders(now int64, k Key, b *book, notice *lease.Notice, fx *Effects) {
	notice.Key = k
	for _, l := range b.Holders(now) {
		m := leaseTo(&fx.Leases, l.Holder, lease.Notify)
		m.Notices = append(m.Notices, *notice)
	}
}
