package peer

import (
	"slices"
	"sync"
	"time"

	"github.com/keyward/keyward/owner"
)

// maxDeferral bounds the time for which a group is kept, whatever its requester asks for.
const maxDeferral = 10 * time.Second

// deferredGroup is a group that was served and has pending results. Its reply is sent when the last result is there;
// the groups after it do not wait. It is dropped when the requester has given up. Deferred groups are pooled, and gen
// counts their uses.
//
// Lock order: a deferred group's mu, then a server's late.mu.
type deferredGroup struct {
	p     *Peer
	timer *time.Timer

	mu      sync.Mutex
	gen     uint64         // guarded by mu, as all below
	s       *server        // of the stream for the reply
	id      uint64         // of the group
	end     int64          // when the requester gives up, by the monotonic clock
	results []owner.Result // some of Kind Pending
	open    int            // number of those
	running bool           // in use
}

func (p *Peer) newDeferredGroup() any {
	k := &deferredGroup{p: p}
	k.timer = time.AfterFunc(time.Hour, k.expire)
	k.timer.Stop()
	return k
}

// waiting reports whether a result is pending.
func waiting(results []owner.Result) bool {
	for i := range results {
		if results[i].Kind == owner.Pending {
			return true
		}
	}
	return false
}

// deferGroup keeps the group that s has just served until its last result is there. Above maxWaits, pending results
// become "not the owner" at once.
func (s *server) deferGroup(g requestGroup, mono int64) {
	s.startLateWriter()
	k := s.p.deferredGroups.Get().(*deferredGroup)
	ttl := min(g.ttl, maxDeferral)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.s, k.id, k.end, k.open, k.running = s, g.id, mono+int64(ttl), 0, true
	k.results = append(k.results[:0], s.results...)
	for i := range k.results {
		if a := &k.results[i]; a.Kind == owner.Pending {
			k.expect(i, a)
		}
	}
	if k.open == 0 {
		k.finish()
		return
	}
	k.timer.Reset(ttl)
}

// expect waits for result i. It is called with mu held.
func (k *deferredGroup) expect(i int, a *owner.Result) {
	w := &k.p.waits
	if w.full() {
		k.p.m.waits[waitOverflow].Inc()
		k.p.drop(a.Ticket)
		*a = owner.Result{Kind: owner.Forward}
		return
	}
	if early := w.expect(a.Ticket, k, k.gen, i); early != nil {
		k.setResult(a, early)
		return
	}
	k.open++
}

// setResult stores a result that has arrived.
func (k *deferredGroup) setResult(to, from *owner.Result) {
	k.p.m.waits[waitResolved].Inc()
	*to = *from
	if to.Kind == owner.Pending { // no Node returns this
		*to = owner.Result{Kind: owner.Forward}
	}
}

// resolve implements waiter.
func (k *deferredGroup) resolve(gen uint64, i int, a *owner.Result) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.running || k.gen != gen || k.results[i].Kind != owner.Pending {
		return
	}
	k.setResult(&k.results[i], a)
	if k.open--; k.open == 0 {
		k.finish()
	}
}

// expire drops the group. Its requester has used the degraded policy.
func (k *deferredGroup) expire() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.running || k.p.clock.mono() < k.end {
		return // the timer is of an earlier use
	}
	for i := range k.results {
		if k.results[i].Kind == owner.Pending {
			k.p.m.waits[waitExpired].Inc()
			k.p.giveUp(k.results[i].Ticket)
		}
	}
	k.results = k.results[:0]
	k.finish()
}

// finish sends the reply, if there are results, and returns k to the pool. It is called with mu held.
func (k *deferredGroup) finish() {
	if len(k.results) > 0 {
		k.s.queueLateReply(k.id, k.results)
	}
	k.timer.Stop()
	k.gen++
	k.running, k.s, k.results = false, nil, slices.Delete(k.results, 0, len(k.results))
	k.p.deferredGroups.Put(k)
}

// giveUp cancels an expected ticket. The result of one that has been resolved meanwhile is dropped.
func (p *Peer) giveUp(ticket uint64) {
	if p.o.Node.Cancel(ticket) {
		p.waits.forget(ticket)
	} else {
		p.waits.abandon(ticket)
	}
}

// drop cancels a ticket that was not expected.
func (p *Peer) drop(ticket uint64) {
	if !p.o.Node.Cancel(ticket) {
		p.waits.discard(ticket)
	}
}

// lateWriter writes the replies to deferred groups on its own goroutine, so that the goroutine that resolves the last
// ticket of a group never waits for a slow requester. A requester that reads too slowly loses them.
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
