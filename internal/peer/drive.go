package peer

import (
	"slices"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// flushEvery is how long charges gather before they are sent to their heirs when no answer waits for that. It bounds no
// loss: an answer that would let more than U be known to one member alone waits, and what it waits for is sent at once.
const flushEvery = 20 * time.Millisecond

// recheckEvery is how often Node is looked at while answers wait: what was not confirmed in time is then sent elsewhere.
const recheckEvery = 5 * time.Millisecond

// apply does what Node wants done. Messages leave on this member's own link to each receiver, also answers, so that one
// queue bounds them and keeps their order.
func (p *Peer) apply(e owner.Effects) { p.perform(e, false) }

// applyInline does the same for a caller that holds no lock: it writes heartbeats itself.
func (p *Peer) applyInline(e owner.Effects) { p.perform(e, true) }

func (p *Peer) perform(e owner.Effects, here bool) {
	links := *p.links.Load()
	for out := e.Out; len(out) > 0; {
		l, n := links[out[0].To], heartbeats(out)
		if here && l != nil && n > 0 {
			l.writeInline(out[:n])
		} else {
			n = 1
			p.sendMsg(l, &out[0].Msg)
		}
		out = out[n:]
	}
	for i := range e.Leases {
		if l := links[e.Leases[i].To]; l != nil {
			l.enqueueLease(&e.Leases[i].Batch) // one that is dropped is asked for again
		}
	}
	for i := range e.Audits {
		a := &e.Audits[i]
		p.log.Info("lease", "key", a.Name, "member", a.Member, "reported", a.IsReport, "hits", a.Hits, "used", a.Used, "limit", a.Limit)
	}
	if e.ClockStopped > 0 {
		p.reportStoppedClocks(e.ClockStopped)
	}
	for i := range e.Done {
		p.waits.resolve(e.Done[i].Ticket, e.Done[i].Result)
	}
	p.requestFlush()
}

// heartbeats is how many that are for one member out begins with.
func heartbeats(out []handoff.Outbound) (n int) {
	for n < len(out) && out[n].To == out[0].To && (out[n].Msg.Kind == handoff.Ping || out[n].Msg.Kind == handoff.Pong) {
		n++
	}
	return n
}

// sendMsg sends m over l, or drops it: every message is repeated by what follows from its absence.
func (p *Peer) sendMsg(l *link, m *handoff.Message) {
	r := forwardUnreachable
	if l != nil {
		r = l.enqueue(m)
	}
	if m.Kind == handoff.Replica {
		p.m.replicas(r).Inc()
	}
	if m.Kind == handoff.OwnershipReply && m.Status == handoff.KeyGiven && r == forwardPending {
		p.m.keysSent.Add(float64(len(m.Counters)))
	}
}

// requestFlush has Node flushed: at once when an answer waits for it, else soon. It costs next to nothing when nothing waits.
func (p *Peer) requestFlush() {
	if n := p.o.Node; n.Urgent() || n.Dirty() && !p.flushing.Load() {
		wake(p.flushNeeded)
	}
}

// wake leaves a token in c unless there is one.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// flushLoop drains what decisions left to be sent.
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
				case <-p.flushNeeded: // something urgent came
				case <-p.ctx.Done():
					return
				}
			}
			p.apply(n.Flush(p.clock.now()))
		}
		p.flushing.Store(false)
		p.requestFlush() // what became dirty between the last look and now
	}
}

// flushDelay is the time until the next flush.
func (p *Peer) flushDelay() time.Duration {
	if p.o.Node.Waiting() {
		return recheckEvery
	}
	return flushEvery
}

func (p *Peer) tickLoop() {
	t := time.NewTicker(p.o.TickEvery)
	defer t.Stop()
	beaten := int64(0) // when links were last looked at
	for {
		select {
		case <-t.C:
			mono := p.clock.mono()
			p.tick()
			if mono-p.meter.at >= int64(measureEvery) {
				p.measure(mono)
			}
			if mono-beaten >= int64(keepaliveEvery-p.o.TickEvery/2) {
				beaten = mono
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

// setView sets the ring, the state of the other members, and where they accept requests. LivePeer.NoHandoff is filled in here.
func (p *Peer) setView(r *ring.Ring, s handoff.Membership, addrs map[ring.ID]Addr) {
	p.view.Lock()
	defer p.view.Unlock()
	p.updateLinks(addrs)
	p.ring, p.standing = r, s
	p.setRing(p.oldMembers())
}

// setRing is called with view held.
func (p *Peer) setRing(old []ring.ID) {
	p.old = old
	s := p.standing
	s.Peers = slices.Clone(s.Peers)
	for i := range s.Peers {
		s.Peers[i].NoHandoff = slices.Contains(old, s.Peers[i].ID)
	}
	p.apply(p.o.Node.SetRing(p.clock.now(), p.ring, s))
	p.startTransfers()
	wake(p.progressChanged)
}

// updateOldMembers tells Node when a member turned out to speak another version than was thought.
func (p *Peer) updateOldMembers() {
	old := p.oldMembers()
	p.view.Lock()
	defer p.view.Unlock()
	if p.ring != nil && !slices.Equal(old, p.old) {
		p.log.Info("members without hand-over", "members", old)
		p.setRing(old)
	}
}

// oldMembers are those that spoke a version without hand-over when they were last connected.
func (p *Peer) oldMembers() (old []ring.ID) {
	for id, l := range *p.links.Load() {
		if v := l.lastVersion.Load(); v != 0 && v < handoffVersion {
			old = append(old, id)
		}
	}
	slices.Sort(old)
	return old
}
