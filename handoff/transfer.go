package handoff

import (
	"math"
	"slices"

	"github.com/keyward/keyward/ring"
)

// Transfer is what is to be sent to one member, as a stream of its own: the counters whose owner on Ring it is and on
// DeliveredFor was not, as Chunks, then what Finish returns; after that, as Extra Chunks, the counters that self owns and whose
// heir on Ring it is and on Copied was neither owner nor heir, then Finish again. A transfer that is no longer listed is off.
type Transfer struct {
	To            ring.ID
	Ring          *ring.Ring
	DeliveredFor  *ring.Ring // nil: it has nothing yet
	CopiedFor     *ring.Ring // nil: it has no copies yet
	Seq           uint64     // for Msg.Seq
	StartedAt     int64      // for Msg.Sent; tells one attempt from the next
	SuccessorCopy bool       // the Ack has been sent, copies remain
	Prefetch      bool       // nothing but Chunks and the Ack, all with that flag
}

type stage uint8

const (
	stageIdle       stage = iota
	sendingCounters       // counters that it owns
	sendingCopies         // the Ack is out; copies for an heir
	ackSent
	delivered // the member has all of it
)

// outgoing is the transfer to one member.
type outgoing struct {
	stage        stage
	seq          uint64 // the member's adoption that it answers
	startedAt    int64
	ackSentAt    int64 // when the last Ack was sent
	prefetch     bool
	prefetchRing *ring.Ring // with shadow: the ring with the member on it
	ackReceived  bool       // the member says that it has the Ack
	deliveredFor *ring.Ring // for which it has everything it owns
	copiedFor    *ring.Ring // for which it has all copies
}

// restart begins anew for another ring, on which the member is or is not.
func (o *outgoing) restart(on bool) {
	if !o.ackReceived || !on {
		o.deliveredFor = nil
	}
	if o.stage != delivered || !on {
		o.copiedFor = nil
	}
	o.stage, o.seq, o.ackReceived, o.prefetch = stageIdle, 0, false, false
}

func (o *outgoing) begin(now int64, seq uint64, shadow bool) {
	// Attempts must differ, also within one reading of the clock.
	o.stage, o.seq, o.startedAt, o.prefetch, o.ackReceived = sendingCounters, seq, max(now, o.startedAt+1), shadow, false
}

// releaseTo gives p all of its keys that are held here, if p goes by the same ring, and begins to send what is known of
// them. From the View that this publishes on, self does not decide them any more.
func (m *Machine) releaseTo(now int64, p *peer) {
	if !p.reported || p.NoHandoff || p.ringVersion != m.view.ring.Fingerprint() || m.seq == 0 || m.view.self < 0 && m.neverOwned {
		return
	}
	if len(m.view.steps) == 0 && p.sending.stage != stageIdle && p.sending.seq == p.seq {
		return // as most of the time
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
		p.sending.begin(now, p.seq, false)
	}
}

// prefetchTo sends what a member without a place on the ring waits for: a joiner its copies.
func (m *Machine) prefetchTo(now int64, p *peer) {
	if p.State == Joining && p.needsAck && m.view.self >= 0 && (p.sending.stage == stageIdle || p.sending.seq != p.seq) {
		p.sending.prefetchRing = m.ringWith(p)
		p.sending.begin(now, p.seq, true)
	}
}

// checkDelivery looks at whether p has got what was sent.
func (m *Machine) checkDelivery(now int64, p *peer) {
	o := &p.sending
	if o.seq != p.seq || o.stage != sendingCopies && o.stage != ackSent {
		return
	}
	late := now-o.ackSentAt > resendAfter
	if p.needsAck {
		if late {
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
	case late:
		o.stage, o.startedAt = sendingCopies, max(now, o.startedAt+1)
	}
}

// Transfers lists what is to be sent now, in the order of the members' names.
func (m *Machine) Transfers() []Transfer {
	var out []Transfer
	for _, p := range m.sortedPeers {
		o := &p.sending
		if o.stage != sendingCounters && o.stage != sendingCopies {
			continue
		}
		t := Transfer{To: p.ID, Ring: m.view.ring, DeliveredFor: o.deliveredFor, CopiedFor: o.copiedFor, Seq: o.seq, StartedAt: o.startedAt, SuccessorCopy: o.stage == sendingCopies, Prefetch: o.prefetch}
		if o.prefetch {
			t.Ring, t.DeliveredFor = o.prefetchRing, nil
		}
		out = append(out, t)
	}
	return out
}

// ringWith is the ring with joiner p on it.
func (m *Machine) ringWith(p *peer) *ring.Ring {
	r := m.view.ring
	members := make([]ring.Member, 0, r.Len()+1)
	for i := range r.Len() {
		members = append(members, r.At(i))
	}
	return ring.New(append(members, ring.Member{ID: p.ID, BootID: p.BootID, Incarnation: 1, Weight: p.Weight}))
}

// Finish is the Ack that ends transfer t, or its copies, after parts Chunks; false if it is off.
func (m *Machine) Finish(now int64, t Transfer, parts uint32) (Message, bool) {
	p, stage := m.peers[t.To], sendingCounters
	if t.SuccessorCopy {
		stage = sendingCopies
	}
	if p == nil || p.sending.stage != stage || p.sending.startedAt != t.StartedAt {
		return Message{}, false
	}
	o := &p.sending
	o.stage, o.ackSentAt = stage+1, now
	msg := Message{Kind: Ack, Ring: m.view.ring.Fingerprint(), Seq: o.seq, ChunkIndex: parts, Sent: o.startedAt}
	switch {
	case o.prefetch:
		o.stage, msg.Flags, msg.SinceLost = ackSent, Prefetch, m.sinceLost(now)
	case t.SuccessorCopy:
		msg.Flags = SuccessorCopy
	default:
		msg.BaseRing, msg.SinceLost, msg.Losses = m.untouchedBase(), m.sinceLost(now), m.Losses(now)
	}
	return msg, true
}

// untouchedBase is the fingerprint of the base, if all tokens of it were here when the present ring was adopted.
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

// sinceLost is the time since self last confirmed a member that is lost.
func (m *Machine) sinceLost(now int64) int64 {
	q := int64(math.MaxInt64 / 4)
	for b, t := range m.confirmedAt {
		if m.unreachable(b) {
			q = min(q, max(0, now-t))
		}
	}
	return q
}

// unreachable says whether b may still be alive, and out of reach: it neither is live here, nor left, nor was replaced by a
// later boot of the same member, which would not be let in beside it.
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
	proof     proof // of its Ack; no ring: none
}

// restart forgets what came of p's transfer for an earlier adoption.
func (p *peer) restart() {
	p.acked, p.copiesAcked, p.counters, p.copies = false, false, incoming{}, incoming{}
}

// incoming is the part of p's transfer that msg belongs to.
func (p *peer) incoming(msg *Message) *incoming {
	if msg.Flags&SuccessorCopy != 0 {
		return &p.copies
	}
	return &p.counters
}

func (in *incoming) addChunk(m *Machine, msg *Message) {
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

// completes says whether msg ends a transfer of which every part has come, for the ring as adopted here.
func (in *incoming) completes(m *Machine, msg *Message) bool {
	if !m.isCurrent(msg) {
		return false
	}
	return msg.ChunkIndex == 0 || msg.Sent == in.startedAt && msg.ChunkIndex == in.next
}

// isCurrent says whether msg answers self's adoption of the present ring. Copies ahead of a joiner's place are for a ring that
// nobody goes by yet.
func (m *Machine) isCurrent(msg *Message) bool {
	return msg.Seq == m.seq && (msg.Ring == m.view.ring.Fingerprint() || msg.Flags&Prefetch != 0)
}

// handleAck takes p's word that all of self's keys which it held are self's.
func (m *Machine) handleAck(now int64, p *peer, msg *Message) {
	switch {
	case msg.Flags&Prefetch != 0:
		p.prefetched = true
		return
	case msg.Flags&SuccessorCopy != 0:
		p.copiesAcked = true
		return
	case p.acked:
		return
	}
	p.acked, p.prefetched = true, true
	m.AddLosses(msg.Losses)
	m.lostExpireAt = max(m.lostExpireAt, now-msg.SinceLost+int64(m.opts.TakeoverDelay))
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
