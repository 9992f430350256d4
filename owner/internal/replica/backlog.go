package replica

import (
	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

// maxFastAttempts is the number of attempts in a row after which only the owner's Tick makes another one.
const maxFastAttempts = 16

// Backlog queues the keys of one shard of the counters that have unreplicated charges.
type Backlog struct {
	counters *counter.Shard
	queue    counter.Queue[counter.Key]
}

// Init makes b the queue of the keys in counters. It is called once, before any other method.
func (b *Backlog) Init(counters *counter.Shard) { b.counters = counters }

// Reset empties the queue. The counters must be empty, too.
func (b *Backlog) Reset() { b.queue = counter.Queue[counter.Key]{} }

// Track adds hits, charged to e by rule r, to the unreplicated charges of e, and queues its key. It returns nil if
// there is no room for them. queued reports whether the key was not queued before.
func (b *Backlog) Track(e *counter.Owned, r limit.Rule, hits uint64) (u *counter.Unreplicated, queued bool) {
	u = b.counters.TrackUnreplicated(e, r, hits)
	if u == nil || u.Queued() {
		return u, false
	}
	u.SetQueued()
	b.queue.Push(e.Key())
	return u, true
}

// next removes the first key from the queue. It returns its counter and unreplicated charges, or nil if there are none.
func (b *Backlog) next() (*counter.Owned, *counter.Unreplicated) {
	e := b.counters.Find(b.queue.Pop())
	if e == nil {
		return nil, nil
	}
	return e, b.counters.Unreplicated(e)
}

// Item names a key of a batch, and how much of its unreplicated charges the batch contains.
type Item struct {
	Key       counter.Key
	seq       uint32 // of the counter.Unreplicated
	upTo      uint64
	successor ring.ID // the member that must get the replica, even if another one gets it first
	claims    uint32  // the number of the latest change of the key's claims, for Claims.Confirm; 0: none
	zone      bool    // a zone replica: no request waits for it, and no other member gets it instead
	// part reports whether the batch contains only some of the key's claims, so that a member that has it may lack what
	// earlier batches contained.
	part bool
}

// Covers reports whether a confirmation of the item confirms the first hits of the counter.Unreplicated with number
// seq, or shows that they need no confirmation any more, because that Unreplicated was replaced.
func (it *Item) Covers(seq uint32, hits uint64) bool { return it.seq != seq || hits <= it.upTo }

// Confirm confirms the charges of the item. It returns false if there is no confirmation, because the counter's
// Unreplicated was replaced after the batch was sent.
func (b *Backlog) Confirm(it *Item) bool {
	e := b.counters.Find(it.Key)
	if e == nil {
		return true
	}
	u := b.counters.Unreplicated(e)
	if u == nil || u.Seq() != it.seq {
		return u == nil
	}
	u.Confirm(it.upTo)
	if u.Unconfirmed() == 0 && !u.Queued() && !b.counters.Claims.HasChanges(it.Key) {
		b.counters.DropUnreplicated(e)
	}
	return true
}

// ConfirmClaims confirms the changes of claims that the item contains, and calls settle with each claim that is Settling
// and has no later change. It queues the key again if other changes are not confirmed, and reports whether it has.
func (b *Backlog) ConfirmClaims(it *Item, settle func(*claim.Claim)) (queued bool) {
	if it.claims == 0 {
		return false
	}
	t := &b.counters.Claims
	t.Confirm(it.Key, it.claims, settle)
	e := b.counters.Find(it.Key)
	if e == nil || !t.HasChanges(it.Key) {
		return false
	}
	u := b.counters.Unreplicated(e)
	if u == nil || u.Queued() {
		return false
	}
	u.SetQueued()
	b.queue.Push(it.Key)
	return true
}

// Requeue queues the item's key again if its charges are not confirmed. It reports whether the next attempt is to be
// made at once.
func (b *Backlog) Requeue(it *Item) (soon bool) {
	e := b.counters.Find(it.Key)
	if e == nil {
		return false
	}
	u := b.counters.Unreplicated(e)
	if u == nil || !b.counters.Claims.HasChanges(it.Key) && (u.Seq() != it.seq || u.Confirmed() >= it.upTo && it.upTo != 0) {
		return false
	}
	if u.AddAttempt(); u.Queued() {
		return false
	}
	u.SetQueued()
	b.queue.Push(it.Key)
	return u.Attempts() < maxFastAttempts
}
