package owner

import (
	"time"

	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

// ownershipRetry is the time after which a member is asked again for the ownership of a key.
const ownershipRetry = int64(25 * time.Millisecond)

// requestOwnership asks for the ownership of the keys that requests wait for.
func (n *Node) requestOwnership(now int64, fx *Ready) {
	v := n.serial.view
	var out []protocol.Outbound
	msg := protocol.Message{
		Kind: protocol.OwnershipRequest, Status: protocol.KeyGiven, Ring: v.Ring().Fingerprint(), Seq: v.Seq(),
	}
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		for _, key := range s.pending.ownershipKeys() {
			t := s.pending.ownership(key)
			if t.holder == "" || t.holder == n.options.Self || t.requestedAt != 0 && now-t.requestedAt < ownershipRetry {
				continue
			}
			t.requestedAt = now
			m := messageTo(&out, t.holder, msg)
			m.Counters = append(m.Counters, protocol.CounterRecord{Key: key, RingPos: t.ringPos, Domain: t.domain, Rule: t.rule})
		}
		s.mu.Unlock()
	}
	fx.Messages = append(fx.Messages, out...)
}

// messageTo returns a message of out to a member that has the status of msg and room for a counter. If there is none,
// it adds msg.
func messageTo(out *[]protocol.Outbound, to ring.ID, msg protocol.Message) *protocol.Message {
	for i := range *out {
		o := &(*out)[i]
		if m := &o.Msg; o.To == to && m.Status == msg.Status && m.Member == msg.Member &&
			len(m.Counters) < protocol.MaxCounters && bytesOf(m) < protocol.MaxBytes {
			return m
		}
	}
	*out = append(*out, protocol.Outbound{To: to, Msg: msg})
	return &(*out)[len(*out)-1].Msg
}

// releaseOwnership replies to a request for ownership. The handoff machine has processed the request already, so this
// member no longer decides the keys that it gives.
func (n *Node) releaseOwnership(now int64, from ring.ID, msg *protocol.Message, fx *Ready) {
	if len(msg.Counters) > protocol.MaxCounters {
		n.serial.counts.refused++
		return
	}
	var out []protocol.Outbound
	for i := range msg.Counters {
		c := &msg.Counters[i]
		s, hash := n.shard(c.Key)
		s.mu.Lock()
		e := s.counters.Owned.Find(hash, c.Key)
		reply := protocol.Message{Kind: protocol.OwnershipReply, Ring: msg.Ring, Seq: msg.Seq}
		reply.Status, reply.Member = s.view.Reply(c.RingPos, e.OwnedEpoch(c.RingPos), from, msg.Ring)
		m := messageTo(&out, from, reply)
		record := protocol.CounterRecord{Key: c.Key, RingPos: c.RingPos, Domain: c.Domain, Rule: c.Rule}
		if m.Status == protocol.KeyGiven {
			if m.Losses == nil {
				m.Losses = n.serial.machine.Losses(now)
			}
			n.release(s, hash, now, from, &record)
		}
		m.Counters = append(m.Counters, record)
		s.mu.Unlock()
	}
	fx.Messages = append(fx.Messages, out...)
}

// release fills c, which names a key that this member gives to another one, with its counter and what sketches have
// counted of it.
func (n *Node) release(s *shard, hash uint64, now int64, to ring.ID, c *protocol.CounterRecord) {
	e := s.counters.Owned.Find(hash, c.Key)
	decidedHere := e != nil && e.Complete()
	if e != nil && e.RingPos() == c.RingPos {
		rule := s.counters.Rule(e)
		req := Request{Key: c.Key, RingPos: c.RingPos, Domain: c.Domain, Rule: rule}
		e = s.completeEntry(&shardOp{Request: &req, now: s.clock(now), hash: hash, table: counter.TableOwned, rule: rule}, e)
	}
	switch {
	case e == nil:
		s.exportSketch(hash, s.clock(now), c)
	case e.RingPos() == c.RingPos && !e.Expired(now):
		if decidedHere {
			s.auditTransfer(s.clock(now), e, to)
		}
		e.SetIncomplete()
		n.chargeLostEntry(s, s.clock(now), e)
		s.counters.Export(e, c)
	}
	if s.counters.Claims.Len() > 0 {
		s.counters.AddClaims(s.clock(now), c)
	}
}

// acceptOwnership processes the reply to a request for ownership.
func (n *Node) acceptOwnership(now int64, from ring.ID, msg *protocol.Message, fx *Ready) {
	v := n.serial.view
	given := msg.Status == protocol.KeyGiven
	if given {
		n.merge(now, msg.Counters)
	}
	if msg.Ring != v.Ring().Fingerprint() || msg.Seq != v.Seq() || len(msg.Counters) > protocol.MaxCounters {
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
				n.chargeLostEntry(s, at, e) // merge, without the losses, may have dropped what the sender charged for them
				e.SetEpoch(v.epoch)
			}
			n.decidePending(s, at, c.Key, fx)
		case t == nil || t.holder != from:
		case msg.Status == protocol.KeyKept:
			n.forwardAll(s, c.Key, from, fx)
		case msg.Status == protocol.KeyGone && msg.Member != n.options.Self:
			n.forwardAll(s, c.Key, msg.Member, fx)
		}
		s.mu.Unlock()
	}
}
