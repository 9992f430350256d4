package peer

import (
	"fmt"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keyward/keyward/owner"
)

// startedCall is a call of Begin and counts the calls of Decided.
type startedCall struct {
	reqs    []owner.Request
	results []owner.Result
	decided atomic.Int32
	all     *sync.WaitGroup
}

func (b *startedCall) Decided() {
	if b.decided.Add(1) == 1 {
		b.all.Done()
	}
}

// start calls Begin with reqs.
func (m *member) start(within time.Duration, stop bool, all *sync.WaitGroup, reqs ...owner.Request) *startedCall {
	b := &startedCall{reqs: reqs, results: make([]owner.Result, len(reqs)), all: all}
	all.Add(1)
	if m.Begin(by(within), stop, b.reqs, b.results, b) {
		b.Decided()
	}
	return b
}

// Whatever happens to a call, Decided is called once, and every result is decided.
func TestBegin(t *testing.T) {
	ms := newCluster(t, 3)
	r := ringOf("m0", "m1", "m2")
	one, two, mine := ownedBy(r, "m1", 1)[0], ownedBy(r, "m2", 1)[0], ownedBy(r, "m0", 1)[0]
	var all sync.WaitGroup
	var begun []*startedCall
	const rounds = 200
	for i := range rounds {
		for _, stop := range []bool{false, true} {
			for _, within := range []time.Duration{patience, -time.Second, time.Millisecond} {
				begun = append(begun, ms[0].start(within, stop, &all, newRequest(one, 10, 1), newRequest(two, 10, 1),
					newRequest(mine, 10, 1)))
				if i == rounds/2 {
					ms[2].Close()
				}
			}
		}
	}
	all.Wait()
	for _, b := range begun {
		for i := range b.results {
			if b.results[i].Kind != owner.Decided {
				t.Fatalf("undecided: %+v", b.results[i])
			}
		}
	}
	ms[0].Close() // nothing arrives after this
	for _, b := range begun {
		if n := b.decided.Load(); n != 1 {
			t.Fatalf("Decided was called %d times", n)
		}
	}
}

// A call that is decided here is complete when Begin returns, and Decided is not called.
func TestBeginHere(t *testing.T) {
	m := newMember(t, "m0").alone()
	for _, stop := range []bool{false, true} {
		b := &startedCall{reqs: []owner.Request{newRequest("here", 10, 1)}, results: make([]owner.Result, 1)}
		if !m.Begin(by(patience), stop, b.reqs, b.results, b) || b.results[0].Kind != owner.Decided ||
			b.decided.Load() != 0 {
			t.Errorf("stop %v: %+v, Decided called %d times", stop, b.results[0], b.decided.Load())
		}
	}
}

// A call that waits for Node ends when Node returns the result, or at the deadline.
func TestBeginWaits(t *testing.T) {
	m, q := loneOwner(t)
	q.Strict = true
	var all sync.WaitGroup
	begun := m.start(50*time.Millisecond, false, &all, q)
	all.Wait()
	if a := begun.results[0]; a.Path != owner.Fallback {
		t.Errorf("%+v", a)
	}
	await(t, "the request not to be pending any more", func() bool { return m.node.Stats(m.Now()).Pending == 0 })
}

// A member that accepts connections and does not read affects only its own keys, and uses no more memory than the
// bounds of its queue. One goroutine begins all calls, and the stalled member must not block it.
func TestStalledMember(t *testing.T) {
	const bytes, rounds = 64 << 10, 200
	block := make(chan struct{})
	stalled := newStub(t, func(conn net.Conn) {
		conn.(*net.TCPConn).SetReadBuffer(4096)
		<-block
	})
	defer close(block)
	bounds := func(o *Options) { o.QueueBytes = bytes }
	ms := []*member{newMember(t, "m0", bounds), newMember(t, "m1", bounds)}
	r := ringOf("m0", "m1", "stub")
	for _, m := range ms {
		m.SetView(viewOf(m.id, r, append(membersOf(ms), announced("stub", stalled.addr))))
	}
	ms[0].awaitOld(t, "stub")
	well := ownedBy(r, "m1", 1)[0]
	var sick []owner.Request
	for _, name := range ownedBy(r, "stub", 32) {
		sick = append(sick, newRequest(name, math.MaxUint32, 1))
	}
	await(t, "the other member to answer", func() bool {
		return ms[0].decideOne(patience, newRequest(well, math.MaxUint32, 1)).Path == owner.Forwarded
	})
	var toWell, toSick sync.WaitGroup
	toStalled := func() {
		ms[0].start(time.Hour, false, &toSick, sick...)
		l := (*ms[0].links.Load())["stub"]
		l.mu.Lock()
		queued := len(l.out)
		l.mu.Unlock()
		if queued > bytes {
			t.Fatalf("%d bytes wait", queued)
		}
	}
	// It is dialed again when it has been silent for too long, and then stalls again.
	await(t, "the stalled member's queue to be full", func() bool {
		for range 500 {
			toStalled()
		}
		return ms[0].forwardCount(forwardQueueFull) > 0
	})
	for range rounds {
		toStalled()
		b := ms[0].start(patience, false, &toWell, newRequest(well, math.MaxUint32, 1))
		toWell.Wait()
		if b.results[0].Path != owner.Forwarded {
			t.Fatalf("another member's key: %+v", b.results[0])
		}
	}
	ms[0].Close()
	toSick.Wait()
}

// Decided may begin the next call, on the goroutine that reads the replies.
func TestBeginFromDecided(t *testing.T) {
	ms := newCluster(t, 2)
	names := ownedBy(ringOf("m0", "m1"), "m1", 8)
	var all sync.WaitGroup
	const calls = 500
	all.Add(len(names) * calls)
	for i, name := range names {
		c := &chain{m: ms[0], left: calls, all: &all, reqs: []owner.Request{newRequest(fmt.Sprint(name),
			math.MaxUint32, 1)}, results: make([]owner.Result, 1)}
		if i%2 == 0 {
			c.stop = true
		}
		c.next()
	}
	all.Wait()
	if n := ms[0].forwardCount(forwardOK); n != float64(len(names)*calls) {
		t.Errorf("%v results, want %d", n, len(names)*calls)
	}
}

// chain begins its next call when the last one is decided.
type chain struct {
	m       *member
	left    int
	stop    bool
	all     *sync.WaitGroup
	reqs    []owner.Request
	results []owner.Result
}

func (c *chain) Decided() {
	c.all.Done()
	c.next()
}

func (c *chain) next() {
	for ; c.left > 0; c.all.Done() {
		c.left--
		if !c.m.Begin(by(patience), c.stop, c.reqs, c.results, c) {
			return
		}
	}
}
