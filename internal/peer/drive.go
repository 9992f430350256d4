package peer

import (
	"math"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner"
)

// Apply does what a call of a method of Node requires that p has not made itself.
func (p *Peer) Apply(e owner.Ready) { p.apply(e) }

// StepFederation passes the replies of a coordinator to Node; see there.
func (p *Peer) StepFederation(authority uint32, took time.Duration, gs []federation.PoolGrant, failed bool) {
	p.apply(p.o.Node.StepFederation(p.clock.now(), authority, took, gs, failed))
}

// apply does what Node requires. All messages to a member, also replies, leave on this member's own link to it, so one
// queue bounds them and keeps their order.
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
	p.reportAudits(e.Audits, e.LostAudits)
	if len(e.Budgets) > 0 {
		p.o.OnBudgets(e.Budgets)
	}
	if len(e.PoolRequests) > 0 {
		p.o.OnPoolRequests(e.PoolRequests)
	}
	for i := range e.PoolsDone {
		e.PoolsDone[i].Waiter.(poolWaiter).CompletePool(&e.PoolsDone[i])
	}
	if e.ClockStopped > 0 {
		p.reportStoppedClocks(e.ClockStopped)
	}
	for i := range e.Done {
		e.Done[i].Waiter.(waiter).complete(&e.Done[i].Result)
	}
	p.startTransfers(e.Transfers)
	if e.ProgressChanged {
		wake(p.progressChanged)
	}
	p.requestFlush(e.FlushIn)
	if p.o.OnDecided != nil {
		p.o.OnDecided()
	}
}

// reportAudits passes on events of keys with audit logs, before which lost ones found no room.
func (p *Peer) reportAudits(audits []owner.Audit, lost uint64) {
	if lost > 0 {
		p.o.OnLostAudits(lost)
	}
	for i := range audits {
		p.o.OnAudit(&audits[i])
	}
}

// waiter is the owner.Waiter of a request: a slot of a call, or of a group that was served.
type waiter interface {
	// complete delivers the result. It is called at most once, without locks.
	complete(r *owner.Result)
}

// heartbeats returns how many heartbeats to the same member out begins with.
func heartbeats(out []protocol.Outbound) (n int) {
	for n < len(out) && out[n].To == out[0].To && isHeartbeat(out[n].Msg.Kind) {
		n++
	}
	return n
}

func isHeartbeat(k protocol.MessageKind) bool { return k == protocol.Ping || k == protocol.Pong }

// sendMsg queues m on l or drops it. Node repeats every message that has no effect.
func (p *Peer) sendMsg(l *link, m *protocol.Message) {
	status := forwardUnreachable
	if l != nil {
		status = l.enqueue(m)
	}
	if m.Kind == protocol.Replica {
		p.m.replicas(status).Inc()
	}
	if m.Kind == protocol.OwnershipReply && m.Status == protocol.KeyGiven && status == forwardPending {
		p.m.keysSent.Add(float64(len(m.Counters)))
	}
}

// requestFlush wakes flushLoop if it would wait for longer than in, which Node has returned.
func (p *Peer) requestFlush(in time.Duration) {
	if in < math.MaxInt64 && int64(in) < p.flushWait.Load() {
		wake(p.flushNeeded)
	}
}

// decisionMade wakes flushLoop if a decision left something to flush. It is cheap if none did.
func (p *Peer) decisionMade() {
	p.requestFlush(p.o.Node.FlushIn())
	if p.o.OnDecided != nil {
		p.o.OnDecided()
	}
}

// wake puts a token into c unless it has one.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// flushLoop flushes Node whenever FlushIn requires it.
func (p *Peer) flushLoop() {
	t := time.NewTimer(0)
	defer t.Stop()
	for n := p.o.Node; p.ctx.Err() == nil; {
		in := n.FlushIn()
		p.flushWait.Store(int64(in))
		if n.FlushIn() < in {
			continue // requestFlush may have compared with the previous flushWait
		}
		if in > 0 {
			t.Reset(in)
			select {
			case <-t.C:
			case <-p.flushNeeded:
				continue
			case <-p.ctx.Done():
				return
			}
		}
		p.apply(n.Flush(p.clock.now()))
	}
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
			if mono-checked >= int64(p.o.Detection.Heartbeat()-p.o.TickEvery/2) {
				checked = mono
				p.checkKeepalives()
			}
		case <-p.ctx.Done():
			return
		}
	}
}

func (p *Peer) tick() {
	p.revokeOnClockJump()
	p.applyInline(p.o.Node.Tick(p.clock.now()))
	p.repeatSettles()
	p.tickCallers()
	p.updateOldMembers()
}
