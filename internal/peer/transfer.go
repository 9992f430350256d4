package peer

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/ring"
)

const (
	transferWrite   = 10 * time.Second       // for one chunk, at a receiver that does not read
	transferBackoff = 500 * time.Millisecond // after a transfer broke
	// restFactor is how many times as long as it worked a transfer rests while questions are decided, so that all of
	// them together take a fifth of a core.
	restFactor = 4
	minRest    = time.Millisecond      // timers are no finer
	quietAfter = 10 * time.Millisecond // without a decision
)

// transferState is what is known of the transfers to one member. Guarded by Peer.transferring.mu.
type transferState struct {
	running     bool
	notBefore   int64  // not before, by the monotonic clock
	loggedError string // what of its failure has been logged
}

// startTransfers starts what Node wants sent and is not under way.
func (p *Peer) startTransfers() {
	to := p.o.Node.Transfers()
	if len(to) == 0 {
		return
	}
	links := *p.links.Load()
	p.transferring.mu.Lock()
	defer p.transferring.mu.Unlock()
	for _, id := range to {
		l := links[id]
		if l == nil || p.transferring.closed || l.lastVersion.Load() < handoffVersion {
			continue
		}
		s := p.transferring.m[id]
		if s == nil {
			s = new(transferState)
			p.transferring.m[id] = s
		}
		if s.running || p.clock.mono() < s.notBefore {
			continue
		}
		s.running = true
		p.transferring.active.Add(1)
		p.wg.Go(func() { p.transferEnded(id, s, p.runTransfer(l)) })
	}
}

// transferEnded ends a transfer.
func (p *Peer) transferEnded(id ring.ID, s *transferState, err error) {
	p.transferring.active.Add(-1)
	p.transferring.mu.Lock()
	defer p.transferring.mu.Unlock()
	s.running = false
	if err == nil {
		s.loggedError = ""
		return
	}
	s.notBefore = p.clock.mono() + int64(transferBackoff)
	if p.ctx.Err() != nil {
		return
	}
	p.m.incomplete.Inc()
	if kind := stableError(err); kind != s.loggedError {
		s.loggedError = kind
		p.log.Warn("transfer broke off and will begin anew", "member", id, "error", err)
	}
}

// transfer sends one member its counters over a connection of its own. TCP's flow control is all that holds it back: the
// next Chunk is made when the one before has been written.
type transfer struct {
	p    *Peer
	to   ring.ID
	conn net.Conn

	buf     []handoff.CounterRecord
	out     []byte
	writers writerTable

	began        int64 // by the monotonic clock
	keys         int
	lastDecision int64         // when there was a decision
	restDue      time.Duration // that it owes
}

// runTransfer connects to a member and sends until nothing is left.
func (p *Peer) runTransfer(l *link) error {
	conn, version, err := p.dial(p.ctx, l, forTransfer)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(p.ctx, func() { conn.Close() })()
	if version < handoffVersion {
		return fmt.Errorf("version %d has no hand-over", version)
	}
	t := transfer{p: p, to: l.to, conn: conn, began: p.clock.mono()}
	for p.ctx.Err() == nil {
		more, err := t.sendNext()
		if !more || err != nil {
			return err
		}
	}
	return nil
}

// sendNext sends one message; false when there is none.
func (t *transfer) sendNext() (bool, error) {
	p, start := t.p, t.p.clock.mono()
	m, more := p.o.Node.Pull(p.clock.now(), t.to, t.buf[:0])
	if !more {
		return false, nil
	}
	t.buf = m.Counters
	if m.Now == 0 {
		m.Now = p.clock.now()
	}
	var err error
	if t.out, err = appendMsg(t.out[:0], &m, &t.writers); err != nil {
		return false, err
	}
	t.restDue += time.Duration(p.clock.mono()-start) * restFactor * time.Duration(max(1, p.transferring.active.Load()))
	t.conn.SetWriteDeadline(time.Now().Add(transferWrite))
	if _, err := t.conn.Write(t.out); err != nil {
		return false, err
	}
	t.record(&m)
	t.yieldToDecisions()
	return true, nil
}

func (t *transfer) record(m *handoff.Message) {
	if m.Flags&handoff.SuccessorCopy != 0 {
		return
	}
	shadow := m.Flags&handoff.Prefetch != 0
	switch m.Kind {
	case handoff.Chunk:
		if m.ChunkIndex == 0 {
			t.keys = 0
			t.p.log.Info("transfer to another member begins", "member", t.to, "ring", fingerprint(m.Ring), "shadow", shadow)
		}
		t.keys += len(m.Counters)
		if !shadow {
			t.p.m.keysSent.Add(float64(len(m.Counters)))
		}
	case handoff.Ack:
		took := time.Duration(t.p.clock.mono() - t.began).Seconds()
		t.p.m.handoff.Observe(took)
		t.p.log.Info("transfer to another member sent", "member", t.to, "ring", fingerprint(m.Ring), "shadow", shadow, "keys", t.keys, "seconds", took)
	}
}

// yieldToDecisions leaves the processor to decisions, if there are any.
func (t *transfer) yieldToDecisions() {
	now := t.p.clock.mono()
	if t.p.decided.Swap(false) {
		t.lastDecision = now
	} else if now-t.lastDecision > int64(quietAfter) {
		t.restDue = 0
	}
	if t.restDue >= minRest {
		pause(t.p.ctx, t.restDue)
		t.restDue = 0
	}
}
