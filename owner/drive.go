package owner

import (
	"math"
	"math/bits"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

const (
	// collectFor is how long charges are collected before they are sent to their successors, if no request waits for
	// them. It does not increase the bound on losses: a charge that would leave more than U charges unreplicated waits,
	// and what it waits for is sent at once.
	collectFor = 20 * time.Millisecond
	// recheckEvery is the time between two flushes while requests are pending: charges that are not confirmed in time
	// are then sent to another member.
	recheckEvery = 5 * time.Millisecond
)

// FlushIn returns within which time the driver must call Flush: 0 is at once, because a request waits for it, and
// math.MaxInt64 is never, because there is nothing to flush. Decide, DecideAll and Serve may shorten that time, so the
// driver must call FlushIn after each of them; the other methods return it in Ready. FlushIn takes no lock.
func (n *Node) FlushIn() time.Duration {
	switch {
	case n.urgent.Load():
		return 0
	case n.pending.Load() > 0:
		return recheckEvery
	case n.dirty.Load() || n.serial.replicator.InFlight():
		return collectFor
	}
	return math.MaxInt64
}

// finish fills the fields of fx that do not depend on the call. Every method that returns a Ready calls it last.
func (n *Node) finish(fx *Ready) { fx.FlushIn = n.FlushIn() }

// SetMembership makes v the view of the cluster. When it returns, no request is decided by the previous view.
func (n *Node) SetMembership(now int64, v *membership.View) (fx Ready) {
	n.ticked.Store(now)
	n.serial.Lock()
	defer n.serial.Unlock()
	m := n.serial.machine
	before := m.View()
	first := before.Seq() == 0
	legacy := n.legacyMembers()
	fx.Messages = m.SetMembership(now, v)
	r := m.View().Ring()
	c := change{at: now, settled: now + int64(n.options.LegacyGrace), ring: before.Ring(), self: before.Self()}
	if first {
		c.ring, c.self, c.first, legacy = r, r.Index(n.options.Self), true, n.legacyMembers()
	}
	if first || before.Ring().Fingerprint() != r.Fingerprint() {
		n.recordChange(c, legacy, now)
	}
	n.publish(now, &fx)
	fx.Transfers = n.receivers()
	n.finish(&fx)
	return fx
}

// legacyMembers returns the members whose version has no handoff.
func (n *Node) legacyMembers() map[ring.ID]bool {
	legacy := map[ring.ID]bool{}
	for p := range n.serial.machine.Membership().Peers() {
		if p.NoHandoff {
			legacy[p.ID] = true
		}
	}
	return legacy
}

// recordChange records change c if counts may have been lost with it.
func (n *Node) recordChange(c change, legacy map[ring.ID]bool, now int64) {
	left := map[ring.ID]bool{n.options.Self: true}
	for _, id := range n.serial.machine.Membership().Left {
		left[id] = true
	}
	c.legacy, c.crashed = make([]bool, c.ring.Len()), make([]bool, c.ring.Len())
	lossy := false
	for i := range c.ring.Len() {
		x := c.ring.At(i)
		p := n.serial.machine.Peer(x.ID)
		c.legacy[i] = legacy[x.ID]
		c.crashed[i] = !c.first && !legacy[x.ID] && !left[x.ID] && (p == nil || p.BootID != x.BootID)
		if c.crashed[i] {
			d := n.serial.machine.LongestDetection()
			c.settled = max(c.settled, now+int64(d.OwnershipTTL()+d.TakeoverDelay()))
		}
		lossy = lossy || c.legacy[i] || c.crashed[i]
	}
	if !lossy {
		return
	}
	was := n.serial.view.changes
	next := append([]change{c}, was[:min(len(was), maxChanges-1)]...)
	v := *n.serial.view
	v.changes = next
	n.serial.view = &v
}

// publish gives all shards the machine's view, if it is a new one, and decides the requests that waited for it.
func (n *Node) publish(now int64, fx *Ready) {
	m := n.serial.machine
	n.serial.transfers = m.Transfers()
	if p := m.Progress(); p != n.serial.progress {
		n.serial.progress, fx.ProgressChanged = p, true
	}
	was := n.serial.view
	v := m.View()
	if was.OwnershipView == v && n.shards[0].view == was {
		return
	}
	n.serial.view = newView(v, was.changes, n.legacyMembers())
	n.serial.view.divisors = n.serial.view.divisorsAt(now, was.divisors)
	n.serial.replicator.SetView(v, n.serial.view.copies)
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		changed := s.view.epoch != n.serial.view.epoch
		s.view = n.serial.view
		s.leases.SetView(v)
		s.counters.Owned.SetSurplus(nil)
		if changed && s.pending.n > 0 {
			n.reviewPending(s, s.clock(now), fx)
		}
		if changed {
			s.leases.DropUnowned()
			n.releaseEscrows(s, s.clock(now), fx)
			s.dropPools(false)
		}
		s.mu.Unlock()
	}
	if n.pending.Load() > 0 {
		n.requestOwnership(now, fx)
	}
}

// Tick does what is due at time now: it extends this member's ownership, sends heartbeats, and drops a part of the
// expired counters. It must be called several times a second.
func (n *Node) Tick(now int64) (fx Ready) {
	n.ticked.Store(now)
	n.serial.Lock()
	fx.Messages = n.serial.machine.Tick(now)
	n.publish(now, &fx)
	n.evaluateHot(now, &fx)
	n.tickLeases(now, &fx)
	n.tickEscrows(now, &fx)
	n.resendToSuccessors(now, &fx)
	n.forgetDead(now)
	n.flush(now, &fx)
	fx.Transfers = n.receivers()
	n.serial.Unlock()
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		s.counters.Owned.SetSurplus(n.surplus(s))
		at := s.clock(now)
		rest := s.counters.Sweep(at, s.view.epoch, sweepStep)
		n.counters.Sketches.Drop(i, at)
		s.fair.Sweep(at)
		s.tickPools(at)
		s.dropMoves(at)
		if s.counters.Claims.Len() > 0 {
			n.sweepClaims(s, at, &fx)
		}
		if s.counters.Empty() {
			s.replicas.Reset()
			s.writes.Reset()
		}
		if s.pending.n > 0 {
			n.expirePending(s, at, &fx)
		}
		s.mu.Unlock()
		for ; rest != 0; rest &= rest - 1 {
			s.sweepOn(counter.Table(bits.TrailingZeros(rest)), now)
		}
	}
	n.finish(&fx)
	return fx
}

// surplus returns which counters of shard s this member may drop to make room, if little is left: those of keys of
// which it is neither owner nor successor nor holds the zone replica, and has nothing to replicate. They remain from
// handoffs, and from times in which a successor could not be reached.
func (n *Node) surplus(s *shard) func(*counter.Owned) bool {
	v := s.view
	if !v.Steady() || v.Self() < 0 || !n.counters.HalfFull() {
		return nil
	}
	return func(e *counter.Owned) bool {
		return s.isForeign(e.RingPos()) &&
			s.counters.Unreplicated(e) == nil &&
			!s.counters.HasWriter(e, s.share()) // shares that were reported only increase
	}
}

const (
	sweepPart = 8   // a Tick sweeps this fraction of each table
	sweepStep = 256 // slots that are swept under one lock
)

// sweepOn sweeps the rest of a Tick's part of t. It unlocks the shard after each step.
func (s *shard) sweepOn(t counter.Table, now int64) {
	for done, end := sweepStep, false; !end; done += sweepStep {
		s.mu.Lock()
		end = done >= s.counters.Slots(t)/sweepPart || s.counters.SweepTable(t, s.clock(now), s.view.epoch, sweepStep)
		s.mu.Unlock()
	}
}

// Flush returns the messages that earlier decisions require: requests for ownership, replicas, and messages about
// leases. FlushIn returns when to call it.
func (n *Node) Flush(now int64) (fx Ready) {
	n.serial.Lock()
	defer n.serial.Unlock()
	n.flush(now, &fx)
	n.finish(&fx)
	return fx
}

func (n *Node) flush(now int64, fx *Ready) {
	n.urgent.Store(false)
	n.dirty.Store(false)
	n.resendUnconfirmed(now)
	if n.pending.Load() > 0 {
		n.requestOwnership(now, fx)
	}
	n.replicate(now, fx)
	n.flushEscrows(now, fx)
	if n.leaseTraffic.Swap(false) {
		n.flushLeases(now, fx)
	}
}

// Progress returns the progress of the handoff to the current ring. Ready reports when it has changed.
func (n *Node) Progress() membership.Progress {
	n.serial.Lock()
	defer n.serial.Unlock()
	return n.serial.machine.Progress()
}

// messageCounts counts what other members have sent. The Node's serial guards it.
type messageCounts struct {
	refused uint64 // counters, slots and messages that are not valid
	dropped uint64 // counters that found no room
	merged  uint64 // counters that were merged
}

// Step processes a message from the given boot of member from. It refuses messages from members that are not live, and
// from earlier boots.
func (n *Node) Step(now int64, from ring.ID, bootID uint64, msg *protocol.Message) (fx Ready) {
	n.serial.Lock()
	defer n.serial.Unlock()
	if p := n.serial.machine.Peer(from); p != nil && p.BootID == bootID {
		n.step(now, p, msg, &fx)
	} else {
		n.serial.counts.refused++
	}
	switch msg.Kind {
	case protocol.Ping, protocol.Ack, protocol.OwnershipRequest: // they start most transfers
		fx.Transfers = n.receivers()
	}
	n.finish(&fx)
	return fx
}

// step processes a message from live member p.
func (n *Node) step(now int64, p *membership.Member, msg *protocol.Message, fx *Ready) {
	m := n.serial.machine
	m.Contact(now, p.ID)
	switch msg.Kind {
	case protocol.Chunk:
		n.merge(now, msg.Counters)
		if msg.Sketch != nil && !n.counters.Sketches.Import(msg.Sketch, now) {
			n.serial.counts.refused++
		}
		fx.Messages = m.Step(now, p.ID, p.BootID, msg)
	case protocol.Replica:
		n.mergeReplicas(now, p.ID, msg.Counters)
		ack := protocol.Message{Kind: protocol.ReplicaAck, Seq: msg.Seq, Ring: msg.Ring}
		fx.Messages = append(fx.Messages, protocol.Outbound{To: p.ID, Msg: ack})
		return
	case protocol.ReplicaAck:
		n.confirmBatch(p.ID, msg, fx)
		return
	case protocol.OwnershipRequest:
		fx.Messages = m.Step(now, p.ID, p.BootID, msg)
		n.publish(now, fx)
		n.releaseOwnership(now, p.ID, msg, fx)
	case protocol.OwnershipReply:
		n.acceptOwnership(now, p.ID, msg, fx)
	default:
		// A heartbeat can show that this member's clock has stood still while others did not.
		if fx.ClockStopped = m.ClockStall(now, p.ID, p.BootID, msg); fx.ClockStopped > 0 {
			n.revokeAll(now, fx)
		}
		fx.Messages = append(fx.Messages, m.Step(now, p.ID, p.BootID, msg)...)
	}
	n.publish(now, fx)
}
