package owner

import (
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/owner/internal/replica"
	"github.com/keyward/keyward/owner/internal/writeback"
	"github.com/keyward/keyward/ring"
)

// tolerance returns U, the number of admitted hits of one key that only this member may have recorded.
func tolerance(req *Request) uint64 {
	if req.Strict {
		return 0
	}
	return req.Rule.Unreplicated()
}

// mark is a number of hits of an Unreplicated or Unwritten that have to be confirmed.
type mark struct {
	seq  uint32 // of the Unreplicated or Unwritten
	upTo uint64 // so many of its hits; 0: none
}

// awaitConfirmation tracks what op has changed in e for replication and for the journal. If only this member would have
// recorded too many hits of the key, or the journal would lack hits that it must not lose, the result becomes Pending,
// and awaitConfirmation returns the pending request.
func (n *Node) awaitConfirmation(s *shard, op *shardOp, e *counter.Owned, res *Result) *pendingRequest {
	hits := uint64(0)
	if op.Op == Take || op.Op == Reserve {
		if op.Hits == 0 || res.Before >= uint64(op.Request.Rule.Depth()) {
			return nil // a charge after the one that exceeded the limit changes no decision
		}
		hits = op.Hits
	}
	var replica, journal mark
	room := true
	if s.view.copies {
		replica, room = n.replicaMark(s, op, e, hits)
	}
	if n.options.DataWindow > 0 && n.journals(op.Request) {
		var ok bool
		journal, ok = n.journalMark(s, op, e, res)
		room = room && ok
	}
	switch {
	case !room && !res.Over:
		s.counts.Refused++
		op.overflow(&res.Decision)
		res.Authority = Overflow
	case replica.upTo+journal.upTo == 0 || hits == 0 || res.Over:
	default:
		w := n.await(s, op, res)
		if w != nil {
			w.replica, w.journal = replica, journal
			k := s.pending.key(op.Key)
			k.unconfirmed = append(k.unconfirmed, w)
		}
		return w
	}
	return nil
}

// replicaMark adds hits of op to what is not replicated of e. It returns how many hits the successor has to confirm
// before op is decided, and false if there is no room.
func (n *Node) replicaMark(s *shard, op *shardOp, e *counter.Owned, hits uint64) (m mark, ok bool) {
	u := n.trackUnreplicated(s, e, op.Request.Rule, hits)
	if u == nil {
		return m, false
	}
	if t := tolerance(op.Request); u.Unconfirmed() > t {
		m = mark{u.Seq(), u.Charged() - t}
	}
	return m, true
}

// journalMark adds op, whose result is res, to what the journal may lack of e. It returns how many hits the journal has to
// cover before op is decided, and false if it would have to and there is no room to track that.
func (n *Node) journalMark(s *shard, op *shardOp, e *counter.Owned, res *Result) (m mark, ok bool) {
	h := writeback.Hits{Now: op.now, Left: res.Remaining}
	if op.Op == Take || op.Op == Reserve {
		h.N, h.Await, h.Reserve = op.Hits, op.Strict && n.journal.up.Load(), op.Strict && !op.grant
	}
	u := n.trackUnwritten(s, e, op.Request.Rule, &h)
	if u != nil && h.Await && u.Owed() > 0 {
		m = mark{u.Seq(), u.Charged()}
	}
	return m, u != nil || !h.Await
}

// trackUnreplicated adds hits, charged by rule r, to the Unreplicated of e and queues its key. It returns nil if there
// is no room.
func (n *Node) trackUnreplicated(s *shard, e *counter.Owned, r limit.Rule, hits uint64) *counter.Unreplicated {
	u, queued := s.replicas.Track(e, r, hits)
	if queued {
		n.setDirty()
	}
	return u
}

// setDirty records that Flush has something to send. Most calls change nothing, and then do not write to memory that
// other processors read.
func (n *Node) setDirty() {
	if !n.dirty.Load() {
		n.dirty.Store(true)
	}
}

// replicate sends the counters whose keys the shards have queued.
func (n *Node) replicate(now int64, fx *Ready) {
	c := n.serial.replicator
	for i := 0; i < counter.Shards; {
		if !c.HasRoom() {
			n.dirty.Store(true)
			break
		}
		s := &n.shards[i]
		s.mu.Lock()
		confirmed, more := c.Gather(now, &s.replicas)
		for j := range confirmed {
			n.resolveReplicated(s, &confirmed[j], fx)
		}
		s.mu.Unlock()
		if !more {
			i++
		}
	}
	fx.Messages = append(fx.Messages, c.Send(now)...)
}

// resendUnconfirmed queues the keys of batches that were not confirmed in time.
func (n *Node) resendUnconfirmed(now int64) {
	items := n.serial.replicator.Unconfirmed(now)
	for i := range items {
		s, _ := n.shard(items[i].Key)
		s.mu.Lock()
		if s.replicas.Requeue(&items[i]) {
			n.dirty.Store(true)
		}
		s.mu.Unlock()
	}
}

// resendToSuccessors sends successors what other members have confirmed in their place.
func (n *Node) resendToSuccessors(now int64, fx *Ready) {
	c := n.serial.replicator
	for key := range c.Missed(now) {
		s, _ := n.shard(key)
		s.mu.Lock()
		c.AddMissed(now, &s.replicas, key)
		s.mu.Unlock()
	}
	fx.Messages = append(fx.Messages, c.Send(now)...)
}

// confirmBatch processes a confirmation of a batch by member from.
func (n *Node) confirmBatch(from ring.ID, msg *protocol.Message, fx *Ready) {
	items := n.serial.replicator.Confirm(msg.Seq, from)
	for i := range items {
		s, _ := n.shard(items[i].Key)
		s.mu.Lock()
		if s.replicas.Confirm(&items[i]) {
			n.resolveReplicated(s, &items[i], fx)
		}
		if s.counters.Claims.Len() > 0 {
			n.confirmClaims(s, &items[i], fx)
		}
		s.mu.Unlock()
	}
}

// resolveReplicated resolves the requests that wait for the confirmation of the charges that r covers.
func (n *Node) resolveReplicated(s *shard, r *replica.Item, fx *Ready) {
	n.confirmPending(s, r.Key, fx, func(w *pendingRequest) bool {
		if w.replica.upTo > 0 && !r.Covers(w.replica.seq, w.replica.upTo) {
			return false
		}
		w.replica.upTo = 0
		return true
	})
}

// resolveWritten resolves the requests that wait for the journal to cover the hits that it covers.
func (n *Node) resolveWritten(s *shard, it *writeback.Mark, fx *Ready) {
	n.confirmPending(s, it.Key, fx, func(w *pendingRequest) bool {
		if w.journal.upTo > 0 && !it.Covers(w.journal.seq, w.journal.upTo) {
			return false
		}
		w.journal.upTo = 0
		return true
	})
}

// releaseWritten makes no request wait for the journal any more.
func (n *Node) releaseWritten(s *shard, fx *Ready) {
	for _, key := range counter.SortedKeys(s.pending.keys) {
		n.confirmPending(s, key, fx, func(w *pendingRequest) bool {
			w.journal.upTo = 0
			return true
		})
	}
}

// confirmPending calls confirm for the unconfirmed requests for key, the oldest first, until it returns false, and
// resolves those that wait for nothing else. Later requests of a key wait for more hits than earlier ones.
func (n *Node) confirmPending(s *shard, key Key, fx *Ready, confirm func(*pendingRequest) bool) {
	x := s.pending.keys[key]
	if x == nil {
		return
	}
	for _, w := range x.unconfirmed {
		if !confirm(w) {
			break
		}
	}
	for len(x.unconfirmed) > 0 && x.unconfirmed[0].confirmed() {
		w := x.unconfirmed[0]
		x.unconfirmed = x.unconfirmed[1:]
		n.resolve(s, w, w.result, fx)
	}
	s.pending.dropEmpty(key)
}
