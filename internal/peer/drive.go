package peer

import (
	"slices"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

const (
	// flushEvery is how long charges are collected before they are sent to their successors, if no result waits for
	// them. It does not increase the bound on losses: a result that would leave more than U charges unreplicated waits,
	// and what it waits for is sent at once.
	flushEvery = 20 * time.Millisecond
	// recheckEvery is the time between two flushes while results wait: charges that are not confirmed in time are then
	// sent to another member.
	recheckEvery = 5 * time.Millisecond
)

// apply performs the effects that Node returned. All messages to a member, also replies, leave on this member's own
// link to it, so one queue bounds them and keeps their order.
func (p *Peer) apply(e owner.Ready) { p.perform(e, false) }

// applyInline is apply for a caller that holds no lock: it writes heartbeats on the calling goroutine.
func (p *Peer) applyInline(e owner.Ready) { p.perform(e, true) }

func (p *Peer) perform(e owner.Ready, inline bool) {
	links := *p.links.Load()
	for out := e.Messages; len(out) > 0; {
		l, n := links[out[0].To], heartbeats(out)
		if inline && l != nil && n > 0 {
			l.writeInline(out[:n])
		} else {
			n = 1
			p.sendMsg(l, &out[0].Msg)
		}
		out = out[n:]
	}
	for i := range e.Leases {
		if l := links[e.Leases[i].To]; l != nil {
			l.enqueueLease(&e.Leases[i].Batch) // the next request repeats a batch that is dropped
		}
	}
	p.logAudits(e.Audits)
	if e.ClockStopped > 0 {
		p.reportStoppedClocks(e.ClockStopped)
	}
	for i := range e.Done {
		e.Done[i].Waiter.(waiter).complete(&e.Done[i].Result)
	}
	p.requestFlush()
}

// waiter is the owner.Waiter of a request: a slot of a call, or of a group that was served.
type waiter interface {
	// complete delivers the result. It is called at most once, without locks.
	complete(r *owner.Result)
}

// heartbeats returns how many heartbeats to the same member out begins with.
func heartbeats(out []handoff.Outbound) (n int) {
	for n < len(out) && out[n].To == out[0].To && isHeartbeat(out[n].Msg.Kind) {
		n++
	}
	return n
}

func isHeartbeat(k handoff.MessageKind) bool { return k == handoff.Ping || k == handoff.Pong }

// sendMsg queues m on l or drops it. Node repeats every message that has no effect.
func (p *Peer) sendMsg(l *link, m *handoff.Message) {
	status := forwardUnreachable
	if l != nil {
		status = l.enqueue(m)
	}
	if m.Kind == handoff.Replica {
		p.m.replicas(status).Inc()
	}
	if m.Kind == handoff.OwnershipReply && m.Status == handoff.KeyGiven && status == forwardPending {
		p.m.keysSent.Add(float64(len(m.Counters)))
	}
}

// requestFlush wakes flushLoop if Node has something to flush. It is cheap if Node has not.
func (p *Peer) requestFlush() {
	if n := p.o.Node; n.Urgent() || n.Dirty() && !p.flushing.Load() {
		wake(p.flushNeeded)
	}
}

// wake puts a token into c unless it has one.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// flushLoop sends what decisions have left to send: at once if a result waits for it, or else after flushEvery.
func (p *Peer) flushLoop() {
	t := time.NewTimer(flushEvery)
	defer t.Stop()
	for {
		select {
		case <-p.flushNeeded:
		case <-p.ctx.Done():
			return
		}
		p.flushing.Store(true)
		for n, again := p.o.Node, false; n.Dirty() || n.Urgent(); again = true {
			if again || !n.Urgent() {
				t.Reset(p.flushDelay())
				select {
				case <-t.C:
				case <-p.flushNeeded: // urgent
				case <-p.ctx.Done():
					return
				}
			}
			p.apply(n.Flush(p.clock.now()))
		}
		p.flushing.Store(false)
		p.requestFlush() // Node may have become dirty since the last check
	}
}

// flushDelay returns the time until the next flush.
func (p *Peer) flushDelay() time.Duration {
	if p.o.Node.Waiting() {
		return recheckEvery
	}
	return flushEvery
}

func (p *Peer) tickLoop() {
	t := time.NewTicker(p.o.TickEvery)
	defer t.Stop()
	checked := int64(0) // when keepalives were last checked
	for {
		select {
		case <-t.C:
			mono := p.clock.mono()
			p.tick()
			if mono-p.meter.at >= int64(measureEvery) {
				p.measure(mono)
			}
			if mono-checked >= int64(keepaliveEvery-p.o.TickEvery/2) {
				checked = mono
				p.checkKeepalives()
			}
		case <-p.ctx.Done():
			return
		}
	}
}

func (p *Peer) tick() {
	p.apply(p.adjustClock())
	p.applyInline(p.o.Node.Tick(p.clock.now()))
	p.updateOldMembers()
	p.startTransfers()
	wake(p.progressChanged)
}

// setView sets the ring, the membership and the addresses of the members. Members are dialed ahead of time, so addrs
// may have members that are not in r. setView sets NoHandoff of every peer itself.
func (p *Peer) setView(r *ring.Ring, m handoff.Membership, addrs map[ring.ID]Addr) {
	p.view.Lock()
	defer p.view.Unlock()
	p.updateLinks(addrs)
	p.ring, p.membership = r, m
	p.setRing(p.oldMembers())
}

// setRing passes the ring to Node. It is called with view held.
func (p *Peer) setRing(old []ring.ID) {
	p.old = old
	m := p.membership
	m.Peers = slices.Clone(m.Peers)
	for i := range m.Peers {
		m.Peers[i].NoHandoff = slices.Contains(old, m.Peers[i].ID)
	}
	p.apply(p.o.Node.SetRing(p.clock.now(), p.ring, m))
	p.startTransfers()
	wake(p.progressChanged)
}

// updateOldMembers passes the ring to Node again if the set of members without handoff support has changed.
func (p *Peer) updateOldMembers() {
	old := p.oldMembers()
	p.view.Lock()
	defer p.view.Unlock()
	if p.ring != nil && !slices.Equal(old, p.old) {
		p.log.Info("peers without handoff support changed", "peers", old)
		p.setRing(old)
	}
}

// oldMembers returns the members whose last stream had a protocol version without handoff.
func (p *Peer) oldMembers() (old []ring.ID) {
	for id, l := range *p.links.Load() {
		if v := l.lastVersion.Load(); v != 0 && v < handoffVersion {
			old = append(old, id)
		}
	}
	slices.Sort(old)
	return old
}

// logAudits logs the grants and reports of leases whose rules have audit set.
func (p *Peer) logAudits(audits []owner.Audit) {
	for i := range audits {
		a := &audits[i]
		p.log.Info("lease audit", "key", a.Name, "peer", a.Member, "reported", a.IsReport,
			"hits", a.Hits, "used", a.Used, "limit", a.Limit)
	}
}
