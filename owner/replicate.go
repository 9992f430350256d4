package owner

import (
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

const (
	lockKeys        = 128                    // keys gathered under one lock
	maxBatch        = 512                    // counters of one batch
	usualBatch      = 64                     // counters that a batch has room for at first
	maxBytes        = 96 << 10               // of one message, approximately
	maxFlight       = 64                     // batches whose time for a confirmation has not passed
	maxBatches      = 4 * maxFlight          // batches, including those that were sent again
	silentAfter     = int64(time.Second)     // a member that has sent nothing for so long is the last choice
	maxFastAttempts = 16                     // after so many attempts in a row, only a Tick makes another one
	batchAge        = int64(2 * time.Second) // after which a batch cannot be confirmed any more
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
	u := n.trackUnreplicated(s, e, op.Request, hits)
	switch {
	case u == nil && !res.Over:
		s.counts.refused++
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

// trackUnreplicated adds hits to the Unreplicated of e and queues its key. It returns nil if there is no room.
func (n *Node) trackUnreplicated(s *shard, e *counter.Owned, req *Request, hits uint64) *counter.Unreplicated {
	u := s.counters.TrackUnreplicated(e, req.Rule, hits)
	if u != nil && !u.Queued() {
		u.SetQueued()
		s.queue.push(req.Key)
		if !n.dirty.Load() {
			n.dirty.Store(true)
		}
	}
	return u
}

// replicator sends replicas of counters to other members. The Node's serial guards it.
type replicator struct {
	next            uint64
	batches         map[uint64]*batch
	order           []uint64                   // batches, the oldest first
	lastContact     map[ring.ID]int64          // when each member last sent anything
	successorMisses map[ring.ID]map[Key]uint64 // by successor: keys that another member has confirmed, and in which batch
	ranked          []int                      // scratch
	silent          []int                      // scratch
}

// batch is a Replica message that is not confirmed.
type batch struct {
	to     ring.ID
	at     int64
	resent bool // to another member
	refs   []ref
}

// ref is a key in a batch, and how much of its Unreplicated the batch contains.
type ref struct {
	key       Key
	seq       uint32
	upTo      uint64
	successor ring.ID // the member that must get the replica, even if another one gets it first
}

// gathering is a batch that is being filled for one member.
type gathering struct {
	to    ring.ID
	msg   handoff.Message
	refs  []ref
	slots []limit.Slot // of msg's counters, one after another
	bytes int
}

// full reports whether the batch has to be sent before more is added.
func (g *gathering) full() bool { return len(g.refs) == maxBatch || g.bytes > maxBytes }

// add adds e, the counter of r's key, to the batch.
func (g *gathering) add(s *shard, e *counter.Owned, r ref) {
	if g.refs == nil {
		g.refs, g.msg.Counters = make([]ref, 0, usualBatch), make([]handoff.CounterRecord, 0, usualBatch)
	}
	if cap(g.slots)-len(g.slots) < 4 {
		g.slots = make([]limit.Slot, 0, 2*usualBatch)
	}
	var c handoff.CounterRecord
	c.State.Slots = g.slots[len(g.slots):]
	s.exportTo(e, &c)
	if n := len(g.slots) + len(c.State.Slots); n <= cap(g.slots) {
		g.slots = g.slots[:n]
		c.State.Slots = c.State.Slots[:len(c.State.Slots):len(c.State.Slots)]
	}
	g.bytes += sizeOf(&c)
	g.msg.Counters, g.refs = append(g.msg.Counters, c), append(g.refs, r)
}

// replicate sends the counters whose keys the shards have queued.
func (n *Node) replicate(now int64, fx *Ready) {
	var open []*gathering
	for i := range n.shards {
		s := &n.shards[i]
		if n.inflight.Load() >= maxFlight {
			n.dirty.Store(true)
			break
		}
		for more := true; more && n.inflight.Load() < maxFlight; {
			open, more = n.gather(s, now, open, fx)
		}
	}
	for _, g := range open {
		n.dispatch(now, g, fx)
	}
}

// gather adds some of the keys that s has queued to the open batches. It reports whether there are more.
func (n *Node) gather(s *shard, now int64, open []*gathering, fx *Ready) (_ []*gathering, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	deferred := 0
	for range lockKeys {
		if s.queue.len() == deferred {
			return open, false
		}
		if n.inflight.Load() >= maxFlight {
			n.dirty.Store(true)
			return open, false
		}
		key := s.queue.pop()
		_, hash := n.shard(key)
		e := s.counters.Owned.Find(hash, key)
		if e == nil {
			continue
		}
		u := s.counters.Unreplicated(e)
		if u == nil {
			continue
		}
		to, successor := n.replicaTarget(now, s.view, e, u.Attempts())
		r := ref{key, u.Seq(), u.Charged(), successor}
		if expired := e.Expired(now); expired || to == "" {
			if expired || !s.view.copies {
				n.resolveReplicated(s, r, fx)
			}
			if expired || s.needsNoReplica() {
				s.counters.DropUnreplicated(e)
			} else {
				s.queue.push(key) // until the next Tick
				deferred++
			}
			continue
		}
		u.SetUnqueued()
		g := gatheringFor(&open, to)
		if g.add(s, e, r); g.full() {
			n.dispatch(now, g, fx)
		}
	}
	return open, deferred == 0 && s.queue.len() > 0
}

// needsNoReplica reports whether this member is in a ring without any other member that can hold a replica.
func (s *shard) needsNoReplica() bool {
	return !s.view.copies && s.view.Ring().Len() > 0 && s.view.Joined()
}

// gatheringFor returns the open batch for a member, which it adds if there is none.
func gatheringFor(open *[]*gathering, to ring.ID) *gathering {
	for _, g := range *open {
		if g.to == to {
			return g
		}
	}
	g := &gathering{to: to}
	*open = append(*open, g)
	return g
}

// dispatch sends g as one batch.
func (n *Node) dispatch(now int64, g *gathering, fx *Ready) {
	if len(g.refs) == 0 {
		return
	}
	c := &n.serial.replicator
	c.next++
	c.batches[c.next] = &batch{to: g.to, at: now, refs: g.refs}
	c.order = append(c.order, c.next)
	n.inflight.Add(1)
	g.msg.Kind, g.msg.Seq, g.msg.Ring = handoff.Replica, c.next, n.serial.view.Ring().Fingerprint()
	fx.Messages = append(fx.Messages, handoff.Outbound{To: g.to, Msg: g.msg})
	*g = gathering{to: g.to}
}

// replicaTarget returns the member that e is sent to: its owner, or its successor if this member is the owner. If that
// member does not confirm, the next ones in the ring's order follow. Charges from a local share are sent only to the
// owner. successor is the member that must get the replica in the end.
func (n *Node) replicaTarget(now int64, v *view, e *counter.Owned, attempts int) (to, successor ring.ID) {
	r, c := v.Ring(), &n.serial.replicator
	c.ranked = r.Order(e.RingPos(), c.ranked[:0])
	if len(c.ranked) == 0 {
		return "", ""
	}
	if v.Ownership(e.RingPos(), e.Epoch()).State != handoff.OwnedHere && c.ranked[0] != v.Self() {
		c.ranked = c.ranked[:1]
	}
	heard, silent := c.ranked[:0], c.silent[:0]
	for _, i := range c.ranked {
		id := r.At(i).ID
		if p, live := n.serial.peers[id]; i == v.Self() || !live || p.NoHandoff {
			continue
		}
		if successor == "" {
			successor = id
		}
		if n.heardRecently(id, now) {
			heard = append(heard, i)
		} else {
			silent = append(silent, i)
		}
	}
	c.silent = silent
	switch {
	case len(heard) > 0:
		to = r.At(heard[attempts%len(heard)]).ID
	case len(silent) > 0:
		to = r.At(silent[attempts%len(silent)]).ID
	}
	return to, successor
}

// heardRecently reports whether member id has sent anything recently, or has had no reason to send anything yet.
func (n *Node) heardRecently(id ring.ID, now int64) bool {
	t, known := n.serial.replicator.lastContact[id]
	return !known || t > now-silentAfter
}

// resendUnconfirmed queues the keys of batches that were not confirmed in time. They are sent to another member.
func (n *Node) resendUnconfirmed(now int64) {
	c := &n.serial.replicator
	kept := c.order[:0]
	for _, seq := range c.order {
		b := c.batches[seq]
		switch {
		case b == nil:
			continue
		case !b.resent && now-b.at >= int64(n.options.Resend):
			b.resent = true
			n.inflight.Add(-1)
			if c.lastContact[b.to] <= b.at {
				c.lastContact[b.to] = now - silentAfter // silent until it sends something
			}
			n.requeueBatch(b)
		case now-b.at > batchAge:
			delete(c.batches, seq)
			continue
		}
		kept = append(kept, seq)
	}
	for len(kept) > maxBatches {
		if b := c.batches[kept[0]]; !b.resent {
			n.inflight.Add(-1)
			n.requeueBatch(b)
		}
		delete(c.batches, kept[0])
		kept = kept[1:]
	}
	c.order = kept
}

// requeueBatch queues the keys of b whose charges no member has confirmed since.
func (n *Node) requeueBatch(b *batch) {
	for _, r := range b.refs {
		s, hash := n.shard(r.key)
		s.mu.Lock()
		if e := s.counters.Owned.Find(hash, r.key); e != nil {
			n.requeue(s, e, r)
		}
		s.mu.Unlock()
	}
}

// requeue queues the key of e if the charges that r contains are not confirmed.
func (n *Node) requeue(s *shard, e *counter.Owned, r ref) {
	u := s.counters.Unreplicated(e)
	if u == nil || u.Seq() != r.seq || u.Confirmed() >= r.upTo && r.upTo != 0 {
		return
	}
	if u.AddAttempt(); u.Queued() {
		return
	}
	u.SetQueued()
	s.queue.push(r.key)
	if u.Attempts() < maxFastAttempts {
		n.dirty.Store(true)
	}
}

// confirmBatch processes the confirmation of a batch.
func (n *Node) confirmBatch(seq uint64, from ring.ID, fx *Ready) {
	c := &n.serial.replicator
	b := c.batches[seq]
	if b == nil || b.to != from {
		return
	}
	delete(c.batches, seq)
	if !b.resent {
		n.inflight.Add(-1)
	}
	for _, r := range b.refs {
		s, hash := n.shard(r.key)
		s.mu.Lock()
		if s.confirmReplicated(s.counters.Owned.Find(hash, r.key), r) {
			n.resolveReplicated(s, r, fx)
		}
		s.mu.Unlock()
		if c.clearMiss(from, r.key, seq); r.successor != from {
			c.recordMiss(r.successor, r.key, seq)
		}
	}
}

// confirmReplicated confirms the charges of e that r contains. It returns false if e has a later Unreplicated.
func (s *shard) confirmReplicated(e *counter.Owned, r ref) bool {
	if e == nil {
		return true
	}
	u := s.counters.Unreplicated(e)
	if u == nil || u.Seq() != r.seq {
		return u == nil
	}
	u.Confirm(r.upTo)
	if u.Unconfirmed() == 0 && !u.Queued() {
		s.counters.DropUnreplicated(e)
	}
	return true
}
