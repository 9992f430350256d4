package owner

import (
	"time"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
)

// minDenyNotice is the shortest time of refusals that all holders are notified of. For a shorter one, only the holders
// that send a request learn of it.
const minDenyNotice = 100 * time.Millisecond

// limitLevel is how much of a limit is left.
type limitLevel uint8

const (
	levelAmple     limitLevel = iota
	levelScarce               // little is left: holders return their hits and forward requests to the owner
	levelExhausted            // nothing is left: holders refuse
)

// usage is the count of a lent key after an operation.
type usage struct {
	window int64
	count  uint64
	refund bool // the operation was a refund
}

// updateHolders updates the level of op's key after a decision, if parts of its limit are lent.
func (n *Node) updateHolders(s *shard, op *shardOp, e *counter.Owned, res *Result) {
	lent := s.lent[op.Key]
	if lent == nil || e == nil {
		return
	}
	res.Hot = res.Hot || lent.always
	if op.Op == Take || op.Op == Refund {
		u := usage{s.windowOf(e, op.rule, op.now), res.After, op.Op == Refund}
		n.updateLevel(s, lent, op.Request.Rule, u)
	}
}

// updateLevel updates the level of a lent key with rule r, and queues a notice for the holders if they have to act.
func (n *Node) updateLevel(s *shard, lent *lentKey, r limit.Rule, u usage) {
	if r.Algorithm.Bucket() {
		return
	}
	if u.window != lent.window {
		lent.window, lent.level = u.window, levelAmple
	}
	depth := uint64(r.Depth())
	level := levelAmple
	switch left := saturatingSub(depth, u.count); {
	case left == 0:
		level = levelExhausted
	case left <= depth/50:
		level = levelScarce
	}
	if level < lent.level && lent.level == levelExhausted && (u.refund || r.Depth() > lent.rule.Depth()) {
		lent.lift = true
	}
	if (level > lent.level || lent.lift) && !lent.queued {
		lent.queued = true
		s.pendingNotices = append(s.pendingNotices, lent.key)
		n.requestFlush(true)
	}
	lent.level, lent.rule = level, r
}

// sendNotices sends the queued notices.
func (n *Node) sendNotices(s *shard, now int64, fx *Ready) {
	at := s.clock(now)
	for _, key := range s.pendingNotices {
		lent := s.lent[key]
		if lent == nil {
			continue
		}
		notice := lease.Notice{Window: lent.window, Limit: lent.rule.Depth(), Kind: lease.Recall}
		switch {
		case lent.level == levelExhausted:
			_, hash := n.shard(key)
			notice.Kind, notice.Left = lease.Deny, s.denialTime(s.counters.Owned.Find(hash, key), lent.rule, at)
		case lent.lift:
			notice.Kind = lease.Lift
		}
		lent.queued, lent.lift = false, false
		if notice.Kind != lease.Deny || notice.Left >= minDenyNotice {
			lent.notifyHolders(at, &notice, fx)
		}
	}
	s.pendingNotices = s.pendingNotices[:0]
}

// notifyHolders sends a notice to all holders of the key.
func (k *lentKey) notifyHolders(now int64, notice *lease.Notice, fx *Ready) {
	notice.Key = k.key
	for _, l := range k.Holders(now) {
		m := leaseTo(&fx.Leases, l.Holder, lease.Notify)
		m.Notices = append(m.Notices, *notice)
	}
}
