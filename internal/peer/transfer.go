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
	// transferRest is how many times as long as it worked a transfer rests while questions are decided, so that all of
	// them together take a fifth of a core.
	transferRest = 4
	leastRest    = time.Millisecond      // timers are no finer
	quietAfter   = 10 * time.Millisecond // without a decision
)

// sending is what is known of the transfers to one member. Guarded by Peer.sends.mu.
type sending struct {
	running bool
	again   int64  // not before, by the monotonic clock
	failed  string // what of its failure has been logged
}

// transfers starts what Node wants sent and is not under way.
func (p *Peer) transfers() {
	to := p.o.Node.Transfers()
	if len(to) == 0 {
		return
	}
	links := *p.links.Load()
	p.sends.mu.Lock()
	defer p.sends.mu.Unlock()
	for _, id := range to {
		l := links[id]
		if l == nil || p.sends.closed || l.spoke.Load() < handoffVersion {
			continue
		}
		s := p.sends.m[id]
		if s == nil {
			s = new(sending)
			p.sends.m[id] = s
		}
		if s.running || p.clock.mono() < s.again {
			continue
		}
		s.running = true
		p.sends.active.Add(1)
		p.wg.Go(func() { p.carried(id, s, p.carry(l)) })
	}
}

// carried ends a transfer.
func (p *Peer) carried(id ring.ID, s *sending, err error) {
	p.sends.active.Add(-1)
	p.sends.mu.Lock()
	defer p.sends.mu.Unlock()
	s.running = false
	if err == nil {
		s.failed = ""
		return
	}
	s.again = p.clock.mono() + int64(transferBackoff)
	if p.ctx.Err() != nil {
		return
	}
	p.m.incomplete.Inc()
	if kind := kindOf(err); kind != s.failed {
		s.failed = kind
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

	began int64 // by the monotonic clock
	keys  int
	busy  int64         // when there was a decision
	rest  time.Duration // that it owes
}

// carry connects to a member and sends until nothing is left.
func (p *Peer) carry(l *link) error {
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
		more, err := t.next()
		if !more || err != nil {
			return err
		}
	}
	return nil
}

// next sends one message; false when there is none.
func (t *transfer) next() (bool, error) {
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
	t.rest += time.Duration(p.clock.mono()-start) * transferRest * time.Duration(max(1, p.sends.active.Load()))
	t.conn.SetWriteDeadline(time.Now().Add(transferWrite))
	if _, err := t.conn.Write(t.out); err != nil {
		return false, err
	}
	t.note(&m)
	t.pace()
	return true, nil
}

func (t *transfer) note(m *handoff.Message) {
	if m.Flags&handoff.SuccessorCopy != 0 {
		return
	}
	shadow := m.Flags&handoff.Prefetch != 0
	switch m.Kind {
	case handoff.Chunk:
		if m.Part == 0 {
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

// pace leaves the processor to decisions, if there are any.
func (t *transfer) pace() {
	now := t.p.clock.mono()
	if t.p.busy.Swap(false) {
		t.busy = now
	} else if now-t.busy > int64(quietAfter) {
		t.rest = 0
	}
	if t.rest >= leastRest {
		pause(t.p.ctx, t.rest)
		t.rest = 0
	}
}
