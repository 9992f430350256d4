package peer

import (
	"slices"
	"time"

	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// scratch holds the questions of a request as they are put in one of its rounds.
type scratch struct {
	qs       []owner.Request
	statuses []forwardStatus // what became of those that no owner answered in the first round; pending: one did
	status   forwardStatus   // of the one group that has them all
}

func newScratch() any { return new(scratch) }

// decideStop decides a request in stop mode.
func (p *Peer) decideStop(deadline owner.Deadline, qs []owner.Request, as []owner.Result) {
	if !p.takeStopLocally(qs, as) {
		p.finishStop(deadline, qs, as)
	}
}

// takeStopLocally does what can be done here and says whether that is all.
func (p *Peer) takeStopLocally(qs []owner.Request, as []owner.Result) bool {
	p.noteDecision()
	p.o.Node.DecideAll(p.clock.at(p.decisionTime()), true, qs, as)
	p.requestFlush()
	return !undecided(as)
}

// finishStop goes where the answers of takeStopLocally point.
func (p *Peer) finishStop(deadline owner.Deadline, qs []owner.Request, as []owner.Result) {
	defer p.requestFlush()
	if !slices.ContainsFunc(as, isForward) {
		p.waitForCall(deadline, qs, as) // all is charged that will be
		return
	}
	s := p.scratches.Get().(*scratch)
	defer p.scratches.Put(s)
	if slices.ContainsFunc(as, isCached) {
		s.qs = append(s.qs[:0], qs...)
		owner.ApplyStop(s.qs, as)
		p.waitForCall(deadline, s.qs, as)
		return
	}
	for i := range as {
		if as[i].Kind == owner.Pending {
			p.drop(as[i].Ticket)
		}
	}
	if to, one := soleOwner(as); one && to != p.o.Self && len(qs) <= maxRequests {
		switch r := p.forwardStop(deadline, s, to, qs, as); r {
		case forwardOK:
			return
		case forwardNotOwner: // nothing was charged, and the others may name several owners
		default:
			p.degradeStop(r, s, qs, as)
			return
		}
	}
	p.decideRounds(deadline, s, qs, as)
}

func isForward(a owner.Result) bool { return a.Kind == owner.Forward }

func isCached(a owner.Result) bool { return a.Authority == owner.Cached }

// soleOwner is the one member that all questions are to be asked of, if there is one.
func soleOwner(as []owner.Result) (ring.ID, bool) {
	to := as[0].Member
	for i := range as {
		if as[i].Kind != owner.Forward || as[i].Member != to {
			return "", false
		}
	}
	return to, to != ""
}

// forwardStop asks one member for the whole request, which it decides under its own locks.
func (p *Peer) forwardStop(deadline owner.Deadline, s *scratch, to ring.ID, qs []owner.Request, as []owner.Result) forwardStatus {
	done := p.syncWaiters.Get().(syncWaiter)
	c := p.calls.Get().(*call)
	c.mu.Lock()
	c.start(p.clock.mono(), deadline, qs, as, done)
	c.stopStatus = &s.status
	for i := range qs {
		c.addRequest(to, i, 0, c.now)
	}
	if c.advance() == nil {
		<-done
	}
	p.syncWaiters.Put(done)
	return s.status
}

// decideRounds decides a request over several owners in two rounds: whether anything would go over, then the charges.
// Between the two another request may be charged, as between the two commands of envoyproxy/ratelimit. The first round
// has half of the time.
func (p *Peer) decideRounds(deadline owner.Deadline, s *scratch, qs []owner.Request, as []owner.Result) {
	s.dryRunRequests(qs)
	p.decide(owner.Deadline{Silent: half(deadline.Silent), Alive: half(deadline.Alive)}, s.qs, as)
	s.statuses = s.statuses[:0]
	for i := range as {
		s.statuses = append(s.statuses, statusOf(&as[i]))
	}
	s.chargeRequests(qs, as)
	p.o.Node.DecideAll(p.clock.at(p.decisionTime()), false, s.qs, as)
	for i := range as {
		if as[i].Kind == owner.Forward && s.statuses[i] != forwardPending {
			as[i] = p.resultWithoutOwner(s.statuses[i], &s.qs[i]) // its owner would let the rest of the time pass as well
		}
	}
	if undecided(as) {
		p.waitForCall(deadline, s.qs, as)
	}
}

// half is the moment half way to t.
func half(t time.Time) time.Time { return t.Add(-time.Until(t) / 2) }

// statusOf is what became of a question that no owner answered; pending: one did.
func statusOf(a *owner.Result) forwardStatus {
	switch {
	case a.Path != owner.Fallback:
		return forwardPending
	case a.Authority == owner.Shed:
		return forwardLate
	}
	return forwardTimeout
}

// degradeStop is both rounds of a request that r became of, without its owner.
func (p *Peer) degradeStop(r forwardStatus, s *scratch, qs []owner.Request, as []owner.Result) {
	s.dryRunRequests(qs)
	for i := range qs {
		as[i] = p.resultWithoutOwner(r, &s.qs[i])
	}
	s.chargeRequests(qs, as)
	for i := range qs {
		as[i] = p.resultWithoutOwner(r, &s.qs[i])
	}
}

// dryRunRequests makes the questions of the first round: nothing is charged.
func (s *scratch) dryRunRequests(qs []owner.Request) {
	s.qs = append(s.qs[:0], qs...)
	for i := range s.qs {
		if s.qs[i].Op == owner.Take {
			s.qs[i].Op = owner.DryRun
		} else {
			s.qs[i].Op = owner.Read
		}
	}
}

// chargeRequests makes those of the second round from the answers to the first. Only charges stop each other.
func (s *scratch) chargeRequests(qs []owner.Request, as []owner.Result) {
	for i := range qs {
		as[i].Over = as[i].Over && qs[i].Op == owner.Take
	}
	s.qs = append(s.qs[:0], qs...)
	owner.ApplyStop(s.qs, as)
}
