package peer

import (
	"errors"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/lease"
)

// post queues message m. Copies of counters have half of the room, so that they leave some for questions, and the other
// messages twice as much, because they are few and everything waits for them. A result other than pending says why
// it was not queued.
func (l *link) post(m *handoff.Message) result {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue(m)
}

// queue is called with mu held.
func (l *link) queue(m *handoff.Message) result {
	if !l.live || l.version < handoffVersion {
		if m.Kind == handoff.Ping || m.Kind == handoff.Pong {
			l.held[m.Kind-handoff.Ping] = *m
		}
		return unreachable
	}
	return l.encode(m)
}

// encode is called with mu held.
func (l *link) encode(m *handoff.Message) result {
	room := 2 * l.bounds.bytes
	if m.Kind == handoff.Replica {
		room = l.bounds.bytes / 2
	}
	if len(l.out) > room {
		return queueFull
	}
	stamped := *m
	if stamped.Now == 0 {
		stamped.Now = l.clock.now()
	}
	out, err := appendMsg(l.out, &stamped, &l.writers)
	if err != nil {
		l.log.Error("message cannot be sent", "member", l.to, "kind", m.Kind, "error", err)
		return refused
	}
	l.rouse()
	l.out = out
	if m.Kind == handoff.Ping {
		l.flow.asked, l.flow.upTo = m.Sent, l.flow.written+len(out)
	}
	return pending
}

// postLease queues lease message m, in as many frames as it takes. Such messages are few, and each saves many questions,
// so they have as much room as those that everything waits for.
func (l *link) postLease(m *lease.Batch) result {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.live || l.version < handoffVersion {
		return unreachable
	}
	if len(l.out) > 2*l.bounds.bytes {
		return queueFull
	}
	return l.encodeLease(m)
}

// encodeLease is called with mu held.
func (l *link) encodeLease(m *lease.Batch) result {
	out, err := appendLease(l.out, m, l.clock.now(), &l.writers)
	if a, b, two := halves(m); two && (errors.Is(err, errLeases) || errors.Is(err, errTooLong)) {
		return max(l.encodeLease(&a), l.encodeLease(&b))
	}
	if err != nil {
		l.log.Error("lease message cannot be sent", "member", l.to, "kind", m.Kind, "error", err)
		return refused
	}
	l.rouse()
	l.out = out
	return pending
}
