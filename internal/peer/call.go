package peer

import (
	"math"
	"sync"
	"time"

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

	mu      sync.Mutex
	gen     uint64 // guarded by mu, as all below
	done    asker  // nil: the call has ended
	outcome *result
	qs      []owner.Request
	as      []owner.Result
	now     int64 // of the last event; this and the others by the monotonic clock
	end     int64 // when what is open is looked at: what waits for a silent member is given up
	last    int64 // when all that is open is given up
	armed   int64 // when the timer goes off. It is left running when the call ends, which costs less than to stop and start it
	over    bool  // last has passed
	open    int   // groups and later answers that have not been settled
	unsent  int   // groups
	groups  []ask
	later   []later
}

// asker is told once when a call that Begin could not answer at once has ended.
type asker = interface{ Decided() }

// later is an answer that this member's Node gives later.
type later struct {
	ticket  uint64
	index   uint16 // of its question in the call
	hop     uint8  // how often it was asked before
	settled bool
}

// ask is a group of a call's questions on its way to one member.
type ask struct {
	to     ring.ID
	link   *link
	ticket uint64
	index  []uint16 // of its questions in the call
	due    int64    // when it is to be sent, by the monotonic clock, as below
	sent   int64
	took   time.Duration
	stage  stage
	hop    uint8 // how often its questions were asked before
}

type stage uint8

const (
	unsent stage = iota
	sent
	settled
)

func (p *Peer) newCall() any {
	c := &call{p: p, armed: math.MaxInt64}
	c.timer = time.AfterFunc(math.MaxInt64, c.fire)
	c.timer.Stop()
	return c
}

// begin starts a life at now. From here on, all is called with mu held unless it says otherwise.
func (c *call) begin(now int64, d owner.Deadline, qs []owner.Request, as []owner.Result, done asker) {
	start := c.p.clock.start
	c.end = int64(d.Silent.Sub(start))
	c.last = max(c.end, int64(d.Alive.Sub(start)))
	c.qs, c.as, c.now, c.done = qs, as, now, done
}

// add puts question i into a group for member to that leaves at due.
func (c *call) add(to ring.ID, i int, hop uint8, due int64) {
	for g := range c.groups {
		if a := &c.groups[g]; a.stage == unsent && a.to == to && a.hop == hop && len(a.index) < maxQuestions {
			a.index, a.due = append(a.index, uint16(i)), max(a.due, due)
			return
		}
	}
	n := len(c.groups)
	if n < cap(c.groups) {
		c.groups = c.groups[:n+1]
	} else {
		c.groups = append(c.groups, ask{})
	}
	c.groups[n] = ask{to: to, index: append(c.groups[n].index[:0], uint16(i)), hop: hop, due: due}
	c.open++
	c.unsent++
}

// expect appends a later answer and returns its number.
func (c *call) expect(ticket uint64, i int, hop uint8) int {
	c.later = append(c.later, later{ticket: ticket, index: uint16(i), hop: hop})
	c.open++
	return len(c.later) - 1
}

// advance sends what is due and ends the call when nothing is open any more; then it says so. It gives mu back.
func (c *call) advance() (ended asker) {
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
	p.nudge()
}

// arm has the timer go off at the next moment that matters, or before.
func (c *call) arm() {
	at := c.end
	if c.unsent > 0 {
		for g := range c.groups {
			if a := &c.groups[g]; a.stage == unsent {
				at = min(at, a.due)
			}
		}
	}
	if at < c.armed {
		c.armed = at
		c.timer.Reset(time.Duration(at - c.now))
	}
}

// fire is called without mu.
func (c *call) fire() {
	c.mu.Lock()
	c.armed = math.MaxInt64
	if c.done == nil {
		c.mu.Unlock()
		return
	}
	c.now = c.p.clock.mono()
	if c.now >= c.end {
		c.p.expire(c)
	}
	c.proceed()
}

// resolve implements waiter. It is called without mu.
func (c *call) resolve(gen uint64, n int, a *owner.Result) {
	c.mu.Lock()
	if c.gen != gen || c.later[n].settled {
		c.mu.Unlock()
		return
	}
	c.now = c.p.clock.mono()
	c.p.settleLater(c, n, a)
	c.proceed()
}

// fail ends group g of life gen without an answer. It is called without mu.
func (c *call) fail(gen uint64, g int, r result) {
	c.mu.Lock()
	if c.gen != gen || c.groups[g].stage == settled {
		c.mu.Unlock()
		return
	}
	c.now = c.p.clock.mono()
	c.p.settle(c, g, r)
	c.proceed()
}

// answer takes an answer frame that was read at now. An error means that the member does not speak the protocol. It is
// called without mu.
func (c *call) answer(gen uint64, g int, now int64, outcome byte, count int, records []byte) error {
	c.mu.Lock()
	if c.gen != gen || c.groups[g].stage == settled {
		c.mu.Unlock()
		return nil // its caller has given up
	}
	a := &c.groups[g]
	c.now, a.took = max(c.now, now), time.Duration(now-a.sent)
	r, err := c.read(a, outcome, count, records)
	c.p.settle(c, g, r)
	c.proceed()
	return err
}

// read reads the records of an answer frame into the caller's answers.
func (c *call) read(a *ask, outcome byte, count int, records []byte) (result, error) {
	switch {
	case outcome == groupLate:
		return tooLate, nil // its owner says so: it is alive
	case outcome != groupServed:
		return refused, nil
	case count != len(a.index):
		return broken, errTrailing
	}
	r := ok
	for _, i := range a.index {
		record, rest, err := nextRecord(records)
		if err == nil {
			err = parseAnswer(record, &c.as[i])
		}
		if err != nil {
			return broken, err
		}
		if c.as[i].Kind != owner.Decided {
			r = notOwner
		}
		records = rest
	}
	return r, nil
}

// finish ends the life: from here on nobody touches the caller's memory, and the pool holds on to nothing of it.
func (c *call) finish() (done asker) {
	done = c.done
	c.gen++
	for g := range c.groups {
		c.groups[g] = ask{index: c.groups[g].index[:0]}
	}
	c.groups, c.later = c.groups[:0], c.later[:0]
	c.done, c.outcome, c.qs, c.as, c.over, c.open, c.unsent = nil, nil, nil, nil, false, 0, 0
	return done
}
