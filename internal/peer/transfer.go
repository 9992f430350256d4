package peer

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/keyward/keyward/internal/counterwire"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/ring"
)

const (
	transferWrite   = 10 * time.Second       // timeout for one chunk, if the receiver does not read
	transferBackoff = 500 * time.Millisecond // after a transfer failed
	// restFactor is how many times its working time a transfer pauses while this member decides requests. All transfers
	// together then use a fifth of a core.
	restFactor = 4
	minRest    = time.Millisecond      // resolution of timers
	quietAfter = 10 * time.Millisecond // without a decision, transfers do not pause
)

// transferState is the state of the transfers to one member. It is guarded by Peer.transferring.mu.
type transferState struct {
	running     bool
	notBefore   int64  // when the next transfer may start, by the monotonic clock
	loggedError string // the last failure, as logged
}

// startTransfers starts the transfers to these members that do not run yet.
func (p *Peer) startTransfers(to []ring.ID) {
	if len(to) == 0 {
		return
	}
	links := *p.links.Load()
	p.transferring.mu.Lock()
	defer p.transferring.mu.Unlock()
	for _, id := range to {
		l := links[id]
		if l == nil || l.lastVersion.Load() < handoffVersion {
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
		if !p.spawn(func() { p.transferEnded(id, s, p.runTransfer(l)) }) {
			s.running = false
			p.transferring.active.Add(-1)
			return
		}
	}
}

// transferEnded records the end of a transfer.
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
		p.log.Warn("transfer failed; retrying", "peer", id, "error", err)
	}
}

// transfer sends counters to one member over a connection of its own. Only TCP's flow control limits it: the next chunk
// is made when the previous one has been written.
type transfer struct {
	p    *Peer
	to   ring.ID
	conn net.Conn
	// version is the protocol version of the receiver.
	version uint16

	buf     []protocol.CounterRecord
	out     []byte
	writers counterwire.Writers

	began        int64         // by the monotonic clock
	keys         int           // sent since the first chunk
	lastDecision int64         // when this member was last seen to decide, by the monotonic clock
	restDue      time.Duration // pause that is due
}

// runTransfer connects to a member and sends until Node has nothing more to send.
func (p *Peer) runTransfer(l *link) error {
	conn, version, err := p.dial(p.ctx, l, forTransfer)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(p.ctx, func() { conn.Close() })()
	if version < handoffVersion {
		return fmt.Errorf("protocol version %d does not support handoff", version)
	}
	t := transfer{p: p, to: l.to, conn: conn, version: version, began: p.clock.mono()}
	for p.ctx.Err() == nil {
		more, err := t.sendNext()
		if !more || err != nil {
			return err
		}
	}
	return nil
}

// sendNext sends one message. It returns false if there is none.
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
	if t.out, err = appendMsg(t.out[:0], forVersion(&m, t.version), &t.writers); err != nil {
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

// record logs and counts a message that was sent.
func (t *transfer) record(m *protocol.Message) {
	if m.Flags&protocol.SuccessorCopy != 0 {
		return
	}
	prefetch, log := m.Flags&protocol.Prefetch != 0, t.p.log.With("peer", t.to, "ring", fingerprint(m.Ring))
	switch m.Kind {
	case protocol.Chunk:
		if m.ChunkIndex == 0 {
			t.keys = 0
			log.Info("transfer started", "prefetch", prefetch)
		}
		t.keys += len(m.Counters)
		if !prefetch {
			t.p.m.keysSent.Add(float64(len(m.Counters)))
		}
	case protocol.Ack:
		took := time.Duration(t.p.clock.mono() - t.began)
		t.p.m.handoff.Observe(took.Seconds())
		log.Info("transfer sent", "prefetch", prefetch, "keys", t.keys, "duration", took)
	}
}

// yieldToDecisions pauses if this member has decided requests lately.
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
