package peer

import (
	"time"

	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// Decide answers every question, by the deadline: from this member's own counts, or from the owners of the other keys.
// Where an owner cannot be reached in time, the rule's degraded policy answers; where it is alive and too slow, the question
// is refused. as must be as long as qs, and every answer has Kind Decided afterwards. A question is charged by one member at
// most, unless its owner was lost after the question had left: then the owner and this member's share may both be charged,
// which refuses more and never admits more.
//
// With stop, one question that would go over its limit keeps the others from being charged. That is exact if one
// member owns all keys; else all owners are asked first whether anything would go over, and charged after that.
func (p *Peer) Decide(deadline owner.Deadline, stop bool, qs []owner.Request, as []owner.Result) {
	as = as[:len(qs)]
	if stop {
		p.decideStop(deadline, qs, as)
		return
	}
	p.decide(deadline, qs, as)
}

// Begin is Decide for a caller that does not wait: it returns true when every answer is there. Otherwise done.Decided is
// called once, when all are, a moment after the deadline at the latest, and perhaps before Begin returns; until then qs and
// as are not the caller's. Decided runs on the goroutine that brought the last answer, which reads other members'
// answers or messages, so it must not block.
//
// With stop, a request that is not decided here takes a goroutine: it may have to be put to owners one after the other.
func (p *Peer) Begin(deadline owner.Deadline, stop bool, qs []owner.Request, as []owner.Result, done interface{ Decided() }) bool {
	as = as[:len(qs)]
	if stop {
		if p.takeStopLocally(qs, as) {
			return true
		}
		go func() {
			p.finishStop(deadline, qs, as)
			done.Decided()
		}()
		return false
	}
	p.noteDecision()
	mono := p.decisionTime()
	p.o.Node.DecideAll(p.clock.at(mono), false, qs, as)
	there := !undecided(as) || p.startCall(mono, deadline, qs, as, done)
	p.requestFlush()
	return there
}

func (p *Peer) decide(deadline owner.Deadline, qs []owner.Request, as []owner.Result) {
	s := p.syncWaiters.Get().(syncWaiter)
	if !p.Begin(deadline, false, qs, as, s) {
		<-s
	}
	p.syncWaiters.Put(s)
}

// syncWaiter waits for a call to end.
type syncWaiter chan struct{}

func newSyncWaiter() any { return make(syncWaiter, 1) }

// Decided implements asker.
func (s syncWaiter) Decided() { s <- struct{}{} }

// noteDecision notes that there is a decision to make.
func (p *Peer) noteDecision() {
	if !p.decided.Load() { // mostly it is set already, and is only read
		p.decided.Store(true)
	}
}

func undecided(as []owner.Result) bool {
	for i := range as {
		if as[i].Kind != owner.Decided {
			return true
		}
	}
	return false
}

// startCall gets the answers that are not Decided: from other members, or from Node itself, later. It returns as Begin does.
func (p *Peer) startCall(mono int64, deadline owner.Deadline, qs []owner.Request, as []owner.Result, done completion) bool {
	c := p.calls.Get().(*call)
	c.mu.Lock()
	c.start(mono, deadline, qs, as, done)
	for i := range as {
		p.dispatch(c, i, 0)
	}
	return c.advance() != nil
}

// waitForCall is seek for a caller that waits.
func (p *Peer) waitForCall(deadline owner.Deadline, qs []owner.Request, as []owner.Result) {
	s := p.syncWaiters.Get().(syncWaiter)
	if !p.startCall(p.clock.mono(), deadline, qs, as, s) {
		<-s
	}
	p.syncWaiters.Put(s)
	p.requestFlush()
}

// dispatch goes where the answer to question i points.
func (p *Peer) dispatch(c *call, i int, hop uint8) {
	switch a := &c.as[i]; a.Kind {
	case owner.Forward:
		p.addToGroup(c, i, a.Member, hop, c.now)
	case owner.Pending:
		p.awaitLocal(c, i, hop)
	}
}

// awaitLocal expects the answer to question i from Node.
func (p *Peer) awaitLocal(c *call, i int, hop uint8) {
	ticket := c.as[i].Ticket
	if p.waits.full() || i > int(^uint16(0)) {
		p.m.waits[waitOverflow].Inc()
		p.drop(ticket)
		c.as[i] = p.degrade(&c.qs[i])
		return
	}
	n := c.addLocal(ticket, i, hop)
	if early := p.waits.expect(ticket, c, c.gen, n); early != nil {
		p.completeLocal(c, n, early)
	}
}

// completeLocal takes answer n, which has come. One that names a member counts as a re-route.
func (p *Peer) completeLocal(c *call, n int, a *owner.Result) {
	w := &c.local[n]
	w.done = true
	c.open--
	p.m.waits[waitResolved].Inc()
	i, hop := int(w.index), w.attempt
	c.as[i] = *a
	switch {
	case a.Kind == owner.Decided:
	case a.Kind == owner.Forward && !c.expired && hop+1 < maxAttempts:
		p.addToGroup(c, i, a.Member, hop+1, c.now)
	default:
		c.as[i] = p.degrade(&c.qs[i])
	}
}

// addToGroup puts question i into a group for member to that leaves at due, or answers it if there is nobody to ask.
func (p *Peer) addToGroup(c *call, i int, to ring.ID, hop uint8, due int64) {
	if to == "" || to == p.o.Self || i > int(^uint16(0)) {
		p.m.forwarded[forwardUnreachable].Inc()
		c.as[i] = p.degrade(&c.qs[i])
		return
	}
	c.addRequest(to, i, hop, due)
}

// send sends the groups that are due. One that cannot be sent is settled at once.
func (p *Peer) send(c *call) {
	if c.unsent == 0 {
		return
	}
	links := *p.links.Load()
	for g := range c.groups {
		a := &c.groups[g]
		if a.stage != groupUnsent || a.due > c.now {
			continue
		}
		a.stage = groupSent
		c.unsent--
		if r := p.sendGroup(links, c, g); r != forwardPending {
			p.completeGroup(c, g, r)
		}
	}
}

func (p *Peer) sendGroup(links map[ring.ID]*link, c *call, g int) forwardStatus {
	a := &c.groups[g]
	if a.link = links[a.to]; a.link == nil {
		return forwardUnreachable
	}
	if a.sent = c.now; a.sent >= c.giveUpAt {
		return p.timeoutStatus(a.link, c.now) // the answer could not be waited for, and the charge would stand
	}
	return a.link.send(c, g)
}

// completeGroup ends group g, which r became of.
func (p *Peer) completeGroup(c *call, g int, r forwardStatus) {
	a := &c.groups[g]
	a.stage = groupDone
	c.open--
	if a.took > 0 {
		p.m.duration.Observe(a.took.Seconds())
	}
	if c.stopStatus != nil {
		*c.stopStatus = r
	}
	if r == forwardOK || r == forwardNotOwner {
		p.processResults(c, g)
		return
	}
	p.m.forwarded[r].Add(float64(len(a.index)))
	if c.stopStatus != nil {
		return // it is degraded as a whole
	}
	for _, i := range a.index {
		c.as[i] = p.resultWithoutOwner(r, &c.qs[i])
	}
}

// processResults takes the answers of group g and re-routes what was asked of a member that is not the owner. Only a definite "not the
// owner" lets a question be asked again: any other failure leaves open whether it was charged.
func (p *Peer) processResults(c *call, g int) {
	// Re-routing appends groups, so no pointer to this one is kept.
	index, hop, asked := c.groups[g].index, c.groups[g].attempt, c.groups[g].to
	served, now := 0, p.clock.at(c.now)
	for _, i := range index {
		q, answer := &c.qs[i], &c.as[i]
		switch {
		case answer.Kind == owner.Decided:
			served++
			p.o.Node.Observe(now, q, answer)
		case c.stopStatus != nil: // who asked for them all or none sees to it
		case c.expired || hop+1 >= maxAttempts:
			*answer = p.degrade(q)
		default:
			p.reroute(c, int(i), asked, hop+1)
		}
	}
	p.m.forwarded[forwardOK].Add(float64(served))
	if served < len(index) {
		p.m.forwarded[forwardNotOwner].Add(float64(len(index) - served))
	}
}

// maxAttempts is how often a question is asked at most, because a key may move on while it is looked for. The rests before
// the third and all further times double from minRetryDelay to maxRetryDelay, so it is the deadline that ends the search: it takes a
// second and more where the members of a busy machine do not come to adopt a ring.
const (
	maxAttempts   = 255
	minRetryDelay = time.Millisecond
	maxRetryDelay = 32 * time.Millisecond
)

// retryDelay is the rest before a question is asked for the time after hop.
func retryDelay(hop uint8) time.Duration {
	return min(maxRetryDelay, minRetryDelay<<min(max(hop, 2)-2, 16))
}

// reroute asks again after a member said that it does not own the key: the owner by the present ring, and if that
// is the same member, the one that it named, which has seen a newer ring.
func (p *Peer) reroute(c *call, i int, asked ring.ID, hop uint8) {
	named := c.as[i].Member
	c.as[i] = p.o.Node.Decide(p.clock.at(c.now), &c.qs[i])
	if c.as[i].Kind != owner.Forward {
		p.dispatch(c, i, hop)
		return
	}
	to := c.as[i].Member
	switch {
	case to != asked:
	case named == "":
		to = "" // it does not know better, or may not decide now
	case named != p.o.Self:
		to = named
	}
	due := c.now
	if hop > 1 || to == asked {
		due += int64(retryDelay(hop))
	}
	p.addToGroup(c, i, to, hop, due)
}

// resultWithoutOwner answers a question that r became of.
func (p *Peer) resultWithoutOwner(r forwardStatus, q *owner.Request) owner.Result {
	if r != forwardLate && r != forwardShed {
		return p.degrade(q)
	}
	a := p.o.Node.Shed(p.clock.now(), q)
	a.Kind, a.Path = owner.Decided, owner.Fallback
	return a
}

// degrade answers by the rule's degraded policy.
func (p *Peer) degrade(q *owner.Request) owner.Result {
	a := p.o.Node.Degrade(p.clock.now(), q)
	a.Kind, a.Path = owner.Decided, owner.Fallback
	return a
}
