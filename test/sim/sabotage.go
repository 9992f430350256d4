package sim

import (
	"math"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner"
)

// Bug is a deliberate mistake, made on the way between the members, that the oracle has to find.
type Bug uint8

// The bugs.
const (
	noBug              Bug = iota
	bugAnyRing             // the fingerprint of seals and acknowledgements is not looked at
	bugSkipAck             // a joiner does not wait for one of its acknowledgements
	bugMaxTAT              // states of buckets merge by the larger TAT
	bugGrantFirst          // answers do not wait for the replica
	bugPlainRefund         // a refund subtracts from the charge
	bugCapSlots            // a hand-over carries one slot of a counter
	bugCapCounters         // a hand-over carries one counter of a chunk
	bugDropSketch          // a hand-over leaves out what the sketch has counted
	bugKeepAssumption      // what others charged for a loss that was none is taken for real
	bugChargeRefusal       // what a part of the cluster refuses is charged
	bugIgnoreClockStop     // a member whose clocks stood still goes on, until its wall clock is set
)

// baseBugs are all of them, by name.
var baseBugs = map[string]Bug{
	"drop the seal's fingerprint": bugAnyRing, "skip one ack": bugSkipAck, "max-merge TATs": bugMaxTAT,
	"grant before replicate": bugGrantFirst, "refund as a plain subtraction": bugPlainRefund,
	"cap the slots of a hand-over": bugCapSlots, "cap the counters of a hand-over": bugCapCounters,
	"keep what was charged for a loss": bugKeepAssumption, "charge what a part refuses": bugChargeRefusal,
}

// stillBugs are those that show where machines stop with their clocks.
var stillBugs = map[string]Bug{"go on after the clocks stood still": bugIgnoreClockStop}

// fullBugs are those that show where tables are full.
var fullBugs = map[string]Bug{"leave out what the sketch has counted": bugDropSketch}

// noWriter is a writer that no member is.
const noWriter = 3

// sabotage changes a message that m is about to take in.
func (w *world) sabotage(m *member, msg *handoff.Message) {
	switch {
	case w.bug == noBug || m.ring == nil:
	case w.bug == bugAnyRing && (msg.Kind == handoff.Ack || msg.Kind == handoff.OwnershipReply || msg.Kind == handoff.Chunk):
		if msg.Ring, msg.Seq = m.ring.Fingerprint(), m.seq; msg.Kind == handoff.Ack {
			msg.ChunkIndex = 0 // of which transfer it is the end does not matter either
		}
	case w.bug == bugIgnoreClockStop:
		msg.Now = 0 // which would show it
	case w.bug == bugDropSketch:
		msg.Sketch = nil
	case w.bug == bugCapCounters && msg.Kind == handoff.Chunk:
		msg.Counters = msg.Counters[:min(1, len(msg.Counters))]
	}
	for i := range msg.Counters {
		c := &msg.Counters[i]
		switch {
		case w.bug == bugMaxTAT && c.Rule.Algorithm.Bucket():
			c.State.Slots = nil
		case w.bug == bugCapSlots && (msg.Kind == handoff.Chunk || msg.Kind == handoff.OwnershipReply):
			c.State.Slots = c.State.Slots[:min(1, len(c.State.Slots))]
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
}

// sabotageRefusal charges what m has refused because it had a part of the limit only: it is asked again, by a limit that its part has room for.
func (w *world) sabotageRefusal(m *member, q *owner.Request, a *owner.Result) {
	if w.bug != bugChargeRefusal || q.Op != owner.Take || !a.Over || a.Authority != owner.Part {
		return
	}
	more := *q
	more.Rule.Limit = math.MaxUint32
	m.node.Decide(m.clock(), &more)
}

// sabotageAdoption forges what m waits for when it has adopted a ring.
func (w *world) sabotageAdoption(m *member) {
	fp := m.ring.Fingerprint()
	before := m.previousRing
	m.previousRing = fp
	if w.bug != bugSkipAck || before == fp || before == 0 {
		return
	}
	for i := range m.ring.Len() {
		p := w.slots[slotOf(m.ring.At(i).ID)].now
		if p != nil && p != m && p.boot == m.ringBoots[p.slot] {
			ack := &handoff.Message{Kind: handoff.Ack, Ring: fp, Seq: m.seq, BaseRing: before, Sent: m.clock(), SinceLost: int64(3600e9)}
			m.apply(m.node.Step(m.clock(), slotID(p.slot), inst(p.slot, p.boot), ack))
			return
		}
	}
}

// sabotageSend answers replicas at once, and loses them.
func (w *world) sabotageSend(m *member, to *member, msg *handoff.Message) bool {
	if (w.bug != bugGrantFirst || msg.Kind != handoff.Replica) && !w.sabotageReplica(m, msg) || to == nil {
		return false
	}
	got := &handoff.Message{Kind: handoff.ReplicaAck, Ring: msg.Ring, Seq: msg.Seq}
	w.after(0, m, func() { m.apply(m.node.Step(m.clock(), slotID(to.slot), inst(to.slot, to.boot), got)) })
	return true
}
