package peer

import (
	"math"
	"sync"
	"time"

	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// call is one Begin that needs answers from elsewhere. No goroutine waits for it: whatever happens to it, be it an answer,
// the end of a stream or a moment that it set its timer to, takes it on under its mu, on the goroutine that brings it, and
// what settles its last answer tells done. It is pooled, and a stream's reader may still hold a call that has ended or
// serves another Begin by now: gen tells, so nothing is ever written to a caller that has gone.
//
// Lock order: a call's mu, then a link's, a shard's of waits or a lock of Node.
type call struct {
	p     *Peer
	timer *time.Timer // runs fire

	mu         sync.Mutex
	gen        uint64     // guarded by mu, as all below
	done       completion // nil: the call has ended
	stopStatus *forwardStatus
	qs         []owner.Request
	as         []owner.Result
	now        int64 // of the last event; this and the others by the monotonic clock
	checkAt    int64 // when what is open is looked at: what waits for a silent member is given up
	giveUpAt   int64 // when all that is open is given up
	timerAt    int64 // when the timer goes off. It is left running when the call ends, which costs less than to stop and start it
	expired    bool  // last has passed
	open       int   // groups and later answers that have not been settled
	unsent     int   // groups
	groups     []forwardGroup
	local      []localPending
}

// completion is told once when a call that Begin could not answer at once has ended.
type completion = interface{ Decided() }

// localPending is an answer that this member's Node gives later.
type localPending struct {
	ticket  uint64
	index   uint16 // of its question in the call
	attempt uint8  // how often it was asked before
	done    bool
}

// forwardGroup is a group of a call's questions on its way to one member.
type forwardGroup struct {
	to      ring.ID
	link    *link
	id      uint64
	index   []uint16 // of its questions in the call
	due     int64    // when it is to be sent, by the monotonic clock, as below
	sent    int64
	took    time.Duration
	stage   groupStage
	attempt uint8 // how often its questions were asked before
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

// start starts a life at now. From here on, all is called with mu held unless it says otherwise.
func (c *call) start(now int64, d owner.Deadline, qs []owner.Request, as []owner.Result, done completion) {
	start := c.p.clock.start
	c.checkAt = int64(d.Silent.Sub(start))
	c.giveUpAt = max(c.checkAt, int64(d.Alive.Sub(start)))
	c.qs, c.as, c.now, c.done = qs, as, now, done
}

// addRequest puts question i into a group for member to that leaves at due.
func (c *call) addRequest(to ring.ID, i int, hop uint8, due int64) {
	for g := range c.groups {
		if a := &c.groups[g]; a.stage == groupUnsent && a.to == to && a.attempt == hop && len(a.index) < maxRequests {
			a.index, a.due = append(a.index, uint16(i)), max(a.due, due)
			return
		}
	}
	n := len(c.groups)
	if n < cap(c.groups) {
		c.groups = c.groups[:n+1]
	} else {
		c.groups = append(c.groups, forwardGroup{})
	}
	c.groups[n] = forwardGroup{to: to, index: append(c.groups[n].index[:0], uint16(i)), attempt: hop, due: due}
	c.open++
	c.unsent++
}

// addLocal appends a later answer and returns its number.
func (c *call) addLocal(ticket uint64, i int, hop uint8) int {
	c.local = append(c.local, localPending{ticket: ticket, index: uint16(i), attempt: hop})
	c.open++
	return len(c.local) - 1
}

// advance sends what is due and ends the call when nothing is open any more; then it says so. It gives mu back.
func (c *call) advance() (ended completion) {
	c.p.send(c)
	if c.open > 0 {
		c.arm()
		c.mu.Unlock()
		return nil
	}
	ended = c.finish()
	c.mu.Unlock()
	c.p.calls.Put(c)
	return ended
}

// proceed ends an event: it is advance, and tells whoever waits. It holds no lock then.
func (c *call) proceed() {
	p := c.p
	if ended := c.advance(); ended != nil {
		ended.Decided()
	}
	p.requestFlush()
}

// arm has the timer go off at the next moment that matters, or before.
func (c *call) arm() {
	at := c.checkAt
	if c.unsent > 0 {
		for g := range c.groups {
			if a := &c.groups[g]; a.stage == groupUnsent {
				at = min(at, a.due)
			}
		}
	}
	if at < c.timerAt {
		c.timerAt = at
		c.timer.Reset(time.Duration(at - c.now))
	}
}

// fire is called without mu.
func (c *call) fire() {
	c.mu.Lock()
	c.timerAt = math.MaxInt64
	if c.done == nil {
		c.mu.Unlock()
		return
	}
	c.now = c.p.clock.mono()
	if c.now >= c.checkAt {
		c.p.expire(c)
	}
	c.proceed()
}

// resolve implements waiter. It is called without mu.
func (c *call) resolve(gen uint64, n int, a *owner.Result) {
	c.mu.Lock()
	if c.gen != gen || c.local[n].done {
		c.mu.Unlock()
		return
	}
	c.now = c.p.clock.mono()
	c.p.completeLocal(c, n, a)
	c.proceed()
}

// failGroup ends group g of life gen without an answer. It is called without mu.
func (c *call) failGroup(gen uint64, g int, r forwardStatus) {
	c.mu.Lock()
	if c.gen != gen || c.groups[g].stage == groupDone {
		c.mu.Unlock()
		return
	}
	c.now = c.p.clock.mono()
	c.p.completeGroup(c, g, r)
	c.proceed()
}

// handleReply takes an answer frame that was read at now. An error means that the member does not speak the protocol. It is
// called without mu.
func (c *call) handleReply(to sentGroup, now int64, h replyHead, records wire.Reader) error {
	gen, g := to.gen, to.group
	c.mu.Lock()
	if c.gen != gen || c.groups[g].stage == groupDone {
		c.mu.Unlock()
		return nil // its caller has given up
	}
	a := &c.groups[g]
	c.now, a.took = max(c.now, now), time.Duration(now-a.sent)
	r, err := c.readResults(a, h, records)
	c.p.completeGroup(c, g, r)
	c.proceed()
	return err
}

// readResults reads the records of an answer frame into the caller's answers.
func (c *call) readResults(a *forwardGroup, h replyHead, records wire.Reader) (forwardStatus, error) {
	switch {
	case h.outcome == groupLate:
		return forwardLate, nil // its owner says so: it is alive
	case h.outcome != groupServed:
		return forwardRefused, nil
	case h.count != len(a.index):
		return forwardBroken, errCount
	}
	r := forwardOK
	for _, i := range a.index {
		if err := parseResult(nextRecord(&records), &c.as[i]); err != nil {
			return forwardBroken, err
		}
		if c.as[i].Kind != owner.Decided {
			r = forwardNotOwner
		}
	}
	return r, nil
}

// finish ends the life: from here on nobody touches the caller's memory, and the pool holds on to nothing of it.
func (c *call) finish() (done completion) {
	done = c.done
	c.gen++
	for g := range c.groups {
		c.groups[g] = forwardGroup{index: c.groups[g].index[:0]}
	}
	c.groups, c.local = c.groups[:0], c.local[:0]
	c.done, c.stopStatus, c.qs, c.as, c.expired, c.open, c.unsent = nil, nil, nil, nil, false, 0, 0
	return done
}
