package peer

import (
	"time"

	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// Decide answers every question, by the deadline: from this member's own counts, from the owners of the other keys, or,
// where an owner cannot be reached in time, by the rule's degraded policy. as must be as long as qs, and every answer
// has Kind Decided afterwards. A question is charged by one member at most, unless its owner was lost after the question
// had left: then the owner and this member's share may both be charged, which refuses more and never admits more.
//
// With stop, one question that would go over its limit keeps the others from being charged. That is exact if one
// member owns all keys; else all owners are asked first whether anything would go over, and charged after that.
func (p *Peer) Decide(deadline time.Time, stop bool, qs []owner.Question, as []owner.Answer) {
	as = as[:len(qs)]
	if stop {
		p.decideStop(deadline, qs, as)
		return
	}
	p.decide(deadline, qs, as)
}

func (p *Peer) decide(deadline time.Time, qs []owner.Question, as []owner.Answer) {
	p.decides()
	p.o.Node.TakeAll(p.clock.now(), false, qs, as)
	if undecided(as) {
		p.forward(deadline, qs, as)
	}
	p.nudge()
}

// decides notes that there is a decision to make.
func (p *Peer) decides() {
	if !p.busy.Load() { // mostly it is set already, and is only read
		p.busy.Store(true)
	}
}

func undecided(as []owner.Answer) bool {
	for i := range as {
		if as[i].Kind != owner.Decided {
			return true
		}
	}
	return false
}

// forward gets the answers that are not Decided: from other members, or from Node itself, later.
func (p *Peer) forward(deadline time.Time, qs []owner.Question, as []owner.Answer) {
	c := p.begin(deadline, qs, as)
	for i := range as {
		p.follow(c, i, 0)
	}
	p.send(c, false)
	p.nudge()
	for c.open > 0 && c.wait() {
		p.collect(c)
		p.rest(c)
		p.send(c, false) // what was re-routed
	}
	p.finish(c)
}

// follow goes where the answer to question i points.
func (p *Peer) follow(c *call, i int, hop uint8) {
	switch a := &c.as[i]; a.Kind {
	case owner.Ask:
		p.assign(c, i, a.Member, hop)
	case owner.Wait:
		p.await(c, i, hop)
	}
}

// await expects the answer to question i from Node.
func (p *Peer) await(c *call, i int, hop uint8) {
	ticket := c.as[i].Ticket
	if p.waits.full() || i > int(^uint16(0)) {
		p.m.waits[overflow].Inc()
		p.drop(ticket)
		c.as[i] = p.fallback(&c.qs[i])
		return
	}
	n := c.expect(ticket, i, hop)
	// c.gen is only written by the goroutine we are on.
	if early := p.waits.expect(ticket, c, c.gen, n); early != nil {
		c.resolve(c.gen, n, early)
	}
}

// collect settles what has come.
func (p *Peer) collect(c *call) {
	for g := range c.groups {
		if c.completed(g) {
			p.settle(c, g)
		}
	}
	for n := range c.later {
		if c.arrived(n) {
			p.settleLater(c, n)
		}
	}
}

// settleLater takes answer n, which has come. One that names a member counts as a re-route.
func (p *Peer) settleLater(c *call, n int) {
	w := &c.later[n]
	w.settled = true
	c.open--
	p.m.waits[resolved].Inc()
	i := int(w.index)
	c.as[i] = w.answer
	switch {
	case w.answer.Kind == owner.Decided:
	case w.answer.Kind == owner.Ask && w.hop+1 < maxHops:
		p.assign(c, i, w.answer.Member, w.hop+1)
	default:
		c.as[i] = p.fallback(&c.qs[i])
	}
}

func (p *Peer) begin(deadline time.Time, qs []owner.Question, as []owner.Answer) *call {
	c := p.calls.Get().(*call)
	c.begin(p.clock.mono(), int64(deadline.Sub(p.clock.start)), qs, as)
	return c
}

// assign puts question i into a group for member to, or answers it if there is nobody to ask.
func (p *Peer) assign(c *call, i int, to ring.ID, hop uint8) {
	if to == "" || to == p.o.Self || i > int(^uint16(0)) {
		p.m.questions[unreachable].Inc()
		c.as[i] = p.fallback(&c.qs[i])
		return
	}
	c.add(to, i, hop)
}

// send sends the groups that were assigned since the last time. One that cannot be sent is settled at once.
func (p *Peer) send(c *call, stop bool) {
	links := *p.links.Load()
	for ; c.round < len(c.groups); c.round++ {
		g := c.round
		if r := p.sendGroup(links, c, g, stop); r != pending {
			c.mu.Lock()
			c.groups[g].state = r
			c.mu.Unlock()
			p.settle(c, g)
		}
	}
}

func (p *Peer) sendGroup(links map[ring.ID]*link, c *call, g int, stop bool) result {
	a := &c.groups[g]
	if a.link = links[a.to]; a.link == nil {
		return unreachable
	}
	if a.sent = p.clock.mono(); a.sent >= c.end {
		return timeout // the answer could not be waited for, and the charge would stand
	}
	return a.link.send(c, g, stop)
}

// settle takes the answers of a completed group: it re-routes what was asked of a member that is not the owner,
// and falls back for a group without an answer. Only a definite "not the owner" lets a question be asked again: any
// other failure leaves open whether it was charged.
func (p *Peer) settle(c *call, g int) {
	a := &c.groups[g]
	a.settled = true
	c.open--
	if a.took > 0 {
		p.m.duration.Observe(a.took.Seconds())
	}
	answered := a.state == ok || a.state == notOwner
	if !answered {
		p.m.questions[a.state].Add(float64(len(a.index)))
	}
	// Re-routing appends groups, so a is not used after it.
	index, hop, asked := a.index, a.hop, a.to
	served := 0
	for _, i := range index {
		q, answer := &c.qs[i], &c.as[i]
		switch {
		case !answered:
			*answer = p.fallback(q)
		case answer.Kind == owner.Decided:
			served++
			p.o.Node.Observe(p.clock.now(), q, answer)
		case hop+1 >= maxHops:
			*answer = p.fallback(q)
		default:
			p.reroute(c, int(i), asked, hop+1)
		}
	}
	if answered {
		p.m.questions[ok].Add(float64(served))
		p.m.questions[notOwner].Add(float64(len(index) - served))
	}
}

// maxHops is how often a question is asked at most, because a key may move on while it is looked for. The rests before
// the third and all further times double from leastHop to mostHop, so it is the deadline that ends the search: it takes a
// second and more where the members of a busy machine do not come to adopt a ring.
const (
	maxHops  = 255
	leastHop = time.Millisecond
	mostHop  = 32 * time.Millisecond
)

// hopRest is the rest before a question is asked for the time after hop.
func hopRest(hop uint8) time.Duration { return min(mostHop, leastHop<<min(max(hop, 2)-2, 16)) }

// reroute asks again after a member said that it does not own the key: the owner by the present ring, and if that
// is the same member, the one that it named, which has seen a newer ring.
func (p *Peer) reroute(c *call, i int, asked ring.ID, hop uint8) {
	named := c.as[i].Member
	c.as[i] = p.o.Node.Take(p.clock.now(), &c.qs[i])
	if c.as[i].Kind != owner.Ask {
		p.follow(c, i, hop)
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
	if hop > 1 || to == asked {
		c.rest = max(c.rest, hopRest(hop))
	}
	p.assign(c, i, to, hop)
}

// rest lets a moment pass before a key is looked for again where it was not found.
func (p *Peer) rest(c *call) {
	if d := min(c.rest, time.Duration(c.end-p.clock.mono())); d > 0 {
		pause(p.ctx, d)
	}
	c.rest = 0
}

// finish gives up what has not been answered and returns c to its pool.
func (p *Peer) finish(c *call) {
	p.abandon(c)
	c.finish()
	for g := range c.groups {
		a := &c.groups[g]
		if a.settled {
			continue
		}
		if a.state == pending {
			a.link.withdraw(a.ticket)
			a.state = timeout
		}
		a.hop = maxHops // there is no time left to ask again
		p.settle(c, g)
	}
	c.reset()
	p.calls.Put(c)
}

// resolveTime is how long an answer that Node has given may take to come through.
const resolveTime = 20 * time.Millisecond

// abandon gives up the later answers that have not come. One that cannot be cancelled is on its way and is waited for.
func (p *Peer) abandon(c *call) {
	coming := 0
	for n := range c.later {
		w := &c.later[n]
		if w.settled {
			continue
		}
		w.hop = maxHops // there is no time left to ask again
		if !c.arrived(n) && p.o.Node.Cancel(w.ticket) {
			p.waits.forget(w.ticket)
			p.expire(c, n)
		} else {
			coming++
		}
	}
	if coming == 0 {
		return
	}
	c.timer.Reset(resolveTime)
	for more := true; ; more = c.wait() {
		coming = 0
		for n := range c.later {
			switch w := &c.later[n]; {
			case w.settled:
			case c.arrived(n):
				p.settleLater(c, n)
			case !more:
				p.waits.abandon(w.ticket)
				p.expire(c, n)
			default:
				coming++
			}
		}
		if coming == 0 {
			return
		}
	}
}

func (p *Peer) expire(c *call, n int) {
	w := &c.later[n]
	w.settled = true
	c.open--
	p.m.waits[expired].Inc()
	c.as[w.index] = p.fallback(&c.qs[w.index])
}

// fallback answers by the rule's degraded policy.
func (p *Peer) fallback(q *owner.Question) owner.Answer {
	a := p.o.Node.Degrade(p.clock.now(), q)
	a.Kind, a.Path = owner.Decided, owner.Fallback
	return a
}
