package owner

import (
	"slices"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

const (
	lockKeys        = 128                    // copied under one lock
	maxBatch        = 512                    // counters of one batch
	usualBatch      = 64                     // counters that a batch has room for at first
	maxBytes        = 96 << 10               // of one message, roughly
	maxFlight       = 64                     // batches that others have time to confirm
	maxBatches      = 4 * maxFlight          // the late ones included
	silentAfter     = int64(time.Second)     // who was not heard for that long, is asked last
	maxFastAttempts = 16                     // after so many attempts in a row only every Tick brings one
	batchAge        = int64(2 * time.Second) // after that a batch is not confirmed any more
)

// tolerance is U, how many admitted hits of one key this member alone may know of.
func tolerance(req *Request) uint64 {
	if req.Strict {
		return 0
	}
	return req.Rule.Unreplicated()
}

// queueChunk keys are added at a time. It happens under the shard's lock, so that they are few: 4 KiB.
const queueChunk = 256

// queue holds keys in order. Each is in it once, as its debt's queuedBit says.
type queue struct {
	chunks [][]Key // as many as it needs, and at most one more
	head   int     // the first key, in the first chunk
	n      int
}

func (q *queue) len() int { return q.n }

func (q *queue) push(key Key) {
	end := q.head + q.n
	if end == len(q.chunks)*queueChunk {
		q.chunks = append(q.chunks, make([]Key, queueChunk))
	}
	q.chunks[end/queueChunk][end%queueChunk] = key
	q.n++
}

func (q *queue) pop() Key {
	first := q.chunks[0]
	key := first[q.head]
	q.head++
	q.n--
	if q.head == queueChunk {
		q.head, q.chunks = 0, slices.Delete(q.chunks, 0, 1)
		if q.n > (len(q.chunks)-1)*queueChunk {
			q.chunks = append(q.chunks, first) // to be filled again: a steady queue allocates nothing
		}
	}
	return key
}

// awaitReplication records what op has changed of e for replication. If too many hits on the key would be known to this
// member alone, the result becomes pending, and awaitReplication returns the pending request; w is not nil if it was
// pending before.
func (n *Node) awaitReplication(s *shard, op *shardOp, e *counter.Owned, w *pendingRequest, res *Result) *pendingRequest {
	hits := uint64(0)
	if op.Op == Take {
		if op.Hits == 0 || res.Before >= uint64(op.Request.Rule.Depth()) {
			return nil // a later charge than the one that crossed the limit changes no decision
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
		turn, upto := u.Seq(), u.Charged()-tolerance(op.Request)
		if w = n.await(s, op, w, res); w != nil {
			w.seq, w.upTo = turn, upto
			k := s.pending.key(op.Key)
			k.replicas = append(k.replicas, w)
		}
		return w
	}
	return nil
}

// trackUnreplicated adds hits to the debt of e and queues its key; nil when there is no room for the debt.
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

// replicator sends copies. Guarded by the Node's serial.
type replicator struct {
	next            uint64
	batches         map[uint64]*batch
	order           []uint64                   // of batches, the oldest first
	lastContact     map[ring.ID]int64          // when each member last was
	successorMisses map[ring.ID]map[Key]uint64 // by heir: keys that another member has confirmed instead, and by which batch
	ranked          []int                      // scratch
	silent          []int                      // scratch
}

// batch is a Replica message that is not confirmed.
type batch struct {
	to     ring.ID
	at     int64
	resent bool // sent again, elsewhere
	refs   []ref
}

// ref is a key in a batch: how much of its debt the batch covers.
type ref struct {
	key       Key
	seq       uint32
	upTo      uint64
	successor ring.ID // who has to be told, though another member may be told first
}

// gathering is the batch being filled for one member.
type gathering struct {
	to    ring.ID
	msg   handoff.Message
	refs  []ref
	slots []limit.Slot // of msg's counters, one after another
	bytes int
}

// full says whether the batch is to be sent before there is more in it.
func (g *gathering) full() bool { return len(g.refs) == maxBatch || g.bytes > maxBytes }

// add puts what is known of e, the key of r, into the batch.
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

// replicate sends what the shards have queued.
func (n *Node) replicate(now int64, fx *Effects) {
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

// gather takes some of what one shard has queued, and says whether there is more.
func (n *Node) gather(s *shard, now int64, open []*gathering, fx *Effects) (_ []*gathering, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	unpaid := 0
	for range lockKeys {
		if s.queue.len() == unpaid {
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
		to, heir := n.replicaTarget(now, s.view, e, u.Attempts())
		if to == "" || e.Expired(now) {
			was := s.queue.len()
			n.deferReplication(s, e, u, key, e.Expired(now), fx)
			unpaid += s.queue.len() - was
			continue
		}
		u.SetUnqueued()
		g := gatheringFor(&open, to)
		if g.add(s, e, ref{key, u.Seq(), u.Charged(), heir}); g.full() {
			n.dispatch(now, g, fx)
		}
	}
	return open, unpaid == 0 && s.queue.len() > 0
}

// deferReplication deals with a debt that nobody can be told: it is kept for later, or with its counter over, forgotten.
func (n *Node) deferReplication(s *shard, e *counter.Owned, u *counter.Unreplicated, key Key, over bool, fx *Effects) {
	if !over && s.view.copies {
		s.queue.push(key) // until the next Tick
		return
	}
	n.resolveReplicated(s, key, u.Seq(), u.Charged(), fx)
	if over || s.view.Ring().Len() > 0 && s.view.Joined() {
		s.counters.DropUnreplicated(e)
		return
	}
	s.queue.push(key)
}

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

// dispatch sends what was gathered, as one batch.
func (n *Node) dispatch(now int64, g *gathering, fx *Effects) {
	if len(g.refs) == 0 {
		return
	}
	c := &n.serial.replicator
	c.next++
	c.batches[c.next] = &batch{to: g.to, at: now, refs: g.refs}
	c.order = append(c.order, c.next)
	n.inflight.Add(1)
	g.msg.Kind, g.msg.Seq, g.msg.Ring = handoff.Replica, c.next, n.serial.view.Ring().Fingerprint()
	fx.Out = append(fx.Out, handoff.Outbound{To: g.to, Msg: g.msg})
	*g = gathering{to: g.to}
}

// replicaTarget is who is told of e: its owner, or when that is this member, its heir; of those that do not confirm, the
// next in the ring's order. Charges under SHARE are for the owner alone. heir is the one that cannot be spared.
func (n *Node) replicaTarget(now int64, v *view, e *counter.Owned, attempts int) (to, heir ring.ID) {
	r, c := v.Ring(), &n.serial.replicator
	c.ranked = r.Order(e.RingPos(), c.ranked[:0])
	if len(c.ranked) == 0 {
		return "", ""
	}
	if v.Ownership(e.RingPos(), e.Epoch()).State != handoff.OwnedHere && c.ranked[0] != v.Self() {
		c.ranked = c.ranked[:1]
	}
	heard, mute := c.ranked[:0], c.silent[:0]
	for _, i := range c.ranked {
		id := r.At(i).ID
		if p, live := n.serial.peers[id]; i == v.Self() || !live || p.NoHandoff {
			continue
		}
		if heir == "" {
			heir = id
		}
		if n.heardRecently(id, now) {
			heard = append(heard, i)
		} else {
			mute = append(mute, i)
		}
	}
	c.silent = mute
	switch {
	case len(heard) > 0:
		to = r.At(heard[attempts%len(heard)]).ID
	case len(mute) > 0:
		to = r.At(mute[attempts%len(mute)]).ID
	}
	return to, heir
}

// heardRecently says whether member id was heard of late, or has had no reason to speak yet.
func (n *Node) heardRecently(id ring.ID, now int64) bool {
	t, known := n.serial.replicator.lastContact[id]
	return !known || t > now-silentAfter
}

// resendUnconfirmed sends again what was not confirmed in time, to somebody else.
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
				c.lastContact[b.to] = now - silentAfter // until it is heard again
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

// requeueBatch queues what b covers and nobody has confirmed meanwhile.
func (n *Node) requeueBatch(b *batch) {
	for _, r := range b.refs {
		s, hash := n.shard(r.key)
		s.mu.Lock()
		if e := s.counters.Owned.Find(hash, r.key); e != nil {
			if u := s.counters.Unreplicated(e); u != nil && u.Seq() == r.seq && (u.Confirmed() < r.upTo || r.upTo == 0) {
				u.AddAttempt()
				if !u.Queued() {
					u.SetQueued()
					s.queue.push(r.key)
					if u.Attempts() < maxFastAttempts {
						n.dirty.Store(true)
					}
				}
			}
		}
		s.mu.Unlock()
	}
}

// confirmBatch takes in that a batch has arrived.
func (n *Node) confirmBatch(seq uint64, from ring.ID, fx *Effects) {
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
			n.resolveReplicated(s, r.key, r.seq, r.upTo, fx)
		}
		s.mu.Unlock()
		if c.clearMiss(from, r.key, seq); r.successor != from {
			c.recordMiss(r.successor, r.key, seq)
		}
	}
}

// confirmReplicated lowers e's debt by what r covers; false if e has a later debt.
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
