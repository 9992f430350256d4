package owner

import (
	"math/bits"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

// SetRing makes r the ring and st the standing from now on. When it returns, no question is answered by the old ones.
func (n *Node) SetRing(now int64, r *ring.Ring, m handoff.Membership) (fx Effects) {
	if r == nil {
		r = ring.New(nil)
	}
	n.ticked.Store(now)
	n.serial.Lock()
	defer n.serial.Unlock()
	before := n.serial.machine.View()
	first := before.Seq() == 0
	old := n.legacyMembers()
	peers := make(map[ring.ID]handoff.LivePeer, len(m.Peers))
	for _, p := range m.Peers {
		peers[p.ID] = p
	}
	for id := range n.serial.replicator.lastContact {
		if _, live := peers[id]; !live {
			delete(n.serial.replicator.lastContact, id)
		}
	}
	n.serial.peers = peers
	fx.Out = n.serial.machine.SetRing(now, r, m)
	c := change{at: now, settled: now + int64(n.options.LegacyGrace), ring: before.Ring(), self: before.Self()}
	if first {
		c.ring, c.self, c.first, old = r, r.Index(n.options.Self), true, n.legacyMembers()
	}
	if first || before.Ring().Fingerprint() != r.Fingerprint() {
		n.recordChange(c, old, m, now)
	}
	n.publish(now, &fx)
	return fx
}

// legacyMembers are those that cannot hand over.
func (n *Node) legacyMembers() map[ring.ID]bool {
	old := map[ring.ID]bool{}
	for id, p := range n.serial.peers {
		if p.NoHandoff {
			old[id] = true
		}
	}
	return old
}

// recordChange keeps change c in mind if it may have cost something.
func (n *Node) recordChange(c change, old map[ring.ID]bool, st handoff.Membership, now int64) {
	left := map[ring.ID]bool{n.options.Self: true}
	for _, id := range st.Left {
		left[id] = true
	}
	c.legacy, c.crashed = make([]bool, c.ring.Len()), make([]bool, c.ring.Len())
	cost := false
	for i := range c.ring.Len() {
		m := c.ring.At(i)
		p, live := n.serial.peers[m.ID]
		c.legacy[i] = old[m.ID]
		c.crashed[i] = !c.first && !old[m.ID] && !left[m.ID] && (!live || p.BootID != m.BootID)
		if c.crashed[i] {
			c.settled = max(c.settled, now+int64(n.options.OwnershipTTL+n.options.TakeoverDelay))
		}
		cost = cost || c.legacy[i] || c.crashed[i]
	}
	if !cost {
		return
	}
	was := n.serial.view.changes
	next := append([]change{c}, was[:min(len(was), maxChanges-1)]...)
	v := *n.serial.view
	v.changes = next
	n.serial.view = &v
}

// publish gives all shards the machine's view, if it is a new one, and decides what waited for it.
func (n *Node) publish(now int64, fx *Effects) {
	m := n.serial.machine
	n.serial.transfers = m.Transfers()
	was := n.serial.view
	v := m.View()
	if was.OwnershipView == v && n.shards[0].view == was {
		return
	}
	n.serial.view = newView(v, was.changes, n.legacyMembers())
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		fresh := s.view.epoch != n.serial.view.epoch
		s.view = n.serial.view
		s.counters.Owned.SetSurplus(nil)
		if fresh && s.pending.n > 0 {
			n.reviewOwnershipWaits(s, s.clock(now), fx)
		}
		if fresh {
			s.dropUnownedLeases(n)
		}
		s.mu.Unlock()
	}
	if n.pending.Load() > 0 {
		n.requestOwnership(now, fx)
	}
}

// Tick lets time pass: it renews this member's trust in its ownership, keeps up its confirmations and drops a part of
// what has expired. Call it several times a second.
func (n *Node) Tick(now int64) (fx Effects) {
	n.ticked.Store(now)
	n.serial.Lock()
	fx.Out = n.serial.machine.Tick(now)
	n.publish(now, &fx)
	n.evaluateHot(now, &fx)
	n.tickLeases(now)
	n.resendToSuccessors(now, &fx)
	n.flush(now, &fx)
	n.serial.Unlock()
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		s.counters.Owned.SetSurplus(n.surplus(s))
		at := s.clock(now)
		rest := s.counters.Sweep(at, s.view.epoch, sweepStep)
		n.counters.Sketches.Drop(i, at)
		if s.counters.Empty() {
			s.queue = queue{}
		}
		if s.pending.n > 0 {
			n.expirePending(s, at, &fx)
		}
		s.mu.Unlock()
		for ; rest != 0; rest &= rest - 1 {
			s.sweepOn(counter.Table(bits.TrailingZeros(rest)), now)
		}
	}
	return fx
}

// surplus says which entries of shard s this member may drop to make room, when there is little left: counters of keys of which it is neither
// owner nor heir, and of which it has nothing to tell. They remain from hand-overs, and from times in which an heir could not be heard.
func (n *Node) surplus(s *shard) func(*counter.Owned) bool {
	v := s.view
	if !v.Steady() || v.Self() < 0 || !n.counters.HalfFull() {
		return nil
	}
	return func(e *counter.Owned) bool {
		r := v.Ring()
		return r.Owner(e.RingPos()) != v.Self() && r.Successor(e.RingPos()) != v.Self() && s.counters.Unreplicated(e) == nil && !s.shares(e)
	}
}

// shares reports whether this member has charged e under SHARE. What it told of that only grows, so e has to be kept.
func (s *shard) shares(e *counter.Owned) bool { return s.counters.HasWriter(e, s.share()) }

const (
	sweepPart = 8   // of a table that a Tick looks at
	sweepStep = 256 // slots of it under one lock
)

// sweepOn sweeps what is left of a Tick's part of t, letting questions in between.
func (s *shard) sweepOn(t counter.Table, now int64) {
	for done, end := sweepStep, false; !end; done += sweepStep {
		s.mu.Lock()
		end = done >= s.counters.Slots(t)/sweepPart || s.counters.SweepTable(t, s.clock(now), s.view.epoch, sweepStep)
		s.mu.Unlock()
	}
}

// Flush sends what Take and Serve have left to be sent: requests for tokens, and copies. Call it at once when Urgent,
// else every few milliseconds while Dirty.
func (n *Node) Flush(now int64) (fx Effects) {
	n.serial.Lock()
	defer n.serial.Unlock()
	n.flush(now, &fx)
	return fx
}

func (n *Node) flush(now int64, fx *Effects) {
	n.urgent.Store(false)
	n.dirty.Store(false)
	if len(n.serial.replicator.order) > 0 {
		n.resendUnconfirmed(now)
	}
	if n.pending.Load() > 0 {
		n.requestOwnership(now, fx)
	}
	n.replicate(now, fx)
	if n.leaseTraffic.Swap(false) {
		n.flushLeases(now, fx)
	}
}

// flushLeases sends what holders and grantors have to say.
func (n *Node) flushLeases(now int64, fx *Effects) {
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		if len(s.leaseRequests) > 0 {
			n.sendLeaseRequests(s, now, fx)
		}
		if len(s.pendingNotices) > 0 {
			n.sendNotices(s, now, fx)
		}
		s.mu.Unlock()
	}
}

// tickLeases lets time pass for leases.
func (n *Node) tickLeases(now int64) {
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		if at := s.clock(now); len(s.lent)+len(s.held)+len(s.names) > 0 {
			n.tickLent(s, at)
			n.tickHeld(s, at)
			s.forgetNames()
		}
		s.mu.Unlock()
	}
}

// Dirty says that Flush has something to do.
func (n *Node) Dirty() bool {
	return n.dirty.Load() || n.inflight.Load() > 0 || n.pending.Load() > 0
}

// Waiting says that answers wait for what other members say.
func (n *Node) Waiting() bool { return n.pending.Load() > 0 }

// Urgent says that somebody waits for what Flush has to do.
func (n *Node) Urgent() bool { return n.urgent.Load() }

// Progress is how far a change of the ring has come.
func (n *Node) Progress() handoff.RingProgress {
	n.serial.Lock()
	defer n.serial.Unlock()
	return n.serial.machine.Progress()
}

// messageCounts count what came from other members. Guarded by the Node's serial.
type messageCounts struct {
	refused uint64 // counters and slots that no member should have sent
	dropped uint64 // counters that found no place
	merged  uint64 // counters taken in
}

// Step takes in a message that boot inst of member from has sent. Messages of members that are not known to live are
// refused.
func (n *Node) Step(now int64, from ring.ID, bootID uint64, msg *handoff.Message) (fx Effects) {
	n.serial.Lock()
	defer n.serial.Unlock()
	if p, ok := n.serial.peers[from]; !ok || p.BootID != bootID {
		n.serial.counts.refused++
		return fx
	}
	n.serial.replicator.lastContact[from] = now
	m := n.serial.machine
	switch msg.Kind {
	case handoff.Chunk:
		n.merge(now, msg.Counters)
		if msg.Sketch != nil && !n.counters.Sketches.Import(msg.Sketch, now) {
			n.serial.counts.refused++
		}
		fx.Out = m.Step(now, from, bootID, msg)
	case handoff.Replica:
		n.merge(now, msg.Counters)
		fx.Out = append(fx.Out, handoff.Outbound{To: from, Msg: handoff.Message{Kind: handoff.ReplicaAck, Seq: msg.Seq, Ring: msg.Ring}})
	case handoff.ReplicaAck:
		n.confirmBatch(msg.Seq, from, &fx)
		return fx
	case handoff.OwnershipRequest:
		fx.Out = m.Step(now, from, bootID, msg)
		n.publish(now, &fx)
		n.releaseOwnership(now, from, msg, &fx)
	case handoff.OwnershipReply:
		n.acceptOwnership(now, from, msg, &fx)
	default:
		n.checkClock(now, from, bootID, msg, &fx)
		fx.Out = append(fx.Out, m.Step(now, from, bootID, msg)...)
	}
	n.publish(now, &fx)
	return fx
}

const ownershipRetry = int64(25 * time.Millisecond)

// requestOwnership asks for the tokens that questions wait for.
func (n *Node) requestOwnership(now int64, fx *Effects) {
	v := n.serial.view
	var out []handoff.Outbound
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		for _, key := range s.pending.ownershipKeys() {
			t := s.pending.ownership(key)
			if t.holder == "" || t.holder == n.options.Self || t.requestedAt != 0 && now-t.requestedAt < ownershipRetry {
				continue
			}
			t.requestedAt = now
			m := messageTo(&out, t.holder, handoff.OwnershipRequest, handoff.KeyGiven, "")
			m.Ring, m.Seq = v.Ring().Fingerprint(), v.Seq()
			m.Counters = append(m.Counters, handoff.CounterRecord{Key: key, RingPos: t.ringPos, Domain: t.domain, Rule: t.rule})
		}
		s.mu.Unlock()
	}
	fx.Out = append(fx.Out, out...)
}

// messageTo is a message of out with room for a counter, made if there is none.
func messageTo(out *[]handoff.Outbound, to ring.ID, k handoff.MessageKind, st handoff.ReplyStatus, member ring.ID) *handoff.Message {
	for i := range *out {
		o := &(*out)[i]
		if m := &o.Msg; o.To == to && m.Status == st && m.Member == member && len(m.Counters) < maxBatch && bytesOf(m) < maxBytes {
			return m
		}
	}
	*out = append(*out, handoff.Outbound{To: to, Msg: handoff.Message{Kind: k, Status: st, Member: member}})
	return &(*out)[len(*out)-1].Msg
}

// releaseOwnership answers a request for tokens. The machine has seen it, so what is given is decided here no more.
func (n *Node) releaseOwnership(now int64, from ring.ID, msg *handoff.Message, fx *Effects) {
	if len(msg.Counters) > maxBatch {
		n.serial.counts.refused++
		return
	}
	var out []handoff.Outbound
	for i := range msg.Counters {
		c := &msg.Counters[i]
		s, hash := n.shard(c.Key)
		s.mu.Lock()
		e := s.counters.Owned.Find(hash, c.Key)
		st, member := s.view.Reply(c.RingPos, e.OwnedEpoch(c.RingPos), from, msg.Ring)
		m := messageTo(&out, from, handoff.OwnershipReply, st, member)
		m.Ring, m.Seq = msg.Ring, msg.Seq
		if st == handoff.KeyGiven && m.Losses == nil {
			m.Losses = n.serial.machine.Losses(now)
		}
		if st == handoff.KeyGiven && e != nil && e.RingPos() == c.RingPos {
			e = s.completeEntry(&shardOp{Request: &Request{Key: c.Key, RingPos: c.RingPos, Domain: c.Domain, Rule: s.counters.Rule(e)}, now: s.clock(now), hash: hash, table: counter.TableOwned, rule: s.counters.Rule(e)}, e)
		}
		switch {
		case st == handoff.KeyGiven && e != nil && e.RingPos() == c.RingPos && !e.Expired(now):
			e.SetIncomplete()
			n.chargeLostEntry(s, s.clock(now), e)
			m.Counters = append(m.Counters, s.export(e))
		default:
			none := handoff.CounterRecord{Key: c.Key, RingPos: c.RingPos, Domain: c.Domain, Rule: c.Rule}
			if st == handoff.KeyGiven && e == nil {
				s.exportSketch(hash, s.clock(now), &none)
			}
			m.Counters = append(m.Counters, none)
		}
		s.mu.Unlock()
	}
	fx.Out = append(fx.Out, out...)
}

// acceptOwnership takes in the answer to a request for tokens.
func (n *Node) acceptOwnership(now int64, from ring.ID, msg *handoff.Message, fx *Effects) {
	v := n.serial.view
	given := msg.Status == handoff.KeyGiven
	if given {
		n.merge(now, msg.Counters)
	}
	if msg.Ring != v.Ring().Fingerprint() || msg.Seq != v.Seq() || len(msg.Counters) > maxBatch {
		return
	}
	if given {
		n.serial.machine.OwnershipReceived()
		n.serial.machine.AddLosses(msg.Losses)
		n.publish(now, fx)
		v = n.serial.view
	}
	for i := range msg.Counters {
		c := &msg.Counters[i]
		s, hash := n.shard(c.Key)
		s.mu.Lock()
		t := s.pending.ownership(c.Key)
		at := s.clock(now)
		switch {
		case given && v.Ring().Owner(c.RingPos) == v.Self() && v.Self() >= 0:
			if e := s.counters.Owned.Find(hash, c.Key); e != nil && e.RingPos() == c.RingPos {
				n.chargeLostEntry(s, at, e) // merge, which knew of no loss, may have dropped what the giver charged for it
				e.SetEpoch(v.epoch)
			}
			n.decidePending(s, at, c.Key, fx)
		case t == nil || t.holder != from:
		case msg.Status == handoff.KeyKept:
			n.forwardAll(s, c.Key, from, fx)
		case msg.Status == handoff.KeyGone && msg.Member != n.options.Self:
			n.forwardAll(s, c.Key, msg.Member, fx)
		}
		s.mu.Unlock()
	}
}
