package owner

import (
	"time"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
)

// minDenyNotice is the shortest refusal that is told to all holders; shorter ones learn only those who ask.
const minDenyNotice = 100 * time.Millisecond

// limitLevel is how much of a limit is used up.
type limitLevel uint8

const (
	levelAmple     limitLevel = iota
	levelScarce               // little is left: holders give back, and ask the owner
	levelExhausted            // nothing is: holders refuse
)

// updateHolders tells holders of a key what a decision on it means for them.
func (n *Node) updateHolders(s *shard, h *shardOp, e *counter.Owned, a *Result) {
	b := s.lent[h.Key]
	if b == nil || e == nil {
		return
	}
	a.Hot = a.Hot || b.always
	if h.Op == Take || h.Op == Refund {
		n.updateLevel(s, b, h.Key, h.Request.Rule, s.windowOf(e, h.rule, h.now), a.After, h.Op == Refund)
	}
}

// updateLevel looks whether holders of key k are to be told something, now that count stands against rule r.
func (n *Node) updateLevel(s *shard, b *lentKey, k Key, r limit.Rule, window int64, count uint64, back bool) {
	if r.Algorithm.Bucket() {
		return
	}
	if window != b.window {
		b.window, b.tide = window, levelAmple
	}
	depth := uint64(r.Depth())
	t := levelAmple
	switch left := saturatingSub(depth, count); {
	case left == 0:
		t = levelExhausted
	case left <= depth/50:
		t = levelScarce
	}
	b.lift = b.lift || t < b.tide && b.tide == levelExhausted && (back || r.Depth() > b.rule.Depth())
	if (t > b.tide || b.lift) && !b.queued {
		b.queued = true
		s.pendingNotices = append(s.pendingNotices, k)
		n.requestFlush(true)
	}
	b.tide, b.rule = t, r
}

// sendNotices tells holders what ebb has found.
func (n *Node) sendNotices(s *shard, now int64, fx *Effects) {
	at := s.clock(now)
	for _, k := range s.pendingNotices {
		b := s.lent[k]
		if b == nil {
			continue
		}
		notice := lease.Notice{Window: b.window, Limit: b.rule.Depth(), Kind: lease.Recall}
		switch {
		case b.tide == levelExhausted:
			_, h := n.shard(k)
			notice.Kind, notice.Left = lease.Deny, s.denialTime(s.counters.Owned.Find(h, k), b.rule, at)
		case b.lift:
			notice.Kind = lease.Lift
		}
		b.queued, b.lift = false, false
		if notice.Kind != lease.Deny || notice.Left >= minDenyNotice {
			s.notifyHolders(at, k, b, &notice, fx)
		}
	}
	s.pendingNotices = s.pendingNotices[:0]
}

// notifyHolders sends a notice to all holders of key k.
func (s *shard) notifyHolders(now int64, k Key, b *lentKey, notice *lease.Notice, fx *Effects) {
	notice.Key = k
	for _, l := range b.Holders(now) {
		m := leaseTo(&fx.Leases, l.Holder, lease.Notify)
		m.Notices = append(m.Notices, *notice)
	}
}
