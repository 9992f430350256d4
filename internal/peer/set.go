package peer

import (
	"math/rand/v2"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner"
)

const (
	// setLife is how long owners remember what a set has charged. It is far longer than a reply may take.
	setLife = time.Second
	// releaseTime is how long the first release of a refused set may take before it is repeated.
	releaseTime = 300 * time.Millisecond
)

// set is an all-or-nothing call whose keys several members own. All of them charge their requests at once. If one
// exceeds its limit, the answer does not wait until the others are released, which is repeated while owners remember
// them. A set takes no locks and waits for no other set, so sets cannot block each other; two that race for the last
// hits may both be refused.
type set struct {
	p        *Peer
	args     callArgs
	whole    bool
	reqs     []owner.Request
	holds    []owner.Hold
	statuses []forwardStatus // of requests that no owner has decided; forwardPending of the others
}

// mayBeSet reports whether the requests of args may be charged at once. In stop mode, two requests of one key are each
// checked alone, which a set cannot do; an owner of an older version knows no claims; and static rules and federations
// take nothing back.
func (p *Peer) mayBeSet(whole bool, args *callArgs) bool {
	links := *p.links.Load()
	for i := range args.reqs {
		q := &args.reqs[i]
		if q.Federation != nil || q.Mechanism == policy.Static {
			return false
		}
		if l := links[args.results[i].Member]; l != nil {
			if v := l.lastVersion.Load(); v != 0 && v < membership.ProtocolHolds {
				return false
			}
		}
		for j := 0; j < i && !whole; j++ {
			if args.reqs[j].Key == q.Key {
				return false
			}
		}
	}
	return true
}

// beginSet decides a set. It returns true if it is decided, or calls args.done otherwise.
func (p *Peer) beginSet(args *callArgs) bool {
	defer p.decisionMade()
	n := len(args.reqs)
	s := &set{
		p: p, args: *args, whole: owner.IsWhole(args.reqs), reqs: make([]owner.Request, n), holds: make([]owner.Hold, n),
		statuses: make([]forwardStatus, n),
	}
	copy(s.reqs, args.reqs)
	for i := range s.reqs {
		s.addHold(i)
	}
	c := p.startCall(p.decisionTime(), &callArgs{args.deadline, s.reqs, args.results, s})
	c.set = s
	now := p.clock.at(c.now)
	for i := range s.reqs {
		args.results[i] = p.o.Node.Decide(now, &s.reqs[i])
	}
	if !c.dispatchAll(args.deadline) {
		return false
	}
	s.finish()
	return true
}

// addHold gives request i a claim of the set, unless it makes a hold of its own.
func (s *set) addHold(i int) {
	q := &s.reqs[i]
	if !charges(q) || q.Op == owner.Reserve && q.Hold != nil && q.Hold.Flags&claim.Set == 0 {
		return
	}
	s.holds[i] = owner.Hold{ID: claim.Ident{rand.Uint64(), rand.Uint64()}, TTL: setLife, Flags: claim.Set}
	q.Hold = &s.holds[i]
	if s.whole {
		q.Op = owner.Reserve
		q.Hold.ChargeOver = q.Veto == owner.VetoNever
	}
}

// try decides request i, which no owner has decided, by its degraded policy. It charges nothing before all results are
// known.
func (s *set) try(now int64, i int, status forwardStatus) owner.Result {
	s.statuses[i] = status
	q := s.args.reqs[i]
	if charges(&q) {
		q.Op = owner.DryRun
	}
	return s.p.resultWithoutOwner(now, status, &q)
}

// Decided implements completion.
func (s *set) Decided() {
	s.finish()
	s.args.done.Decided()
}

// finish completes the results.
func (s *set) finish() {
	refused := s.refused()
	for i := range s.reqs {
		q := &s.args.reqs[i]
		switch {
		case !charges(q):
		case s.statuses[i] != forwardPending:
			s.degrade(i, refused)
		case refused:
			s.uncharge(i)
		}
	}
	if refused {
		s.release()
	}
}

func (s *set) refused() bool {
	if s.whole {
		return owner.Refused(s.args.reqs, s.args.results)
	}
	for i := range s.reqs {
		if s.args.results[i].Over && charges(&s.args.reqs[i]) {
			return true
		}
	}
	return false
}

// degrade decides request i, of which only try has a result, by its degraded policy.
func (s *set) degrade(i int, refused bool) {
	q, r := s.args.reqs[i], &s.args.results[i]
	switch {
	case r.Over && s.whole && (refused || q.Veto != owner.VetoNever):
		return // uncharged
	case refused && !r.Over:
		q.Op = owner.Read
	}
	*r = s.p.resultWithoutOwner(s.p.clock.now(), s.statuses[i], &q)
}

// uncharge changes the result of request i, unless it exceeds its limit, to that of a Read.
func (s *set) uncharge(i int) {
	q, r := &s.reqs[i], &s.args.results[i]
	if r.Over {
		return
	}
	r.After, r.Before = r.Before, r.Before-q.Hits
	if r.ReadReset > 0 {
		r.Remaining, r.Reset = r.ReadRemaining, r.ReadReset
		return
	}
	r.Remaining += uint32(min(q.Hits, uint64(q.Rule.Depth()-min(q.Rule.Depth(), r.Remaining))))
}

// release gives back what the owners have charged, or may have.
func (s *set) release() {
	c := &releasing{reqs: make([]owner.Request, 0, len(s.reqs))}
	until := s.p.clock.now() + int64(setLife)
	for i := range s.reqs {
		q := s.reqs[i]
		if q.Hold == nil || !charges(&q) || !s.mayBeCharged(i) {
			continue
		}
		q.Op = owner.Release
		if q.Hold.Flags&claim.Set != 0 {
			q.Hold.Until = until
		}
		c.reqs = append(c.reqs, q)
	}
	if len(c.reqs) == 0 {
		return
	}
	c.results = make([]owner.Result, len(c.reqs))
	at := time.Now().Add(releaseTime)
	s.p.Begin(policy.Deadline{Silent: at, Alive: at}, false, c.reqs, c.results, c)
}

// mayBeCharged reports whether an owner has a claim of request i, or may have one.
func (s *set) mayBeCharged(i int) bool {
	switch s.statuses[i] {
	case forwardPending:
		return s.reqs[i].Hits > 0 && (!s.args.results[i].Over || s.reqs[i].Hold.ChargeOver)
	case forwardTimeout, forwardLate, forwardBroken:
		return s.reqs[i].Hits > 0
	}
	return false
}

// releasing is a call that releases a set. What was not decided has been queued to be repeated.
type releasing struct {
	reqs    []owner.Request
	results []owner.Result
}

// Decided implements completion.
func (*releasing) Decided() {}
