package handoff

import (
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/protocol"
)

// pingPeers returns heartbeats for all live members, or only for those whose ping is due.
func (m *Machine) pingPeers(now int64, all bool) []protocol.Outbound {
	m.pingRounds++
	due := func(p *peer) bool { return !p.NoHandoff && (all || now >= p.nextPing) }
	n := 0
	for _, p := range m.sortedPeers {
		if due(p) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	outs := make([]protocol.Outbound, 0, n)
	for _, p := range m.sortedPeers {
		if due(p) {
			outs = append(outs, protocol.Outbound{To: p.ID, Msg: m.pingTo(now, p)})
		}
	}
	return outs
}

// pingTo returns the heartbeat for p and schedules the next one, between 4/5 and 6/5 of pingInterval later, so that
// members that start together do not ping in lockstep. The variation needs no randomness.
func (m *Machine) pingTo(now int64, p *peer) protocol.Message {
	x := (m.opts.BootID + m.pingRounds) * 0x9E3779B97F4A7C15 >> 40
	interval := m.pingInterval(p)
	p.nextPing = now + interval - interval/5 + int64(x)%(interval*2/5)
	msg := protocol.Message{Kind: protocol.Ping, Ring: m.view.ring.Fingerprint(), Seq: m.seq, Sent: now, Now: now}
	switch {
	case m.awaitsAck(p):
		msg.Flags |= protocol.NeedsAck
	case p.acked && !p.copiesAcked:
		msg.Flags |= protocol.NeedsCopies
	}
	if m.neverOwned {
		msg.Flags |= protocol.NeverOwned
	}
	return msg
}

// awaitsAck reports whether p still has to send this member an Ack.
func (m *Machine) awaitsAck(p *peer) bool {
	if m.view.self < 0 {
		return !p.prefetched && p.State == membership.Active && !m.membership.Leaving()
	}
	return !p.acked
}

// handlePong records that p confirmed this member's ping sent at the given time. If p belongs to a side of a partition
// from which this member was separated, that side may have taken over its keys. Then it revokes its own ownership, even
// if its ring never changed.
func (m *Machine) handlePong(now int64, p *peer, sent int64) []protocol.Outbound {
	if m.confirmationExpired(now, p) && m.partitioned(now) {
		return m.RevokeAll(now)
	}
	lasts := p.confirmedAt+m.ttl(p)-m.pingInterval(p) > now
	p.confirmedAt, m.extentStale = sent, true
	if !lasts {
		m.publishConfirmations()
	}
	return nil
}

// publishConfirmations updates the view with the confirmations that have arrived. A confirmation that replaces one
// which is valid for another pingInterval waits for the next Tick: in a large idle cluster this would otherwise be most
// of the work.
func (m *Machine) publishConfirmations() {
	if !m.extentStale {
		return
	}
	v := *m.view
	v.confirmations, m.extentStale = m.countConfirmations(&v), false
	m.view = &v // ownership is unchanged, so the epoch stays
}

func (m *Machine) handlePing(now int64, p *peer, msg *protocol.Message) []protocol.Outbound {
	if p.reported && msg.Seq < p.seq {
		return nil // a later ping has overtaken this one
	}
	fresh := !p.reported || p.ringVersion != msg.Ring || p.seq != msg.Seq
	p.reported, p.ringVersion, p.seq, p.neverOwned = true, msg.Ring, msg.Seq, msg.Flags&protocol.NeverOwned != 0
	p.needsAck, p.needsCopies = msg.Flags&protocol.NeedsAck != 0, msg.Flags&protocol.NeedsCopies != 0
	if !fresh {
		m.checkDelivery(now, p)
	}
	m.releaseTo(now, p)
	m.advance(now)
	pong := protocol.Message{Kind: protocol.Pong, Ring: m.view.ring.Fingerprint(), Seq: msg.Seq, Sent: msg.Sent, Now: now}
	if m.mayConfirm(p) {
		pong.Flags |= protocol.Confirmed
		m.confirmed[memberBoot{p.ID, p.BootID}] = lastConfirmation{now, m.takeoverOf(p)}
	}
	outs := []protocol.Outbound{{To: p.ID, Msg: pong}}
	// Add this member's own ping if it is nearly due, so that usually one member of a pair starts the exchange. Also
	// add it if p can confirm this member from now on.
	sameRing := p.ringVersion == m.view.ring.Fingerprint()
	interval := m.pingInterval(p)
	if now > p.nextPing-interval/2 || fresh && sameRing && p.confirmedAt+interval < now {
		outs = append(outs, protocol.Outbound{To: p.ID, Msg: m.pingTo(now, p)})
	}
	return outs
}

// mayConfirm reports whether p may use its ownership: it is on this member's ring, and if other members may have
// decided its keys before, it has received their state.
func (m *Machine) mayConfirm(p *peer) bool {
	i := m.view.ring.Index(p.ID)
	if i < 0 {
		return p.State == membership.Leaving
	}
	if m.view.ring.At(i).BootID != p.BootID {
		return false
	}
	return !p.added || p.neverOwned || m.neverOwned || m.view.Steady() || p.sending.ackReceived
}
