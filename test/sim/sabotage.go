package sim

import (
	"math"
	"slices"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner"
)

// bug is a deliberate mistake in the messages between members that the oracle has to find.
type bug uint8

// The bugs of the core.
const (
	noBug               bug = iota
	bugAnyRing              // the ring in replies and acknowledgements is ignored
	bugSkipAck              // a joiner does not wait for one of its acknowledgements
	bugMaxTAT               // states of buckets merge by the larger TAT
	bugGrantFirst           // decisions do not wait for the replica
	bugPlainRefund          // a refund subtracts from the charge
	bugCapSlots             // a handoff has one slot of a counter only
	bugCapCounters          // a handoff has one counter of a chunk only
	bugDropSketch           // a handoff omits what the sketch has counted
	bugKeepAssumption       // what others charged for a loss that did not happen remains charged
	bugChargeRefusal        // what a part of the cluster refuses is charged
	bugDropShares           // what members admit without the owner is not reported
	bugChargeUnfair         // what is left to other tenants is charged
	bugDropZoneReplicas     // zone replicas are lost
	bugIgnoreClockStop      // a member whose clocks stopped continues until its wall clock is corrected
)

// baseBugs are the bugs of the base kind, by name.
var baseBugs = map[string]bug{
	"drop the seal's fingerprint": bugAnyRing, "skip one ack": bugSkipAck, "max-merge TATs": bugMaxTAT,
	"grant before replicate": bugGrantFirst, "refund as a plain subtraction": bugPlainRefund,
	"cap the slots of a handoff": bugCapSlots, "cap the counters of a handoff": bugCapCounters,
	"keep what was charged for a loss": bugKeepAssumption, "charge what a part refuses": bugChargeRefusal,
}

// stillBugs are the bugs that show when machines stop with their clocks.
var stillBugs = map[string]bug{"go on after the clocks stood still": bugIgnoreClockStop}

// closedBugs are the bugs that show when rules fail closed.
var closedBugs = map[string]bug{"leave out what was admitted without the owner": bugDropShares}

// fullBugs are the bugs that show when tables are full.
var fullBugs = map[string]bug{"leave out what the sketch has counted": bugDropSketch}

// noWriter is a writer that is no member.
const noWriter = 3

// sabotage changes a message that m is about to process.
func (w *world) sabotage(m *member, msg *protocol.Message) {
	switch {
	case w.bug == noBug || m.view.Ring == nil:
	case w.bug == bugAnyRing &&
		(msg.Kind == protocol.Ack || msg.Kind == protocol.OwnershipReply || msg.Kind == protocol.Chunk):
		if msg.Ring, msg.Seq = m.view.Ring.Fingerprint(), m.seq; msg.Kind == protocol.Ack {
			msg.ChunkIndex = 0 // which transfer it completes is ignored as well
		}
	case w.bug == bugIgnoreClockStop:
		msg.Now = 0 // it would reveal the stop
	case w.bug == bugDropZoneReplicas && msg.Kind == protocol.Replica:
		msg.Counters = slices.DeleteFunc(msg.Counters, func(c protocol.CounterRecord) bool {
			return w.zoneReplicaOf(m, c.RingPos)
		})
	case w.bug == bugDropSketch:
		msg.Sketch = nil
	case w.bug == bugCapCounters && msg.Kind == protocol.Chunk:
		msg.Counters = msg.Counters[:min(1, len(msg.Counters))]
	}
	w.sabotageJournaled(msg)
	w.sabotageMarks(msg)
	for i := range msg.Counters {
		w.sabotageCounter(&msg.Counters[i], msg.Kind)
	}
}

// sabotageCounter changes a counter in a message of that kind.
func (w *world) sabotageCounter(c *protocol.CounterRecord, k protocol.MessageKind) {
	switch {
	case w.bug == bugMaxTAT && c.Rule.Algorithm.Bucket():
		c.State.Slots = nil
	case w.bug == bugCapSlots && (k == protocol.Chunk || k == protocol.OwnershipReply):
		c.State.Slots = c.State.Slots[:min(1, len(c.State.Slots))]
	case w.bug == bugForgetSlots && c.Rule.Algorithm == limit.InFlight && (k == protocol.Chunk || k == protocol.OwnershipReply):
		c.State.Slots = nil
	case w.bug == bugDropShares:
		c.State.Slots = slices.DeleteFunc(c.State.Slots, func(s limit.Slot) bool { return s.Writer%2 == 0 })
	case w.bug == bugKeepAssumption:
		for j := range c.State.Slots {
			if s := &c.State.Slots[j]; s.Writer == limit.LostStateWriter {
				s.Writer = noWriter
			}
		}
	case w.bug == bugPlainRefund && (c.Rule.Algorithm == limit.FixedWindow || c.Rule.Algorithm == limit.SlidingWindow):
		for j := range c.State.Slots {
			s := &c.State.Slots[j]
			s.Charged, s.Refunded = s.Charged-min(s.Charged, s.Refunded), 0
		}
	}
}

// sabotageRefusal charges what m has refused because it had a part of the limit only: it repeats the request with a
// limit for which the part has room.
func (w *world) sabotageRefusal(m *member, q *owner.Request, a *owner.Result) {
	if w.bug != bugChargeRefusal || q.Op != owner.Take || !a.Over || a.Authority != owner.Part {
		return
	}
	more := *q
	more.Rule.Limit, more.Waiter = math.MaxUint32, new(int)
	m.node.Decide(m.clock(), &more)
}

// sabotageAdoption forges an acknowledgement that m waits for after it has adopted a ring.
func (w *world) sabotageAdoption(m *member) {
	fp := m.view.Ring.Fingerprint()
	before := m.previousRing
	m.previousRing = fp
	if w.bug != bugSkipAck || before == fp || before == 0 {
		return
	}
	for i := range m.view.Ring.Len() {
		p := w.slots[slotOf(m.view.Ring.At(i).ID)].now
		if p != nil && p != m && p.boot == m.ringBoots[p.slot] {
			ack := &protocol.Message{
				Kind: protocol.Ack, Ring: fp, Seq: m.seq, BaseRing: before, Sent: m.clock(), SinceLost: int64(3600e9),
			}
			m.apply(m.node.Step(m.clock(), slotID(p.slot), inst(p.slot, p.boot), ack))
			return
		}
	}
}

// sabotageSend confirms replicas at once, and loses them.
func (w *world) sabotageSend(m *member, to *member, msg *protocol.Message) bool {
	if (w.bug != bugGrantFirst || msg.Kind != protocol.Replica) && !w.sabotageReplica(m, msg) && !w.sabotageMark(msg) || to == nil {
		return false
	}
	got := &protocol.Message{Kind: protocol.ReplicaAck, Ring: msg.Ring, Seq: msg.Seq}
	w.after(0, m, func() { m.apply(m.node.Step(m.clock(), slotID(to.slot), inst(to.slot, to.boot), got)) })
	return true
}
