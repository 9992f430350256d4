package peer

import (
	"slices"

	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner"
)

// Decide decides every request by the deadline. Keys of this member are decided here, other requests are forwarded to
// their owners. If an owner cannot be reached in time, the rule's degraded policy decides. If an owner is alive and too
// slow, the request is refused. results must be as long as reqs; afterwards every result has Kind Decided.
//
// At most one member charges a request, with one exception: if the owner is lost after the request was sent, the owner
// and this member's local share may both charge it. This can refuse more requests, and never admits more. If the owner
// was only silent, its late reply corrects the charge: see doubt.
//
// With stop, the requests are all-or-nothing: if one exceeds its limit, the others are not charged. Of a call that is
// whole (owner.IsWhole), nothing at all is charged. If several members own the keys, all of them charge at once, and what
// they have charged is given back if the call is refused; see set.
func (p *Peer) Decide(deadline policy.Deadline, stop bool, reqs []owner.Request, results []owner.Result) {
	s := p.syncWaiters.Get().(syncWaiter)
	args := callArgs{deadline, reqs, results[:len(reqs)], s}
	switch p.begin(stop, &args) {
	case callOpen:
		<-s
	case callStops:
		p.finishStop(args)
	case callSet:
		if !p.beginSet(&args) {
			<-s
		}
	}
	p.syncWaiters.Put(s)
}

// Begin is Decide for a caller that does not wait. It returns true if every result is there. Otherwise it calls
// done.Decided once when they are, at the latest a moment after the deadline and perhaps before Begin returns; until
// then the caller must not touch reqs and results. Decided runs on the goroutine that brought the last result, which
// reads the messages of another member, so it must not block.
//
// With stop, a call whose keys another member owns needs a goroutine, because it may forward to one owner after the
// other. Above maxStopCalls of them, and after Close, the degraded policies decide.
func (p *Peer) Begin(deadline policy.Deadline, stop bool, reqs []owner.Request, results []owner.Result,
	done interface{ Decided() },
) bool {
	args := callArgs{deadline, reqs, results[:len(reqs)], done}
	switch p.begin(stop, &args) {
	case callOpen:
		return false
	case callStops:
		return p.spawnStop(args)
	case callSet:
		return p.beginSet(&args)
	}
	return true
}

// callState is the state in which begin leaves a call.
type callState uint8

const (
	callDecided callState = iota
	callOpen              // done will be called
	callSet               // beginSet has to decide it
	callStops             // finishStop has to decide it
)

// begin decides what this member decides and forwards the rest, except an all-or-nothing call with keys of other
// members.
func (p *Peer) begin(stop bool, args *callArgs) callState {
	defer p.decisionMade()
	c := p.startCall(p.decisionTime(), args)
	p.o.Node.DecideAll(p.clock.at(c.now), stop, args.reqs, args.results)
	if whole := owner.IsWhole(args.reqs); (stop || whole) && slices.ContainsFunc(args.results, isForward) {
		if !slices.ContainsFunc(args.results, isCached) { // nothing was charged, and nothing is pending
			c.end()
			return p.stopKind(whole, args)
		}
		c.reqs = slices.Clone(args.reqs) // the caller's are not to be changed
		owner.ApplyStop(c.reqs, args.results)
	}
	if !slices.ContainsFunc(args.results, isOpen) { // the most frequent case
		c.end()
		return callDecided
	}
	if c.dispatchAll(args.deadline) {
		return callDecided
	}
	return callOpen
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

// startCall returns a call that is locked.
func (p *Peer) startCall(mono int64, args *callArgs) *call {
	p.noteDecision()
	c := p.calls.Get().(*call)
	c.mu.Lock()
	c.start(mono, args)
	return c
}

// resultWithoutOwner returns the result at time now of a request whose group ended with status.
func (p *Peer) resultWithoutOwner(now int64, status forwardStatus, q *owner.Request) owner.Result {
	if status != forwardLate && status != forwardShed || q.Op.Settles() {
		return p.degrade(now, q)
	}
	r := p.o.Node.Shed(now, q)
	r.Kind, r.Path = owner.Decided, owner.Fallback
	return r
}

// degrade returns the result of the rule's degraded policy at time now.
func (p *Peer) degrade(now int64, q *owner.Request) owner.Result {
	if q.Op.Settles() {
		p.settles.add(now, q)
	}
	r := p.o.Node.Degrade(now, q)
	r.Kind, r.Path = owner.Decided, owner.Fallback
	return r
}
