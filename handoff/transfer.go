package handoff

import (
	"slices"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/ring"
)

// Transfer is the stream of counters to one member. It consists of the counters that To owns on Ring and did not own on
// DeliveredFor, as Chunks, followed by the message that Finish returns. Then come, as Chunks with SuccessorCopy, the
// counters of this member whose successor on Ring is To, which was neither their owner nor their successor on
// CopiedFor, followed by Finish again. A transfer that Transfers no longer lists is canceled.
type Transfer struct {
	To            ring.ID
	Ring          *ring.Ring
	DeliveredFor  *ring.Ring // nil: nothing was delivered
	CopiedFor     *ring.Ring // nil: no replicas were delivered
	Seq           uint64     // for Message.Seq
	StartedAt     int64      // for Message.Sent; identifies the attempt
	SuccessorCopy bool       // the Ack has been sent, successor replicas remain
	Prefetch      bool       // all Chunks and the Ack have this flag
}

type stage uint8

const (
	stageIdle       stage = iota
	sendingCounters       // counters that the member owns
	sendingCopies         // the Ack is sent; replicas for a successor follow
	ackSent
	delivered // the member has received everything
)

// outgoing is the transfer to one member.
type outgoing struct {
	stage        stage
	seq          uint64 // the member's adoption number that the transfer answers
	startedAt    int64
	ackSentAt    int64 // when the last Ack was sent
	prefetch     bool
	prefetchRing *ring.Ring // with prefetch: the ring that includes the member
	ackReceived  bool       // the member has confirmed the Ack
	deliveredFor *ring.Ring // the ring for which the member has all counters it owns
	copiedFor    *ring.Ring // the ring for which the member has all replicas
}

// restart resets o for another ring. on reports whether the member is on it.
func (o *outgoing) restart(on bool) {
	if !o.ackReceived || !on {
		o.deliveredFor = nil
	}
	if o.stage != delivered || !on {
		o.copiedFor = nil
	}
	o.stage, o.seq, o.ackReceived, o.prefetch = stageIdle, 0, false, false
}

func (o *outgoing) begin(now int64, seq uint64, prefetch bool) {
	// Attempts must differ even at the same clock reading.
	o.stage, o.seq, o.startedAt, o.prefetch, o.ackReceived = sendingCounters, seq, max(now, o.startedAt+1), prefetch, false
}

// releaseTo releases all of p's keys to p if both use the same ring, and starts to transfer their counters. This member
// stops deciding those keys with the view that it publishes here.
func (m *Machine) releaseTo(now int64, p *peer) {
	if !p.reported || p.NoHandoff || p.ringVersion != m.view.ring.Fingerprint() {
		return
	}
	if m.seq == 0 || m.view.self < 0 && m.neverOwned {
		return
	}
	if len(m.view.steps) == 0 && p.sending.stage != stageIdle && p.sending.seq == p.seq {
		return // the usual case
	}
	i := placeOf(m.view.ring, p.ID, p.BootID)
	if i < 0 {
		m.prefetchTo(now, p)
		return
	}
	if n := len(m.view.steps); n > 0 && !m.view.steps[n-1].released[i] {
		v := m.publish()
		s := &v.steps[n-1]
		s.released = slices.Clone(s.released)
		s.released[i] = true
	}
	if p.sending.stage == stageIdle || p.sending.seq != p.seq {
		if len(m.copiesFrom) > 0 {
			p.sending.deliveredFor = nil
		}
		p.sending.begin(now, p.seq, false)
	}
}

// prefetchTo starts to send replicas to a joining member.
func (m *Machine) prefetchTo(now int64, p *peer) {
	if p.State == membership.Joining && p.needsAck && m.view.self >= 0 &&
		(p.sending.stage == stageIdle || p.sending.seq != p.seq) {
		p.sending.prefetchRing = m.ringWith(p)
		p.sending.begin(now, p.seq, true)
	}
}

// checkDelivery updates the transfer to p by the flags of its last Ping.
func (m *Machine) checkDelivery(now int64, p *peer) {
	o := &p.sending
	if o.seq != p.seq || o.stage != sendingCopies && o.stage != ackSent {
		return
	}
	overdue := now-o.ackSentAt > resendAfter
	if p.needsAck {
		if overdue {
			o.begin(now, p.seq, o.prefetch)
		}
		return
	}
	if !o.ackReceived {
		o.ackReceived = true
		if !o.prefetch {
			o.deliveredFor = m.view.ring
		}
	}
	switch {
	case o.prefetch || o.stage != ackSent:
	case !p.needsCopies:
		o.stage, o.copiedFor = delivered, m.view.ring
	case overdue:
		o.stage, o.startedAt = sendingCopies, max(now, o.startedAt+1)
	}
}

// Transfers returns the transfers in progress, sorted by member ID.
func (m *Machine) Transfers() []Transfer {
	var out []Transfer
	for _, p := range m.sortedPeers {
		o := &p.sending
		if o.stage != sendingCounters && o.stage != sendingCopies {
			continue
		}
		t := Transfer{
			To: p.ID, Ring: m.view.ring, DeliveredFor: o.deliveredFor, CopiedFor: o.copiedFor, Seq: o.seq,
			StartedAt: o.startedAt, SuccessorCopy: o.stage == sendingCopies, Prefetch: o.prefetch,
		}
		if o.prefetch {
			t.Ring, t.DeliveredFor = o.prefetchRing, nil
		}
		out = append(out, t)
	}
	return out
}

// ringWith returns the current ring with joining member p added.
func (m *Machine) ringWith(p *peer) *ring.Ring {
	r := m.view.ring
	members := make([]ring.Member, 0, r.Len()+1)
	for i := range r.Len() {
		members = append(members, r.At(i))
	}
	joining := p.RingMember()
	joining.Incarnation = 1
	return r.Parameters().New(append(members, joining))
}

// Finish returns the Ack that ends transfer t, or its replicas, after the given number of Chunks. It returns false if
// the transfer was canceled.
func (m *Machine) Finish(now int64, t Transfer, chunks uint32) (protocol.Message, bool) {
	p, stage := m.peers[t.To], sendingCounters
	if t.SuccessorCopy {
		stage = sendingCopies
	}
	if p == nil || p.sending.stage != stage || p.sending.startedAt != t.StartedAt {
		return protocol.Message{}, false
	}
	o := &p.sending
	o.stage, o.ackSentAt = stage+1, now
	msg := protocol.Message{
		Kind: protocol.Ack, Ring: m.view.ring.Fingerprint(), Seq: o.seq, ChunkIndex: chunks, Sent: o.startedAt,
	}
	switch {
	case o.prefetch:
		o.stage, msg.Flags, msg.SinceLost = ackSent, protocol.Prefetch, m.sinceLost(now, p)
	case t.SuccessorCopy:
		msg.Flags = protocol.SuccessorCopy
	default:
		msg.BaseRing, msg.SinceLost, msg.Losses = m.untouchedBase(), m.sinceLost(now, p), m.Losses(now)
	}
	return msg, true
}

// untouchedBase returns the version of the base if this member still owned all its keys on it when it adopted the
// current ring, otherwise 0.
func (m *Machine) untouchedBase() uint64 {
	v := m.view
	if v.base == nil {
		return 0
	}
	for i := 0; i < len(v.steps)-1; i++ {
		for _, r := range v.steps[i].released {
			if r {
				return 0
			}
		}
	}
	return v.base.Fingerprint()
}

// unreachable reports whether b may still be running: it is not live here, has not left and was not replaced by a later
// boot of the same member, which cannot join while b is running.
func (m *Machine) unreachable(b memberBoot) bool {
	if m.peers[b.id] != nil || b.id == m.opts.Self {
		return false
	}
	return !slices.Contains(m.membership.Left, b.id)
}

// incoming is the transfer from one member.
type incoming struct {
	startedAt int64
	next      uint32
	proof     proof // from its Ack; without ring: none
}

// restart discards what was received from p for an earlier adoption.
func (p *peer) restart() {
	p.acked, p.copiesAcked, p.counters, p.copies = false, false, incoming{}, incoming{}
}

// incoming returns the part of p's transfer to which msg belongs.
func (p *peer) incoming(msg *protocol.Message) *incoming {
	if msg.Flags&protocol.SuccessorCopy != 0 {
		return &p.copies
	}
	return &p.counters
}

func (in *incoming) addChunk(m *Machine, msg *protocol.Message) {
	switch {
	case !m.isCurrent(msg):
	case msg.ChunkIndex == 0:
		in.startedAt, in.next = msg.Sent, 1
	case msg.Sent == in.startedAt && msg.ChunkIndex == in.next:
		in.next++
	default:
		in.startedAt, in.next = 0, 0 // a gap: the Ack must not count
	}
}

// completes reports whether msg ends a transfer of which every chunk arrived, for the current adoption.
func (in *incoming) completes(m *Machine, msg *protocol.Message) bool {
	if !m.isCurrent(msg) {
		return false
	}
	return msg.ChunkIndex == 0 || msg.Sent == in.startedAt && msg.ChunkIndex == in.next
}

// isCurrent reports whether msg answers this member's adoption of the current ring. Prefetched replicas are for a ring
// that no member has adopted yet.
func (m *Machine) isCurrent(msg *protocol.Message) bool {
	return msg.Seq == m.seq && (msg.Ring == m.view.ring.Fingerprint() || msg.Flags&protocol.Prefetch != 0)
}

// handleAck records that p has released all of this member's keys.
func (m *Machine) handleAck(now int64, p *peer, msg *protocol.Message) {
	switch {
	case msg.Flags&protocol.Prefetch != 0:
		p.prefetched = true
		return
	case msg.Flags&protocol.SuccessorCopy != 0:
		p.copiesAcked = true
		return
	case p.acked:
		return
	}
	p.acked, p.prefetched = true, true
	m.AddLosses(msg.Losses)
	m.lostExpireAt = max(m.lostExpireAt, now-msg.SinceLost+m.takeoverOf(p))
	if x := m.ringOf(msg.BaseRing); x != nil {
		if i := placeOf(x, p.ID, p.BootID); i >= 0 {
			p.counters.proof = proof{x, i}
		}
	}
	m.advance(now)
}

func (m *Machine) ringOf(fingerprint uint64) *ring.Ring {
	if fingerprint == 0 {
		return nil
	}
	for _, r := range m.history {
		if r.Fingerprint() == fingerprint {
			return r
		}
	}
	return nil
}
