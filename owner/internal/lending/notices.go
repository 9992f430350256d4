package lending

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

// Count is the count of a key after a charge or a refund.
type Count struct {
	Now    int64
	Rule   limit.Rule
	Hits   uint64
	Refund bool
}

// RequiresLease reports whether key is lent by a rule that requires leases.
func (l *Leases) RequiresLease(key Key) bool {
	lent := l.lent[key]
	return lent != nil && lent.always
}

// Update updates the level of the key of e after an operation, if parts of its limit are lent.
func (l *Leases) Update(e *counter.Owned, c *Count) {
	if lent := l.lent[e.Key()]; lent != nil {
		l.updateLevel(lent, c.Rule, usage{l.windowOf(e, c.Rule, c.Now), c.Hits, c.Refund})
	}
}

// updateLevel updates the level of a lent key with rule r, and queues a notice for the holders if they have to act.
func (l *Leases) updateLevel(lent *lentKey, r limit.Rule, u usage) {
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
		l.notices = append(l.notices, lent.key)
		l.owner.RequestFlush(true)
	}
	lent.level, lent.rule = level, r
}

// sendNotices sends the queued notices.
func (l *Leases) sendNotices(now int64, out *Outbox) {
	for _, key := range l.notices {
		lent := l.lent[key]
		if lent == nil {
			continue
		}
		notice := lease.Notice{Window: lent.window, Limit: lent.rule.Depth(), Kind: lease.Recall}
		switch {
		case lent.level == levelExhausted:
			notice.Kind, notice.Left = lease.Deny, l.denialTime(l.counters.Find(key), lent.rule, now)
		case lent.lift:
			notice.Kind = lease.Lift
		}
		lent.queued, lent.lift = false, false
		if notice.Kind != lease.Deny || notice.Left >= minDenyNotice {
			lent.notifyHolders(now, &notice, out)
		}
	}
	l.notices = l.notices[:0]
}

// notifyHolders sends a notice to all holders of the key.
func (k *lentKey) notifyHolders(now int64, notice *lease.Notice, out *Outbox) {
	notice.Key = k.key
	for _, h := range k.Holders(now) {
		m := out.message(h.Holder, lease.Notify)
		m.Notices = append(m.Notices, *notice)
	}
}
