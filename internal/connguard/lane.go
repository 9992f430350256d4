package connguard

import (
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// What a connection costs is counted in bytes that it has sent; what costs more than its bytes is counted as more of them.
const (
	readCost      = 256       // beside its bytes
	callCredit    = 2 << 10   // by a whole call: more than an ordinary one costs beside its message
	initialCredit = 8 << 10   // by being new: a TLS handshake and the first calls
	maxCredit     = 256 << 10 // kept for later
	maxDebt       = 4 << 10   // so that a few calls make up for whatever came before them
	turnTimeout   = 5 * time.Millisecond
	checkWaiters  = 64                   // connections in the queue, beyond which it is asked whether their clients are still there
	maxTurnPause  = 2 * time.Millisecond // at most, after a place was used while others wait for it
)

// turnQueue has connections go on in turn that cost more than they bring, so that never more than a few of them want a processor. Go's scheduler gives
// each goroutine up to 10 ms: without that, a call of an honest client would wait behind every connection of a stranger that always has something
// to say. A connection has its place from the end of a read until it reads again, writes, hands a call over or is closed, and for turnTimeout at most.
// Nobody waits while there is a place, and whoever waits gets its turn, unless its client has gone meanwhile. Between two turns the place rests for
// as long as the first one took: a processor that always has something to do does not look for what came from others. See docs/adr/0021-turns.md.
type turnQueue struct {
	mu        sync.Mutex
	freeSlots int         // guarded by mu: that nobody has
	pauses    bool        // between two turns
	holders   []*purse    // guarded by mu
	waiting   []*purse    // guarded by mu: in the order of their coming
	nextCheck int         // guarded by mu: of whom it was asked last whether its client is there
	expiry    *time.Timer // guarded by mu: it runs while connections wait
}

func newTurnQueue(rests bool) *turnQueue {
	return &turnQueue{freeSlots: max(1, runtime.GOMAXPROCS(0)/2), pauses: rests}
}

// purse is what a connection has earned and spent, in bytes.
type purse struct {
	queue   *turnQueue // nil: it never waits
	credit  atomic.Int64
	gone    func() bool               // reports whether its client has closed its side
	cut     func()                    // ends its connection
	holding atomic.Pointer[turnQueue] // where it has a place

	since time.Time     // guarded by its lane's mu: when it got its place
	turn  chan struct{} // guarded by its lane's mu: closed when its turn comes
}

// TurnTaker is a connection that a Listener of ListenInTurn has accepted.
type TurnTaker interface {
	net.Conn
	// Spend notes that the connection has cost as much as so many bytes more than it has sent.
	Spend(bytes int)
	// Earn notes that so many whole calls came, and that so many bytes of what came cost next to nothing.
	Earn(calls, bytes int)
	// Start waits for the connection's turn to begin, which many new ones take one after the other.
	Start()
	// Leave gives up the connection's place: what its goroutine does now is not going through what came.
	Leave()
	// Enter waits for the connection's turn, if it has spent more than it has earned and has no place. Reads do that by themselves.
	Enter()
}

func (p *purse) Spend(bytes int) {
	if p.queue != nil {
		p.credit.Add(-int64(bytes))
	}
}

func (p *purse) Earn(calls, bytes int) {
	if p.queue != nil && p.credit.Load() < maxCredit {
		p.credit.Add(int64(calls)*callCredit + int64(bytes))
	}
}

func (p *purse) Leave() {
	if l := p.holding.Load(); l != nil {
		l.leave(p)
	}
}

// enter is Enter; it returns how long it has waited.
func (p *purse) enter() time.Duration {
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

// await gives p a place when its turn comes, and returns how long that took.
func (l *turnQueue) await(p *purse) time.Duration {
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

// enter gives p a place, or returns what tells when it has one, and another whose client has gone.
func (l *turnQueue) enter(p *purse) (turn <-chan struct{}, gone *purse) {
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
		for range 4 { // that come in turn
			l.nextCheck = (l.nextCheck + 1) % n
			if w := l.waiting[l.nextCheck]; w != p && w.gone() {
				return p.turn, w
			}
		}
	}
	return p.turn, nil
}

func (l *turnQueue) holdLocked(p *purse) {
	p.since = time.Now()
	p.holding.Store(l)
	l.holders = append(l.holders, p)
}

// leave takes p's place, if it still has one.
func (l *turnQueue) leave(p *purse) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.holders, p); i >= 0 {
		l.freeLocked(i)
	}
}

// freeLocked takes the place of holder i.
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

// nextLocked gives a place to the next who waits.
func (l *turnQueue) nextLocked() {
	if len(l.waiting) == 0 {
		l.freeSlots++
		return
	}
	p := l.waiting[0]
	l.waiting = slices.Delete(l.waiting, 0, 1)
	l.holdLocked(p)
	p.goLocked()
}

// goLocked ends p's wait.
func (p *purse) goLocked() {
	close(p.turn)
	p.turn = nil
}

// expire takes the places of those who have had them too long: they wait for something else than a processor.
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

// forget ends p's wait, if it waits, for its connection is closed.
func (l *turnQueue) forget(p *purse) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiting, p); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
		p.goLocked()
	}
}
