package peer

import (
	"math"
	"sync"
	"time"

	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// call is one Begin. If it needs results from elsewhere, no goroutine waits for them: every event (a reply, the result
// of a request that was pending in Node, the end of a stream, the timer) is handled under mu on the goroutine that
// brings it, and the event that completes the last request calls done. Calls are pooled. A stream's reader may hold a
// call that has ended or already serves another Begin, so its events carry the generation gen that they belong to, and
// events of an earlier one are ignored. A call whose pending request could not be canceled does not return to the pool,
// because its result is still to come.
//
// Lock order: a call's mu, then a link's mu or a lock of Node.
type call struct {
	p     *Peer
	timer *time.Timer // runs fire

	mu         sync.Mutex
	gen        uint64     // guarded by mu, as all below
	done       completion // nil: the call has ended
	stopStatus *forwardStatus
	set        *set // the call is a set's
	reqs       []owner.Request
	results    []owner.Result
	now        int64 // of the last event; this and the other times are of the monotonic clock
	checkAt    int64 // when expire looks at open groups: those of a silent member fail
	giveUpAt   int64 // when all open groups and local results fail
	timerAt    int64 // when the timer fires. It keeps running after the call, which is cheaper than to stop and reset it
	expired    bool  // giveUpAt has passed
	open       int   // groups and local results that are not complete
	unsent     int   // groups
	groups     []forwardGroup
	slots      []slot // one for each request, or more; kept from one generation to the next
	leaked     bool   // a result is still to come
}

// callArgs are the arguments of Begin.
type callArgs struct {
	deadline policy.Deadline
	reqs     []owner.Request
	results  []owner.Result
	done     completion
}

// completion is called once when a call ends that Begin could not decide at once.
type completion = interface{ Decided() }

// slot is the owner.Waiter of one request of a call.
type slot struct {
	call    *call
	index   int
	attempt uint8 // how often the request was forwarded before it became pending
	pending bool  // in Node; guarded by the call's mu
}

// forwardGroup is a group of a call's requests that are forwarded to one member.
type forwardGroup struct {
	to      ring.ID
	link    *link
	id      uint64   // on the link
	index   []uint16 // of its requests in the call
	due     int64    // when to send it, by the monotonic clock
	sent    int64    // when it was sent, by the monotonic clock
	took    time.Duration
	stage   groupStage
	attempt uint8 // how often its requests were forwarded before
}

type groupStage uint8

const (
	groupUnsent groupStage = iota
	groupSent
	groupDone
)

func (p *Peer) newCall() any {
	c := &call{p: p, timerAt: math.MaxInt64}
	c.timer = time.AfterFunc(math.MaxInt64, c.fire)
	c.timer.Stop()
	return c
}

// start begins a new generation at now. It and the methods below are called with mu held unless they state otherwise.
func (c *call) start(now int64, args *callArgs) {
	c.reqs, c.results, c.now, c.done = args.reqs, args.results, now, args.done
	for n := len(c.slots); n < len(c.reqs); n++ {
		c.slots = append(c.slots, slot{call: c, index: n})
	}
	for i := range c.reqs {
		c.reqs[i].Waiter = &c.slots[i]
	}
}

// setDeadline converts d to the monotonic clock. It is called before anything is open.
func (c *call) setDeadline(d policy.Deadline) {
	start := c.p.clock.start
	c.checkAt = int64(d.Silent.Sub(start))
	c.giveUpAt = max(c.checkAt, int64(d.Alive.Sub(start)))
}

// addRequest adds request i to a group for member to that is sent at due.
func (c *call) addRequest(to ring.ID, i int, attempt uint8, due int64) {
	for n := range c.groups {
		g := &c.groups[n]
		if g.stage == groupUnsent && g.to == to && g.attempt == attempt && len(g.index) < maxRequests {
			g.index, g.due = append(g.index, uint16(i)), max(g.due, due)
			return
		}
	}
	n := len(c.groups)
	if n < cap(c.groups) {
		c.groups = c.groups[:n+1]
	} else {
		c.groups = append(c.groups, forwardGroup{})
	}
	c.groups[n] = forwardGroup{to: to, index: append(c.groups[n].index[:0], uint16(i)), attempt: attempt, due: due}
	c.open++
	c.unsent++
}

// advance sends the groups that are due. If nothing is open any more it ends the call and returns its completion, or
// else nil. It unlocks mu.
func (c *call) advance() (ended completion) {
	c.send()
	if c.open > 0 {
		c.arm()
		c.mu.Unlock()
		return nil
	}
	return c.end()
}

// end ends a call in which nothing is open, and returns its completion. It unlocks mu.
func (c *call) end() (ended completion) {
	leaked := c.leaked
	ended = c.finish()
	c.mu.Unlock()
	if !leaked {
		c.p.calls.Put(c)
	}
	return ended
}

// proceed is advance at the end of an event: it calls the completion, if the call has ended, without holding a lock.
func (c *call) proceed() {
	p := c.p
	if ended := c.advance(); ended != nil {
		ended.Decided()
	}
	p.decisionMade()
}

// arm makes the timer fire at the next moment at which there is something to do, or earlier.
func (c *call) arm() {
	at := c.checkAt
	if c.unsent > 0 {
		for n := range c.groups {
			if g := &c.groups[n]; g.stage == groupUnsent {
				at = min(at, g.due)
			}
		}
	}
	if at < c.timerAt {
		c.timerAt = at
		c.timer.Reset(time.Duration(at - c.now))
	}
}

// fire handles the timer. It is called without mu.
func (c *call) fire() {
	c.mu.Lock()
	c.timerAt = math.MaxInt64
	if c.done == nil {
		c.mu.Unlock()
		return
	}
	c.now = c.p.clock.mono()
	if c.now >= c.checkAt {
		c.expire()
	}
	c.proceed()
}

// complete delivers the result of a request that was pending in Node. It is called without mu.
func (w *slot) complete(r *owner.Result) {
	c := w.call
	c.mu.Lock()
	if !w.pending {
		c.mu.Unlock()
		return
	}
	c.now = c.p.clock.mono()
	c.completePending(w, r)
	c.proceed()
}

// failGroup completes group n of generation gen without a reply. It is called without mu.
func (c *call) failGroup(gen uint64, n int, status forwardStatus) {
	c.mu.Lock()
	if c.gen != gen || c.groups[n].stage == groupDone {
		c.mu.Unlock()
		return
	}
	c.now = c.p.clock.mono()
	c.completeGroup(n, status)
	c.proceed()
}

// handleReply handles a reply frame that was read at now. It returns an error if the member violates the protocol. It
// is called without mu.
func (c *call) handleReply(to *sentGroup, now int64, h replyHead, records *wire.Reader) error {
	c.mu.Lock()
	if c.gen != to.gen || c.groups[to.group].stage == groupDone {
		c.mu.Unlock()
		return nil // the caller has given up
	}
	g := &c.groups[to.group]
	c.now, g.took = max(c.now, now), time.Duration(now-g.sent)
	status, err := c.readResults(g, h, records)
	c.completeGroup(to.group, status)
	c.proceed()
	return err
}

// readResults reads the records of a reply into the caller's results.
func (c *call) readResults(g *forwardGroup, h replyHead, records *wire.Reader) (forwardStatus, error) {
	switch {
	case h.outcome == groupLate:
		return forwardLate, nil // the owner replied, so it is alive
	case h.outcome != groupServed:
		return forwardRefused, nil
	case h.count != len(g.index):
		return forwardBroken, errCount
	}
	status := forwardOK
	for _, i := range g.index {
		if err := parseResult(nextRecord(records), &c.results[i]); err != nil {
			return forwardBroken, err
		}
		if c.results[i].Kind != owner.Decided {
			status = forwardNotOwner
		}
	}
	return status, nil
}

// finish ends the generation: from here on nothing touches the caller's memory, and the pooled call refers to none of
// it.
func (c *call) finish() (done completion) {
	done = c.done
	c.gen++
	for n := range c.groups {
		c.groups[n] = forwardGroup{index: c.groups[n].index[:0]}
	}
	c.groups = c.groups[:0]
	c.done, c.stopStatus, c.set, c.reqs, c.results, c.expired, c.open, c.unsent = nil, nil, nil, nil, nil, false, 0, 0
	return done
}
