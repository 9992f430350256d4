package connguard

import (
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// The cost of a connection is measured in bytes that it has sent. Expensive input counts as more bytes.
const (
	readCost      = 256       // per read, in addition to its bytes
	callCredit    = 2 << 10   // per complete call: more than an ordinary call costs in addition to its message
	initialCredit = 8 << 10   // of a new connection: a TLS handshake and the first calls
	maxCredit     = 256 << 10 // upper limit of the credit
	maxDebt       = 4 << 10   // lower limit of the credit, so that a few calls make up for everything before them
	turnTimeout   = 5 * time.Millisecond
	checkWaiters  = 64                   // length of the queue above which waiting clients are checked for being gone
	maxTurnPause  = 2 * time.Millisecond // longest pause of a slot after its use while others wait
)

// turnQueue limits how many expensive connections use a processor at the same time: connections that cost more than
// they bring wait for a slot. Go's scheduler lets a goroutine run for up to 10 ms. Without turns, a call of an honest
// client would wait behind every connection of a client that always has more to send.
//
// A connection holds its slot from the end of a read until it reads again, writes, hands over a call or is closed,
// but for at most turnTimeout. Connections wait only while no slot is free, and every waiting connection gets its
// turn, unless its client has closed the connection. Between two turns a slot pauses for as long as its last turn
// took, because a processor that is always busy does not poll for input of other connections. See
// docs/adr/0021-turns.md.
type turnQueue struct {
	mu        sync.Mutex
	freeSlots int           // guarded by mu
	pauses    bool          // slots pause between two turns
	holders   []*turnCredit // guarded by mu
	waiting   []*turnCredit // guarded by mu: in order of arrival
	nextCheck int           // guarded by mu: index in waiting of the client to check next
	expiry    *time.Timer   // guarded by mu: runs while connections wait
}

func newTurnQueue(rests bool) *turnQueue {
	return &turnQueue{freeSlots: max(1, runtime.GOMAXPROCS(0)/2), pauses: rests}
}

// turnCredit is the balance of a connection, in bytes: what it has earned minus what it has spent.
type turnCredit struct {
	queue   *turnQueue // nil: the connection never waits
	credit  atomic.Int64
	gone    func() bool               // reports whether the client has closed its side
	cut     func()                    // closes the connection
	holding atomic.Pointer[turnQueue] // the queue whose slot it holds

	since time.Time     // guarded by the queue's mu: when it got its slot
	turn  chan struct{} // guarded by the queue's mu: closed when its turn comes
}

// TurnTaker is a connection accepted by a listener of ListenInTurn.
type TurnTaker interface {
	net.Conn
	// Spend charges the connection for expensive input, as if it had sent so many more bytes.
	Spend(bytes int)
	// Earn credits the connection with complete calls, and with received bytes that were cheap to process.
	Earn(calls, bytes int)
	// Start waits until the connection may begin. Many new connections begin one after the other.
	Start()
	// Leave gives up the connection's slot, because its goroutine no longer processes input.
	Leave()
	// Enter waits for the connection's turn if it has spent more than it has earned and holds no slot. Read calls it.
	Enter()
}

func (p *turnCredit) Spend(bytes int) {
	if p.queue != nil {
		p.credit.Add(-int64(bytes))
	}
}

func (p *turnCredit) Earn(calls, bytes int) {
	if p.queue != nil && p.credit.Load() < maxCredit {
		p.credit.Add(int64(calls)*callCredit + int64(bytes))
	}
}

func (p *turnCredit) Leave() {
	if l := p.holding.Load(); l != nil {
		l.leave(p)
	}
}

// enter is Enter, and returns the time waited.
func (p *turnCredit) enter() time.Duration {
	if p.queue == nil || p.holding.Load() != nil {
		return 0
	}
	credit := p.credit.Load()
	if credit > 0 {
		return 0
	}
	if credit < -maxDebt {
		p.credit.Store(-maxDebt)
	}
	return p.queue.await(p)
}

// await waits for a slot and returns the time waited.
func (l *turnQueue) await(p *turnCredit) time.Duration {
	turn, gone := l.enter(p)
	if gone != nil {
		gone.cut()
	}
	if turn == nil {
		return 0
	}
	began := time.Now()
	<-turn
	return time.Since(began)
}

// enter gives p a slot, or returns a channel that is closed when p gets one. It also returns a waiting connection
// whose client is gone, if it found one.
func (l *turnQueue) enter(p *turnCredit) (turn <-chan struct{}, gone *turnCredit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.freeSlots > 0 {
		l.freeSlots--
		l.holdLocked(p)
		return nil, nil
	}
	p.turn = make(chan struct{})
	l.waiting = append(l.waiting, p)
	if l.expiry == nil {
		l.expiry = time.AfterFunc(turnTimeout, l.expire)
	}
	if n := len(l.waiting); l.pauses && n > checkWaiters {
		for range 4 { // a few of the waiting connections, in turn
			l.nextCheck = (l.nextCheck + 1) % n
			if w := l.waiting[l.nextCheck]; w != p && w.gone() {
				return p.turn, w
			}
		}
	}
	return p.turn, nil
}

func (l *turnQueue) holdLocked(p *turnCredit) {
	p.since = time.Now()
	p.holding.Store(l)
	l.holders = append(l.holders, p)
}

// leave releases p's slot, if it holds one.
func (l *turnQueue) leave(p *turnCredit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.holders, p); i >= 0 {
		l.freeLocked(i)
	}
}

// freeLocked releases the slot of holder i.
func (l *turnQueue) freeLocked(i int) {
	p := l.holders[i]
	p.holding.Store(nil)
	l.holders = slices.Delete(l.holders, i, i+1)
	if len(l.waiting) == 0 {
		l.freeSlots++
		return
	}
	if !l.pauses {
		l.nextLocked()
		return
	}
	time.AfterFunc(min(time.Since(p.since), maxTurnPause), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.nextLocked()
	})
}

// nextLocked gives a free slot to the next waiting connection.
func (l *turnQueue) nextLocked() {
	if len(l.waiting) == 0 {
		l.freeSlots++
		return
	}
	p := l.waiting[0]
	l.waiting = slices.Delete(l.waiting, 0, 1)
	l.holdLocked(p)
	p.endWaitLocked()
}

// endWaitLocked ends the wait of p.
func (p *turnCredit) endWaitLocked() {
	close(p.turn)
	p.turn = nil
}

// expire releases slots that were held for too long: their connections wait for something other than a processor.
func (l *turnQueue) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for i := len(l.holders) - 1; i >= 0; i-- {
		if now.Sub(l.holders[i].since) >= turnTimeout {
			l.freeLocked(i)
		}
	}
	if len(l.waiting) == 0 {
		l.expiry = nil
		return
	}
	l.expiry.Reset(turnTimeout)
}

// cancelWait ends the wait of p, whose connection is closed.
func (l *turnQueue) cancelWait(p *turnCredit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiting, p); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
		p.endWaitLocked()
	}
}
