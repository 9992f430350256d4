package peer

import (
	"sync"
	"sync/atomic"

	"github.com/keyward/keyward/owner"
)

const (
	maxWaits   = 8192 // tickets that are waited for in this process
	waitShards = 16
)

// waiter takes the answer that its generation gen expects under its own number i.
type waiter interface {
	resolve(gen uint64, i int, a *owner.Result)
}

// waits knows who waits for which ticket. A Node resolves each ticket once unless it is cancelled first; the answer may
// overtake the question, because other goroutines take it out of the Node. So every ticket that a Node gives out is
// either expected or dropped here.
type waits struct {
	n      atomic.Int64
	shards [waitShards]waitShard
}

type waitShard struct {
	mu sync.Mutex
	m  map[uint64]wait // guarded by mu
}

// wait is a ticket that is expected, or, without a waiter, one whose answer came early or is not wanted.
type wait struct {
	to    waiter
	gen   uint64
	i     int
	early *owner.Result
}

func (w *waits) shard(ticket uint64) *waitShard {
	return &w.shards[ticket*0x9E3779B97F4A7C15>>60]
}

// full says that no more tickets should be expected.
func (w *waits) full() bool { return w.n.Load() >= maxWaits }

// expect has ticket resolved to `to`, which is not called if the answer is there already.
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

// resolve hands a to whoever expects ticket.
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

// forget drops a ticket that was cancelled: it will not be resolved.
func (w *waits) forget(ticket uint64) {
	s := w.shard(ticket)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m[ticket].to != nil {
		w.n.Add(-1)
	}
	delete(s.m, ticket)
}

// abandon drops an expected ticket that could not be cancelled: its answer has come or will, and nobody wants it.
func (w *waits) abandon(ticket uint64) {
	s := w.shard(ticket)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m[ticket].to != nil {
		w.n.Add(-1)
		s.put(ticket, wait{})
	}
}

// discard does the same for a ticket that was never expected.
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

// put is called with mu held.
func (s *waitShard) put(ticket uint64, x wait) {
	if s.m == nil {
		s.m = make(map[uint64]wait)
	}
	s.m[ticket] = x
}
