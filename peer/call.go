package peer

import (
	"math"
	"sync"
	"time"

	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// call is one Decide that needs other members. It is pooled, and a stream's reader may still hold a call that has been
// given up or serves another Decide by now: gen tells, so nothing is ever written to a caller that has gone.
//
// Lock order: a call's mu and a link's mu are never held together.
type call struct {
	wake  chan struct{} // holds one token when a group was completed
	timer *time.Timer

	// The caller's alone.
	qs    []owner.Question
	end   int64         // deadline by the monotonic clock
	rest  time.Duration // before what was re-routed is sent
	round int           // first group that has not been sent
	open  int           // groups that have not been settled

	mu     sync.Mutex
	gen    uint64         // guarded by mu
	as     []owner.Answer // elements of sent groups are guarded by mu until the group is settled
	groups []ask          // the header and state are guarded by mu; only the caller appends
	later  []later        // guarded by mu, but for what is settled; only the caller appends
}

// later is an answer that this member's Node gives later.
type later struct {
	ticket  uint64
	index   uint16 // of its question in the call
	hop     uint8  // how often it was asked before
	there   bool   // answer is
	settled bool
	answer  owner.Answer
}

// ask is a group of a call's questions on its way to one member.
type ask struct {
	to      ring.ID
	link    *link
	ticket  uint64
	index   []uint16 // of its questions in the call
	sent    int64    // by the monotonic clock
	took    time.Duration
	state   result
	hop     uint8 // how often its questions were asked before
	settled bool
}

func newCall() any {
	t := time.NewTimer(math.MaxInt64)
	t.Stop()
	return &call{wake: make(chan struct{}, 1), timer: t}
}

// begin starts a generation at now that ends at end, by the monotonic clock.
func (c *call) begin(now, end int64, qs []owner.Question, as []owner.Answer) {
	c.qs, c.as, c.end, c.rest, c.round, c.open = qs, as, end, 0, 0, 0
	c.timer.Reset(time.Duration(end - now))
}

// add puts question i into this round's group for member to.
func (c *call) add(to ring.ID, i int, hop uint8) {
	for g := c.round; g < len(c.groups); g++ {
		if a := &c.groups[g]; a.to == to && a.hop == hop && len(a.index) < maxQuestions {
			c.groups[g].index = append(c.groups[g].index, uint16(i))
			return
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.groups)
	if n < cap(c.groups) {
		c.groups = c.groups[:n+1]
	} else {
		c.groups = append(c.groups, ask{})
	}
	c.groups[n] = ask{to: to, index: append(c.groups[n].index[:0], uint16(i)), hop: hop}
	c.open++
}

// expect appends a later answer and returns its number.
func (c *call) expect(ticket uint64, i int, hop uint8) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.later = append(c.later, later{ticket: ticket, index: uint16(i), hop: hop})
	c.open++
	return len(c.later) - 1
}

// resolve implements waiter.
func (c *call) resolve(gen uint64, n int, a *owner.Answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gen == gen && !c.later[n].there {
		c.later[n].answer, c.later[n].there = *a, true
		c.signal()
	}
}

// arrived says whether later answer n is there and was not settled yet.
func (c *call) arrived(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.later[n].there && !c.later[n].settled
}

// wait returns true when a group may have been completed, false at the deadline.
func (c *call) wait() bool {
	select {
	case <-c.wake:
		return true
	case <-c.timer.C:
		return false
	}
}

// completed says whether group g has come to an end that was not settled yet.
func (c *call) completed(g int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.groups[g].state != pending && !c.groups[g].settled
}

// fail ends group g of generation gen without an answer.
func (c *call) fail(gen uint64, g int, r result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gen == gen && c.groups[g].state == pending {
		c.groups[g].state = r
		c.signal()
	}
}

// answer reads the records of an answer frame into the caller's answers. An error means that the member does not speak
// the protocol.
func (c *call) answer(gen uint64, g int, now int64, outcome byte, count int, records []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gen != gen || c.groups[g].state != pending {
		return nil
	}
	a := &c.groups[g]
	a.took = time.Duration(now - a.sent)
	defer c.signal()
	switch outcome {
	case groupServed:
	case groupLate:
		a.state = timeout
		return nil
	default:
		a.state = refused
		return nil
	}
	if count != len(a.index) {
		a.state = broken
		return errTrailing
	}
	a.state = ok
	for _, i := range a.index {
		record, rest, err := nextRecord(records)
		if err == nil {
			err = parseAnswer(record, &c.as[i])
		}
		if err != nil {
			a.state = broken
			return err
		}
		if c.as[i].Kind != owner.Decided {
			a.state = notOwner
		}
		records = rest
	}
	return nil
}

// signal is called with mu held, so none comes after the generation has ended.
func (c *call) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// finish ends the generation: from here on nobody but the caller touches the answers.
func (c *call) finish() {
	c.mu.Lock()
	c.gen++
	c.mu.Unlock()
	c.timer.Stop()
	select {
	case <-c.wake:
	default:
	}
}

// reset forgets the caller, so that the pool holds on to nothing of it.
func (c *call) reset() {
	for g := range c.groups {
		c.groups[g] = ask{index: c.groups[g].index[:0]}
	}
	clear(c.later)
	c.groups, c.later, c.qs, c.as = c.groups[:0], c.later[:0], nil, nil
}
