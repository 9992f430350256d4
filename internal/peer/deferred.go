package peer

import (
	"slices"
	"sync"
	"time"

	"github.com/keyward/keyward/owner"
)

// maxDeferral bounds the time for which a group is kept, whatever its requester asks for.
const maxDeferral = 10 * time.Second

// deferredGroup is a group that was served and has requests that are pending in Node. Its reply is sent when the last
// result is there; the groups after it do not wait. It is dropped when the requester has given up. Deferred groups are
// pooled, except one whose request could not be canceled: its result is still to come.
//
// Lock order: a deferred group's mu, then a server's late.mu or a lock of Node.
type deferredGroup struct {
	p     *Peer
	timer *time.Timer

	mu      sync.Mutex
	s       *server // the stream that the reply goes to; guarded by mu, as all below
	id      uint64  // of the group
	end     int64   // when the sender gives up, by the monotonic clock
	results []owner.Result
	slots   []groupSlot
	open    int  // results that are pending
	running bool // deferred, and not answered yet
}

// groupSlot is the owner.Waiter of one request of a served group.
type groupSlot struct {
	group *deferredGroup
	index int
	key   owner.Key
}

func (p *Peer) newDeferredGroup() any {
	k := &deferredGroup{p: p}
	k.timer = time.AfterFunc(time.Hour, k.expire)
	k.timer.Stop()
	return k
}

// prepareGroup makes the slots of a group the waiters of s.reqs. It returns the group locked.
func (s *server) prepareGroup() *deferredGroup {
	if s.group == nil {
		s.group = s.p.deferredGroups.Get().(*deferredGroup)
	}
	k := s.group
	k.mu.Lock()
	k.slots = slices.Grow(k.slots[:0], len(s.reqs))[:len(s.reqs)]
	for i := range s.reqs {
		k.slots[i] = groupSlot{k, i, s.reqs[i].Key}
		s.reqs[i].Waiter = &k.slots[i]
	}
	return k
}

// deferred unlocks k and reports whether some of s.results are pending. k keeps the group until they have their
// results.
func (k *deferredGroup) deferred(s *server, g requestGroup, mono int64) bool {
	defer k.mu.Unlock()
	k.open = 0
	for i := range s.results {
		switch r := &s.results[i]; {
		case r.Kind == owner.Pending:
			k.open++
		case r.Kind == owner.Forward && r.Authority == owner.Shed:
			k.p.m.waits[waitOverflow].Inc()
			r.Authority = owner.Full // Shed never travels
		}
	}
	if k.open == 0 {
		return false
	}
	s.startLateWriter()
	ttl := min(g.ttl, maxDeferral)
	k.s, k.id, k.end, k.running = s, g.id, mono+int64(ttl), true
	k.results = append(k.results[:0], s.results...)
	k.timer.Reset(ttl)
	return true
}

// complete delivers the result of a request that was pending.
func (w *groupSlot) complete(r *owner.Result) {
	k := w.group
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.running || k.results[w.index].Kind != owner.Pending {
		return
	}
	k.p.m.waits[waitResolved].Inc()
	k.results[w.index] = *r
	if k.open--; k.open == 0 {
		k.s.queueLateReply(k.id, k.results)
		k.timer.Stop()
		k.finish()
	}
}

// expire drops the group. The member that sent it has decided by the degraded policy.
func (k *deferredGroup) expire() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.running || k.p.clock.mono() < k.end {
		return // the timer of an earlier use
	}
	leaked := false
	for i := range k.results {
		if k.results[i].Kind == owner.Pending {
			k.p.m.waits[waitExpired].Inc()
			leaked = !k.p.o.Node.Cancel(k.slots[i].key, &k.slots[i]) || leaked
		}
	}
	if k.running = false; !leaked {
		k.finish()
	}
}

// finish gives k back to the pool. It is called with mu held.
func (k *deferredGroup) finish() {
	clear(k.results)
	k.running, k.s, k.results = false, nil, k.results[:0]
	k.p.deferredGroups.Put(k)
}

// lateWriter writes the replies to deferred groups on its own goroutine, so that the goroutine that brings the last
// result of a group never waits for a slow requester. A requester that reads too slowly loses them.
type lateWriter struct {
	started bool // used only by the stream's goroutine; wake and done are set before it
	wake    chan struct{}
	done    chan struct{}

	mu  sync.Mutex
	out []byte // guarded by mu
}

// maxLateBytes bounds the bytes of late replies that wait to be written to one stream.
const maxLateBytes = 1 << 20

// startLateWriter starts the late writer if necessary. It is called by the stream's goroutine.
func (s *server) startLateWriter() {
	l := &s.late
	if l.started {
		return
	}
	l.started, l.wake, l.done = true, make(chan struct{}, 1), make(chan struct{})
	s.p.wg.Go(func() { s.runLateWriter(l.done) })
}

// queueLateReply queues the reply to a group.
func (s *server) queueLateReply(id uint64, results []owner.Result) {
	s.late.mu.Lock()
	defer s.late.mu.Unlock()
	if len(s.late.out) > maxLateBytes {
		return
	}
	s.late.out = appendReply(s.late.out, id, results)
	wake(s.late.wake)
}

func (s *server) runLateWriter(done chan struct{}) {
	var spare []byte
	for {
		s.late.mu.Lock()
		batch := s.late.out
		s.late.out = spare[:0]
		s.late.mu.Unlock()
		spare = batch
		if len(batch) == 0 {
			select {
			case <-s.late.wake:
			case <-done:
				return
			}
			continue
		}
		if _, err := s.conn.Write(batch); err != nil {
			s.conn.Close()
			<-done
			return
		}
	}
}

// stopLateWriter ends the late writer. It is called by the stream's goroutine when the connection is closed.
func (s *server) stopLateWriter() {
	if s.late.started {
		close(s.late.done)
	}
}
