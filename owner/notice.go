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
func (n *Node) updateHolders(s *shard, op *shardOp, e *counter.Owned, res *Result) {
	lent := s.lent[op.Key]
	if lent == nil || e == nil {
		return
	}
	res.Hot = res.Hot || lent.always
	if op.Op == Take || op.Op == Refund {
		n.updateLevel(s, lent, op.Key, op.Request.Rule, s.windowOf(e, op.rule, op.now), res.After, op.Op == Refund)
	}
}

// updateLevel looks whether holders of key k are to be told something, now that count stands against rule r.
func (n *Node) updateLevel(s *shard, lent *lentKey, key Key, r limit.Rule, window int64, count uint64, back bool) {
	if r.Algorithm.Bucket() {
		return
	}
	if window != lent.window {
		lent.window, lent.tide = window, levelAmple
	}
	depth := uint64(r.Depth())
	t := levelAmple
	switch left := saturatingSub(depth, count); {
	case left == 0:
		t = levelExhausted
	case left <= depth/50:
		t = levelScarce
	}
	lent.lift = lent.lift || t < lent.tide && lent.tide == levelExhausted && (back || r.Depth() > lent.rule.Depth())
	if (t > lent.tide || lent.lift) && !lent.queued {
		lent.queued = true
		s.pendingNotices = append(s.pendingNotices, key)
		n.requestFlush(true)
	}
	lent.tide, lent.rule = t, r
}

// sendNotices tells holders what ebb has found.
func (n *Node) sendNotices(s *shard, now int64, fx *Effects) {
	at := s.clock(now)
	for _, key := range s.pendingNotices {
		lent := s.lent[key]
		if lent == nil {
			continue
		}
		notice := lease.Notice{Window: lent.window, Limit: lent.rule.Depth(), Kind: lease.Recall}
		switch {
		case lent.tide == levelExhausted:
			_, hash := n.shard(key)
			notice.Kind, notice.Left = lease.Deny, s.denialTime(s.counters.Owned.Find(hash, key), lent.rule, at)
		case lent.lift:
			notice.Kind = lease.Lift
		}
		lent.queued, lent.lift = false, false
		if notice.Kind != lease.Deny || notice.Left >= minDenyNotice {
			s.notifyHolders(at, key, lent, &notice, fx)
		}
	}
	s.pendingNotices = s.pendingNotices[:0]
}

// notifyHolders sends a notice to all holders of key k.
func (s *shard) notifyHolders(now int64, key Key, lent *lentKey, notice *lease.Notice, fx *Effects) {
	notice.Key = key
	for _, l := range lent.Holders(now) {
		m := leaseTo(&fx.Leases, l.Holder, lease.Notify)
		m.Notices = append(m.Notices, *notice)
	}
}
