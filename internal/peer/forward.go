package peer

import (
	"math"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// All methods of call in this file are called with mu held.

// dispatchAll forwards the requests that Node does not decide, and unlocks c. It reports whether all requests are
// decided.
func (c *call) dispatchAll(d policy.Deadline) bool {
	first := slices.IndexFunc(c.results, isOpen)
	if first >= 0 {
		c.setDeadline(d)
		for i := first; i < len(c.results); i++ {
			c.dispatch(i, 0)
		}
	}
	return c.advance() != nil
}

// isOpen reports whether Node has not decided the request.
func isOpen(r owner.Result) bool { return r.Kind != owner.Decided }

// dispatch forwards request i, or waits for Node, as its result demands.
func (c *call) dispatch(i int, attempt uint8) {
	switch r := &c.results[i]; r.Kind {
	case owner.Forward:
		if r.Authority == owner.Shed {
			c.p.m.waits[waitOverflow].Inc()
		}
		c.forward(i, r.Member, attempt, c.now)
	case owner.Pending:
		c.slots[i].pending, c.slots[i].attempt = true, attempt
		c.open++
	}
}

// completePending stores the result of a request that was pending. A result that names another member counts as one
// more attempt.
func (c *call) completePending(w *slot, r *owner.Result) {
	w.pending = false
	c.open--
	c.p.m.waits[waitResolved].Inc()
	i, attempt := w.index, w.attempt
	c.results[i] = *r
	switch {
	case r.Kind == owner.Decided:
	case r.Kind == owner.Forward && !c.expired && attempt+1 < maxAttempts:
		c.forward(i, r.Member, attempt+1, c.now)
	default:
		c.degrade(i)
	}
}

// forward adds request i to a group for member to that is sent at due. If there is no such member, the request is
// degraded.
func (c *call) forward(i int, to ring.ID, attempt uint8, due int64) {
	if to == "" || to == c.p.o.Self || i > math.MaxUint16 {
		c.p.m.forwarded[forwardUnreachable].Inc()
		c.decideWithoutOwner(i, forwardUnreachable)
		return
	}
	c.addRequest(to, i, attempt, due)
}

// degrade decides request i by its degraded policy.
func (c *call) degrade(i int) { c.decideWithoutOwner(i, forwardTimeout) }

// decideWithoutOwner decides request i, which no owner has decided because of status.
func (c *call) decideWithoutOwner(i int, status forwardStatus) {
	now := c.p.clock.at(c.now)
	if c.set != nil {
		c.results[i] = c.set.try(now, i, status)
		return
	}
	c.results[i] = c.p.resultWithoutOwner(now, status, &c.reqs[i])
}

// send sends the groups that are due. A group that cannot be sent is completed at once.
func (c *call) send() {
	if c.unsent == 0 {
		return
	}
	links := *c.p.links.Load()
	for n := range c.groups {
		g := &c.groups[n]
		if g.stage != groupUnsent || g.due > c.now {
			continue
		}
		g.stage = groupSent
		c.unsent--
		g.link = links[g.to]
		if status := c.sendGroup(n); status != forwardPending {
			c.completeGroup(n, status)
		}
	}
}

func (c *call) sendGroup(n int) forwardStatus {
	g := &c.groups[n]
	if g.link == nil {
		return forwardUnreachable
	}
	if g.sent = c.now; g.sent >= c.giveUpAt {
		return g.link.timeoutStatus(c.now) // the owner would charge requests for which no caller waits
	}
	return g.link.send(c, n)
}

// completeGroup ends group n with status.
func (c *call) completeGroup(n int, status forwardStatus) {
	g := &c.groups[n]
	g.stage = groupDone
	c.open--
	if g.took > 0 {
		c.p.m.duration.Observe(g.took.Seconds())
	}
	if c.stopStatus != nil {
		*c.stopStatus = status
	}
	if status == forwardOK || status == forwardNotOwner {
		c.processResults(n)
		return
	}
	c.p.m.forwarded[status].Add(float64(len(g.index)))
	if c.stopStatus != nil {
		return // finishStop decides for all requests together
	}
	for _, i := range g.index {
		c.decideWithoutOwner(int(i), status)
	}
}

// processResults handles the results of group n and forwards again the requests whose receiver is not the owner. Only
// that result permits another attempt: after any other failure the request may have been charged.
func (c *call) processResults(n int) {
	// reroute appends groups, so this function keeps no pointer to this one.
	index, attempt, asked := c.groups[n].index, c.groups[n].attempt, c.groups[n].to
	served, now := 0, c.p.clock.at(c.now)
	for _, i := range index {
		q, r := &c.reqs[i], &c.results[i]
		switch {
		case r.Kind == owner.Decided:
			served++
			c.p.o.Node.Observe(now, q, r)
		case c.stopStatus != nil: // finishStop forwards all requests together
		case c.expired || attempt+1 >= maxAttempts:
			c.degrade(int(i))
		default:
			c.reroute(int(i), asked, attempt+1)
		}
	}
	c.p.m.forwarded[forwardOK].Add(float64(served))
	if served < len(index) {
		c.p.m.forwarded[forwardNotOwner].Add(float64(len(index) - served))
	}
}

// A request is forwarded at most maxAttempts times, because the owner may change meanwhile. The delays before the third
// and all later attempts double from minRetryDelay to maxRetryDelay, so in practice the deadline ends the search:
// members of a busy machine may need more than a second to adopt a ring.
const (
	maxAttempts   = 255
	minRetryDelay = time.Millisecond
	maxRetryDelay = 32 * time.Millisecond
)

// retryDelay returns the delay before a request is forwarded that was forwarded attempt times before.
func retryDelay(attempt uint8) time.Duration {
	return min(maxRetryDelay, minRetryDelay<<min(max(attempt, 2)-2, 16))
}

// reroute forwards request i again after member asked reported that it does not own the key. It prefers the owner by
// the current ring. If this is asked itself, the member that asked has named is next: asked may have a newer ring.
func (c *call) reroute(i int, asked ring.ID, attempt uint8) {
	named := c.results[i].Member
	c.results[i] = c.p.o.Node.Decide(c.p.clock.at(c.now), &c.reqs[i])
	if c.results[i].Kind != owner.Forward {
		c.dispatch(i, attempt)
		return
	}
	to := c.results[i].Member
	switch {
	case to != asked:
	case named == "":
		to = "" // asked has no other ring, or may not decide now
	case named != c.p.o.Self:
		to = named
	}
	due := c.now
	if attempt > 1 || to == asked {
		due += int64(retryDelay(attempt))
	}
	c.forward(i, to, attempt, due)
}
