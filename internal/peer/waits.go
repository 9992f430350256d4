package peer

import (
	"sync"
	"sync/atomic"

	"github.com/keyward/keyward/owner"
)

const (
	maxWaits   = 8192 // tickets with a waiter, in this process
	waitShards = 16
)

// waiter receives the result that its generation gen expects under number i.
type waiter interface {
	resolve(gen uint64, i int, a *owner.Result)
}

// waits maps tickets to their waiters. A Node resolves each ticket once unless it is canceled first. The result may be
// there before the ticket is expected, because other goroutines take it from the Node. So every ticket that a Node
// returns must be passed either to expect or to Peer.drop.
type waits struct {
	n      atomic.Int64
	shards [waitShards]waitShard
}

type waitShard struct {
	mu sync.Mutex
	m  map[uint64]wait // guarded by mu
}

// wait is an expected ticket, or, without a waiter, one whose result arrived early or is not needed.
type wait struct {
	to    waiter
	gen   uint64
	i     int
	early *owner.Result
}

func (w *waits) shard(ticket uint64) *waitShard {
	return &w.shards[ticket*0x9E3779B97F4A7C15>>60]
}

// full reports whether no more tickets may be expected.
func (w *waits) full() bool { return w.n.Load() >= maxWaits }

// expect registers a waiter for ticket. If the result is there already, it returns the result and does not call the
// waiter.
func (w *waits) expect(ticket uint64, to waiter, gen uint64, i int) *owner.Result {
	s := w.shard(ticket)
	s.mu.Lock()
	defer s.mu.Unlock()
	if early := s.m[ticket].early; early != nil {
		delete(s.m, ticket)
		return early
	}
	s.put(ticket, wait{to: to, gen: gen, i: i})
	w.n.Add(1)
	return nil
}

// resolve passes r to the waiter of ticket.
func (w *waits) resolve(ticket uint64, a owner.Result) {
	s := w.shard(ticket)
	s.mu.Lock()
	x, known := s.m[ticket]
	if known {
		delete(s.m, ticket)
	} else {
		early := a
		s.put(ticket, wait{early: &early})
	}
	s.mu.Unlock()
	if x.to != nil {
		w.n.Add(-1)
		x.to.resolve(x.gen, x.i, &a)
	}
}

// forget removes a ticket that was canceled, so it will not be resolved.
func (w *waits) forget(ticket uint64) {
	s := w.shard(ticket)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m[ticket].to != nil {
		w.n.Add(-1)
	}
	delete(s.m, ticket)
}

// abandon removes the waiter of a ticket that could not be canceled: its result has arrived or will arrive, and is not
// needed.
func (w *waits) abandon(ticket uint64) {
	s := w.shard(ticket)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m[ticket].to != nil {
		w.n.Add(-1)
		s.put(ticket, wait{})
	}
}

// discard is abandon for a ticket that was never expected.
func (w *waits) discard(ticket uint64) {
	s := w.shard(ticket)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, early := s.m[ticket]; early {
		delete(s.m, ticket)
		return
	}
	s.put(ticket, wait{})
}

// put stores x. It is called with mu held.
func (s *waitShard) put(ticket uint64, x wait) {
	if s.m == nil {
		s.m = make(map[uint64]wait)
	}
	s.m[ticket] = x
}
