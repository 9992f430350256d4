package peer

import (
	"time"

	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// maxStopCalls bounds the goroutines of all-or-nothing calls that Begin has started.
const maxStopCalls = 8192

// scratch holds the requests of one round of an all-or-nothing call.
type scratch struct {
	reqs     []owner.Request
	statuses []forwardStatus // of the requests in the first round; forwardPending if an owner decided
	status   forwardStatus   // of the one group that has all requests
}

func newScratch() any { return new(scratch) }

// spawnStop runs finishStop on a goroutine of its own. It returns as Begin does: true if there are too many such calls,
// so that the degraded policies have decided.
func (p *Peer) spawnStop(args callArgs) bool {
	status := forwardQueueFull
	if p.stopCalls.Add(1) <= maxStopCalls {
		if p.spawn(func() {
			p.finishStop(args)
			p.stopCalls.Add(-1)
			args.done.Decided()
		}) {
			return false
		}
		status = forwardUnreachable
	}
	p.stopCalls.Add(-1)
	p.m.forwarded[status].Add(float64(len(args.reqs)))
	s := p.scratches.Get().(*scratch)
	defer p.scratches.Put(s)
	p.degradeStop(status, s, args)
	return true
}

// stopKind returns how to continue with an all-or-nothing call whose keys this member does not own.
func (p *Peer) stopKind(whole bool, args *callArgs) callState {
	if _, one := p.soleStopOwner(args); one && !whole || !p.mayBeSet(whole, args) {
		return callStops
	}
	return callSet
}

// soleStopOwner returns the one other member that owns the keys of all requests, if there is one that can decide them
// together.
func (p *Peer) soleStopOwner(args *callArgs) (to ring.ID, one bool) {
	to, one = soleOwner(args.results)
	return to, one && to != p.o.Self && len(args.reqs) <= maxRequests
}

// finishStop decides an all-or-nothing call in stop mode with other members: with one member that owns all keys, else as
// a set, or in two rounds.
func (p *Peer) finishStop(args callArgs) {
	defer p.decisionMade()
	s := p.scratches.Get().(*scratch)
	defer p.scratches.Put(s)
	whole := owner.IsWhole(args.reqs)
	if to, one := p.soleStopOwner(&args); one && !whole {
		switch status := p.forwardStop(s, to, args); status {
		case forwardOK:
			return
		case forwardNotOwner: // nothing was charged, and the results may name several owners
		default:
			p.degradeStop(status, s, args)
			return
		}
	}
	if p.mayBeSet(whole, &args) {
		w := p.syncWaiters.Get().(syncWaiter)
		set := args
		if set.done = w; !p.beginSet(&set) {
			<-w
		}
		p.syncWaiters.Put(w)
		return
	}
	p.decideRounds(s, args)
}

// isForward reports whether another member is to decide. Authority Shed is no such case: Node has charged the request, and
// too many are pending for it to wait.
func isForward(r owner.Result) bool { return r.Kind == owner.Forward && r.Authority != owner.Shed }

func isCached(r owner.Result) bool { return r.Authority == owner.Cached }

// soleOwner returns the member that owns the keys of all requests, if there is one.
func soleOwner(results []owner.Result) (ring.ID, bool) {
	to := results[0].Member
	for i := range results {
		if results[i].Kind != owner.Forward || results[i].Member != to {
			return "", false
		}
	}
	return to, to != ""
}

// forwardStop forwards the whole call to one member, which decides it under its own locks.
func (p *Peer) forwardStop(s *scratch, to ring.ID, args callArgs) forwardStatus {
	w := p.syncWaiters.Get().(syncWaiter)
	args.done = w
	c := p.startCall(p.clock.mono(), &args)
	c.setDeadline(args.deadline)
	c.stopStatus = &s.status
	for i := range args.reqs {
		c.addRequest(to, i, 0, c.now)
	}
	if c.advance() == nil {
		<-w
	}
	p.syncWaiters.Put(w)
	return s.status
}

// decideRounds decides a call with several owners that cannot be a set in two rounds: a dry run, then the charges.
// Between the rounds another call may be charged, as between the two commands of envoyproxy/ratelimit. The first round
// has half of the time.
func (p *Peer) decideRounds(s *scratch, args callArgs) {
	results := args.results
	s.dryRunRequests(args.reqs)
	p.Decide(policy.Deadline{Silent: half(args.deadline.Silent), Alive: half(args.deadline.Alive)}, false, s.reqs, results)
	s.statuses = s.statuses[:0]
	for i := range results {
		s.statuses = append(s.statuses, statusOf(&results[i]))
	}
	s.chargeRequests(args.reqs, results)
	w := p.syncWaiters.Get().(syncWaiter)
	c := p.startCall(p.decisionTime(), &callArgs{args.deadline, s.reqs, results, w})
	now := p.clock.at(c.now)
	p.decideSecondRound(now, owner.IsWhole(args.reqs), s.reqs, results)
	for i := range results {
		if results[i].Kind == owner.Forward && s.statuses[i] != forwardPending {
			// The owner that did not answer in the first round would use up the rest of the time.
			results[i] = p.resultWithoutOwner(now, s.statuses[i], &s.reqs[i])
		}
	}
	if !c.dispatchAll(args.deadline) {
		<-w
	}
	p.syncWaiters.Put(w)
}

// decideSecondRound is Node.DecideAll, which decides a whole call only if this member owns all keys.
func (p *Peer) decideSecondRound(now int64, whole bool, reqs []owner.Request, results []owner.Result) {
	if !whole {
		p.o.Node.DecideAll(now, false, reqs, results)
		return
	}
	for i := range reqs {
		results[i] = p.o.Node.Decide(now, &reqs[i])
	}
}

// half returns the moment half way between now and t.
func half(t time.Time) time.Time { return t.Add(-time.Until(t) / 2) }

// statusOf returns the status of a request that its owner did not decide, or forwardPending if it did.
func statusOf(r *owner.Result) forwardStatus {
	switch {
	case r.Path != owner.Fallback:
		return forwardPending
	case r.Authority == owner.Shed:
		return forwardLate
	}
	return forwardTimeout
}

// degradeStop makes both rounds of a call with the degraded policies, because forwarding it failed with status.
func (p *Peer) degradeStop(status forwardStatus, s *scratch, args callArgs) {
	now := p.clock.now()
	s.dryRunRequests(args.reqs)
	for i := range args.reqs {
		args.results[i] = p.resultWithoutOwner(now, status, &s.reqs[i])
	}
	s.chargeRequests(args.reqs, args.results)
	for i := range args.reqs {
		args.results[i] = p.resultWithoutOwner(now, status, &s.reqs[i])
	}
}

// dryRunRequests sets s.reqs to the requests of the first round, which charges nothing.
func (s *scratch) dryRunRequests(reqs []owner.Request) {
	s.reqs = append(s.reqs[:0], reqs...)
	for i := range s.reqs {
		if charges(&s.reqs[i]) {
			s.reqs[i].Op = owner.DryRun
		} else {
			s.reqs[i].Op = owner.Read
		}
		s.reqs[i].Whole = false // Decide is to decide them one by one
	}
}

// chargeRequests sets s.reqs to the requests of the second round, given the results of the first. Only a charge that
// exceeds its limit prevents other charges.
func (s *scratch) chargeRequests(reqs []owner.Request, results []owner.Result) {
	for i := range reqs {
		results[i].Over = results[i].Over && charges(&reqs[i])
	}
	s.reqs = append(s.reqs[:0], reqs...)
	if !owner.IsWhole(reqs) {
		owner.ApplyStop(s.reqs, results)
		return
	}
	refused := owner.Refused(reqs, results)
	for i := range reqs {
		switch q := &s.reqs[i]; {
		case !charges(q):
		case results[i].Over && (refused || q.Veto != owner.VetoNever):
			q.Op = owner.DryRun
		case refused:
			q.Op = owner.Read
		}
	}
}

// charges reports whether q charges hits, if it has any.
func charges(q *owner.Request) bool { return q.Op == owner.Take || q.Op == owner.Reserve }
