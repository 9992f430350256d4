package peer

import (
	"github.com/keyward/keyward/owner"
)

// Decide decides every request by the deadline. Keys of this member are decided here, other requests are forwarded to
// their owners. If an owner cannot be reached in time, the rule's degraded policy decides. If an owner is alive and too
// slow, the request is refused. results must be as long as reqs; afterwards every result has Kind Decided.
//
// At most one member charges a request, with one exception: if the owner is lost after the request was sent, the owner
// and this member's local share may both charge it. This can refuse more requests, and never admits more.
//
// With stop, the requests are all-or-nothing: if one exceeds its limit, the others are not charged. This is exact if
// one member owns all keys. Otherwise all owners first make a dry run, and charge in a second round.
func (p *Peer) Decide(deadline owner.Deadline, stop bool, reqs []owner.Request, results []owner.Result) {
	results = results[:len(reqs)]
	if stop {
		p.decideStop(deadline, reqs, results)
		return
	}
	p.decide(deadline, reqs, results)
}

// Begin is Decide for a caller that does not wait. It returns true if every result is there. Otherwise it calls
// done.Decided once when they are, at the latest a moment after the deadline and perhaps before Begin returns; until
// then the caller must not touch reqs and results. Decided runs on the goroutine that brought the last result, which
// reads the messages of another member, so it must not block.
//
// With stop, a call that is not decided here needs a goroutine, because it may forward to one owner after the other.
// Above maxStopCalls of them, and after Close, the degraded policies decide.
func (p *Peer) Begin(deadline owner.Deadline, stop bool, reqs []owner.Request, results []owner.Result,
	done interface{ Decided() },
) bool {
	results = results[:len(reqs)]
	if stop {
		return p.beginStop(callArgs{deadline, reqs, results, done})
	}
	p.noteDecision()
	mono := p.decisionTime()
	p.o.Node.DecideAll(p.clock.at(mono), false, reqs, results)
	decided := !undecided(results) || p.startCall(mono, callArgs{deadline, reqs, results, done})
	p.requestFlush()
	return decided
}

func (p *Peer) decide(deadline owner.Deadline, reqs []owner.Request, results []owner.Result) {
	s := p.syncWaiters.Get().(syncWaiter)
	if !p.Begin(deadline, false, reqs, results, s) {
		<-s
	}
	p.syncWaiters.Put(s)
}

// syncWaiter is the completion of a call whose caller blocks.
type syncWaiter chan struct{}

func newSyncWaiter() any { return make(syncWaiter, 1) }

// Decided implements completion.
func (s syncWaiter) Decided() { s <- struct{}{} }

// noteDecision records that this member has decided something since the last transfer looked.
func (p *Peer) noteDecision() {
	if !p.decided.Load() { // avoids writes to a shared cache line: it is mostly set
		p.decided.Store(true)
	}
}

func undecided(results []owner.Result) bool {
	for i := range results {
		if results[i].Kind != owner.Decided {
			return true
		}
	}
	return false
}

// startCall gets the results that are not Decided from other members, or later from Node. It returns as Begin does.
func (p *Peer) startCall(mono int64, args callArgs) bool {
	c := p.calls.Get().(*call)
	c.mu.Lock()
	c.start(mono, args)
	for i := range args.results {
		c.dispatch(i, 0)
	}
	return c.advance() != nil
}

// waitForCall is startCall for a caller that blocks.
func (p *Peer) waitForCall(deadline owner.Deadline, reqs []owner.Request, results []owner.Result) {
	s := p.syncWaiters.Get().(syncWaiter)
	if !p.startCall(p.clock.mono(), callArgs{deadline, reqs, results, s}) {
		<-s
	}
	p.syncWaiters.Put(s)
	p.requestFlush()
}

// resultWithoutOwner returns the result at time now of a request whose group ended with status.
func (p *Peer) resultWithoutOwner(now int64, status forwardStatus, q *owner.Request) owner.Result {
	if status != forwardLate && status != forwardShed {
		return p.degrade(now, q)
	}
	r := p.o.Node.Shed(now, q)
	r.Kind, r.Path = owner.Decided, owner.Fallback
	return r
}

// degrade returns the result of the rule's degraded policy at time now.
func (p *Peer) degrade(now int64, q *owner.Request) owner.Result {
	r := p.o.Node.Degrade(now, q)
	r.Kind, r.Path = owner.Decided, owner.Fallback
	return r
}
