package peer

import (
	"slices"
	"time"

	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// scratch holds the questions of a request as they are put in one of its rounds.
type scratch struct {
	qs      []owner.Request
	lost    []result // what became of those that no owner answered in the first round; pending: one did
	outcome result   // of the one group that has them all
}

func newScratch() any { return new(scratch) }

// decideStop decides a request in stop mode.
func (p *Peer) decideStop(deadline owner.Deadline, qs []owner.Request, as []owner.Result) {
	if !p.takeStop(qs, as) {
		p.followStop(deadline, qs, as)
	}
}

// takeStop does what can be done here and says whether that is all.
func (p *Peer) takeStop(qs []owner.Request, as []owner.Result) bool {
	p.decides()
	p.o.Node.DecideAll(p.clock.at(p.awake()), true, qs, as)
	p.nudge()
	return !undecided(as)
}

// followStop goes where the answers of takeStop point.
func (p *Peer) followStop(deadline owner.Deadline, qs []owner.Request, as []owner.Result) {
	defer p.nudge()
	if !slices.ContainsFunc(as, asks) {
		p.forward(deadline, qs, as) // all is charged that will be
		return
	}
	s := p.scratches.Get().(*scratch)
	defer p.scratches.Put(s)
	if slices.ContainsFunc(as, cached) {
		s.qs = append(s.qs[:0], qs...)
		owner.ApplyStop(s.qs, as)
		p.forward(deadline, s.qs, as)
		return
	}
	for i := range as {
		if as[i].Kind == owner.Pending {
			p.drop(as[i].Ticket)
		}
	}
	if to, one := soleOwner(as); one && to != p.o.Self && len(qs) <= maxQuestions {
		switch r := p.askStop(deadline, s, to, qs, as); r {
		case ok:
			return
		case notOwner: // nothing was charged, and the others may name several owners
		default:
			p.degradeStop(r, s, qs, as)
			return
		}
	}
	p.decideRounds(deadline, s, qs, as)
}

func asks(a owner.Result) bool { return a.Kind == owner.Forward }

func cached(a owner.Result) bool { return a.Authority == owner.Cached }

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

// askStop asks one member for the whole request, which it decides under its own locks.
func (p *Peer) askStop(deadline owner.Deadline, s *scratch, to ring.ID, qs []owner.Request, as []owner.Result) result {
	done := p.sleepers.Get().(sleeper)
	c := p.calls.Get().(*call)
	c.mu.Lock()
	c.begin(p.clock.mono(), deadline, qs, as, done)
	c.outcome = &s.outcome
	for i := range qs {
		c.add(to, i, 0, c.now)
	}
	if c.advance() == nil {
		<-done
	}
	p.sleepers.Put(done)
	return s.outcome
}

// decideRounds decides a request over several owners in two rounds: whether anything would go over, then the charges.
// Between the two another request may be charged, as between the two commands of envoyproxy/ratelimit. The first round
// has half of the time.
func (p *Peer) decideRounds(deadline owner.Deadline, s *scratch, qs []owner.Request, as []owner.Result) {
	s.first(qs)
	p.decide(owner.Deadline{Silent: half(deadline.Silent), Alive: half(deadline.Alive)}, s.qs, as)
	s.lost = s.lost[:0]
	for i := range as {
		s.lost = append(s.lost, became(&as[i]))
	}
	s.second(qs, as)
	p.o.Node.DecideAll(p.clock.at(p.awake()), false, s.qs, as)
	for i := range as {
		if as[i].Kind == owner.Forward && s.lost[i] != pending {
			as[i] = p.without(s.lost[i], &s.qs[i]) // its owner would let the rest of the time pass as well
		}
	}
	if undecided(as) {
		p.forward(deadline, s.qs, as)
	}
}

// half is the moment half way to t.
func half(t time.Time) time.Time { return t.Add(-time.Until(t) / 2) }

// became is what became of a question that no owner answered; pending: one did.
func became(a *owner.Result) result {
	switch {
	case a.Path != owner.Fallback:
		return pending
	case a.Authority == owner.Shed:
		return tooLate
	}
	return timeout
}

// degradeStop is both rounds of a request that r became of, without its owner.
func (p *Peer) degradeStop(r result, s *scratch, qs []owner.Request, as []owner.Result) {
	s.first(qs)
	for i := range qs {
		as[i] = p.without(r, &s.qs[i])
	}
	s.second(qs, as)
	for i := range qs {
		as[i] = p.without(r, &s.qs[i])
	}
}

// first makes the questions of the first round: nothing is charged.
func (s *scratch) first(qs []owner.Request) {
	s.qs = append(s.qs[:0], qs...)
	for i := range s.qs {
		if s.qs[i].Op == owner.Take {
			s.qs[i].Op = owner.DryRun
		} else {
			s.qs[i].Op = owner.Read
		}
	}
}

// second makes those of the second round from the answers to the first. Only charges stop each other.
func (s *scratch) second(qs []owner.Request, as []owner.Result) {
	for i := range qs {
		as[i].Over = as[i].Over && qs[i].Op == owner.Take
	}
	s.qs = append(s.qs[:0], qs...)
	owner.ApplyStop(s.qs, as)
}
