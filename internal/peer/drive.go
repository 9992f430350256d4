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

// lookEvery is how often Node is looked at while answers wait: what was not confirmed in time is then sent elsewhere.
const lookEvery = 5 * time.Millisecond

// apply does what Node wants done. Messages leave on this member's own link to each receiver, also answers, so that one
// queue bounds them and keeps their order.
func (p *Peer) apply(e owner.Effects) { p.act(e, false) }

// applyHere does the same for a caller that holds no lock: it writes heartbeats itself.
func (p *Peer) applyHere(e owner.Effects) { p.act(e, true) }

func (p *Peer) act(e owner.Effects, here bool) {
	links := *p.links.Load()
	for out := e.Out; len(out) > 0; {
		l, n := links[out[0].To], heartbeats(out)
		if here && l != nil && n > 0 {
			l.postHere(out[:n])
		} else {
			n = 1
			p.post(l, &out[0].Msg)
		}
		out = out[n:]
	}
	for i := range e.Leases {
		if l := links[e.Leases[i].To]; l != nil {
			l.postLease(&e.Leases[i].Batch) // one that is dropped is asked for again
		}
	}
	for i := range e.Audits {
		a := &e.Audits[i]
		p.log.Info("lease", "key", a.Name, "member", a.Member, "reported", a.IsReport, "hits", a.Hits, "used", a.Used, "limit", a.Limit)
	}
	if e.ClockStopped > 0 {
		p.stoodStill(e.ClockStopped)
	}
	for i := range e.Done {
		p.waits.resolve(e.Done[i].Ticket, e.Done[i].Result)
	}
	p.nudge()
}

// heartbeats is how many that are for one member out begins with.
func heartbeats(out []handoff.Outbound) (n int) {
	for n < len(out) && out[n].To == out[0].To && (out[n].Msg.Kind == handoff.Ping || out[n].Msg.Kind == handoff.Pong) {
		n++
	}
	return n
}

// post sends m over l, or drops it: every message is repeated by what follows from its absence.
func (p *Peer) post(l *link, m *handoff.Message) {
	r := unreachable
	if l != nil {
		r = l.post(m)
	}
	if m.Kind == handoff.Replica {
		p.m.replicas(r).Inc()
	}
	if m.Kind == handoff.OwnershipReply && m.Status == handoff.KeyGiven && r == pending {
		p.m.keysSent.Add(float64(len(m.Counters)))
	}
}

// nudge has Node flushed: at once when an answer waits for it, else soon. It costs next to nothing when nothing waits.
func (p *Peer) nudge() {
	if n := p.o.Node; n.Urgent() || n.Dirty() && !p.flushing.Load() {
		wake(p.dirty)
	}
}

// wake leaves a token in c unless there is one.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// flushes drains what decisions left to be sent.
func (p *Peer) flushes() {
	t := time.NewTimer(flushEvery)
	defer t.Stop()
	for {
		select {
		case <-p.dirty:
		case <-p.ctx.Done():
			return
		}
		p.flushing.Store(true)
		for n, again := p.o.Node, false; n.Dirty() || n.Urgent(); again = true {
			if again || !n.Urgent() {
				t.Reset(p.pause())
				select {
				case <-t.C:
				case <-p.dirty: // something urgent came
				case <-p.ctx.Done():
					return
				}
			}
			p.apply(n.Flush(p.clock.now()))
		}
		p.flushing.Store(false)
		p.nudge() // what became dirty between the last look and now
	}
}

// pause is the time until the next flush.
func (p *Peer) pause() time.Duration {
	if p.o.Node.Waiting() {
		return lookEvery
	}
	return flushEvery
}

func (p *Peer) ticks() {
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
			if mono-beaten >= int64(beat-p.o.TickEvery/2) {
				beaten = mono
				p.beats()
			}
		case <-p.ctx.Done():
			return
		}
	}
}

func (p *Peer) tick() {
	p.apply(p.steer())
	p.applyHere(p.o.Node.Tick(p.clock.now()))
	p.reconsider()
	p.transfers()
	wake(p.moved)
}

// SetView tells who owns what, what membership says beside that, and where the members are asked. Members are dialled
// ahead of time, so addrs may hold more than the ring does. What was asked of a member that has gone may still be
// answered for a moment. Peer.Old is filled in here.
func (p *Peer) SetView(r *ring.Ring, s handoff.Membership, addrs map[ring.ID]Addr) {
	p.view.Lock()
	defer p.view.Unlock()
	p.relink(addrs)
	p.ring, p.standing = r, s
	p.adopt(p.oldMembers())
}

// adopt is called with view held.
func (p *Peer) adopt(old []ring.ID) {
	p.old = old
	s := p.standing
	s.Peers = slices.Clone(s.Peers)
	for i := range s.Peers {
		s.Peers[i].Old = slices.Contains(old, s.Peers[i].ID)
	}
	p.apply(p.o.Node.SetRing(p.clock.now(), p.ring, s))
	p.transfers()
	wake(p.moved)
}

// reconsider tells Node when a member turned out to speak another version than was thought.
func (p *Peer) reconsider() {
	old := p.oldMembers()
	p.view.Lock()
	defer p.view.Unlock()
	if p.ring != nil && !slices.Equal(old, p.old) {
		p.log.Info("members without hand-over", "members", old)
		p.adopt(old)
	}
}

// oldMembers are those that spoke a version without hand-over when they were last connected.
func (p *Peer) oldMembers() (old []ring.ID) {
	for id, l := range *p.links.Load() {
		if v := l.spoke.Load(); v != 0 && v < handoffVersion {
			old = append(old, id)
		}
	}
	slices.Sort(old)
	return old
}
