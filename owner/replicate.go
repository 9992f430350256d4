package owner

import (
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/owner/internal/replica"
	"github.com/keyward/keyward/ring"
)

// tolerance returns U, the number of admitted hits of one key that only this member may have recorded.
func tolerance(req *Request) uint64 {
	if req.Strict {
		return 0
	}
	return req.Rule.Unreplicated()
}

// awaitReplication tracks what op has changed in e for replication. If only this member would have recorded too many
// hits of the key, the result becomes Pending, and awaitReplication returns the pending request.
func (n *Node) awaitReplication(s *shard, op *shardOp, e *counter.Owned, res *Result) *pendingRequest {
	hits := uint64(0)
	if op.Op == Take {
		if op.Hits == 0 || res.Before >= uint64(op.Request.Rule.Depth()) {
			return nil // a charge after the one that exceeded the limit changes no decision
		}
		hits = op.Hits
	}
	u, queued := s.replicas.Track(e, op.Request.Rule, hits)
	if queued {
		n.setDirty()
	}
	switch {
	case u == nil && !res.Over:
		s.counts.Refused++
		op.overflow(&res.Decision)
		res.Authority = Overflow
	case u == nil || hits == 0 || res.Over:
	case u.Unconfirmed() > tolerance(op.Request):
		w := n.await(s, op, res)
		if w != nil {
			w.seq, w.upTo = u.Seq(), u.Charged()-tolerance(op.Request)
			k := s.pending.key(op.Key)
			k.replicas = append(k.replicas, w)
		}
		return w
	}
	return nil
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
		s.mu.Unlock()
	}
}

// resolveReplicated resolves the requests that wait for the confirmation of the charges that r covers.
func (n *Node) resolveReplicated(s *shard, r *replica.Item, fx *Ready) {
	x := s.pending.keys[r.Key]
	if x == nil {
		return
	}
	for len(x.replicas) > 0 && r.Covers(x.replicas[0].seq, x.replicas[0].upTo) {
		w := x.replicas[0]
		x.replicas = x.replicas[1:]
		n.resolve(s, w, w.result, fx)
	}
	s.pending.dropEmpty(r.Key)
}
