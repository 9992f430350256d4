package peer

import (
	"errors"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/protocol"
)

// enqueue queues message m. Replicas may use half of the queue, so that room is left for requests. Other messages may
// use twice the queue, because they are few and everything depends on them. It returns forwardPending if m is queued.
func (l *link) enqueue(m *protocol.Message) forwardStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.enqueueLocked(m)
}

// enqueueLocked is enqueue with mu held.
func (l *link) enqueueLocked(m *protocol.Message) forwardStatus {
	if !l.live || l.version < handoffVersion {
		if isHeartbeat(m.Kind) {
			l.heldHeartbeats[m.Kind-protocol.Ping] = *m
		}
		return forwardUnreachable
	}
	return l.encodeMsg(m)
}

// encodeMsg appends m to out. It is called with mu held.
func (l *link) encodeMsg(m *protocol.Message) forwardStatus {
	room := 2 * l.bounds.bytes
	if m.Kind == protocol.Replica {
		room = l.bounds.bytes / 2
	}
	if len(l.out) > room {
		return forwardQueueFull
	}
	stamped := *forVersion(m, l.version)
	if stamped.Now == 0 {
		stamped.Now = l.clock.now()
	}
	out, err := appendMsg(l.out, &stamped, &l.writers)
	if err != nil {
		l.log.Error("message not sent", "peer", l.to, "kind", m.Kind, "error", err)
		return forwardRefused
	}
	l.wakeWriter()
	l.out = out
	if m.Kind == protocol.Ping {
		l.acked.probeSent, l.acked.probeEnd = m.Sent, l.acked.written+len(out)
	}
	return forwardPending
}

// enqueueLease queues lease message m in as many frames as necessary. Lease messages are few and each saves many
// requests, so they have as much room as the messages on which everything depends.
func (l *link) enqueueLease(m *lease.Batch) forwardStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.live || l.version < handoffVersion {
		return forwardUnreachable
	}
	if len(l.out) > 2*l.bounds.bytes {
		return forwardQueueFull
	}
	return l.encodeLease(m)
}

// encodeLease appends m to out. It is called with mu held.
func (l *link) encodeLease(m *lease.Batch) forwardStatus {
	out, err := appendLease(l.out, m, l.clock.now(), &l.writers)
	if a, b, two := split(m); two && (errors.Is(err, errLeaseItems) || errors.Is(err, errTooLong)) {
		return max(l.encodeLease(&a), l.encodeLease(&b))
	}
	if err != nil {
		l.log.Error("lease message not sent", "peer", l.to, "kind", m.Kind, "error", err)
		return forwardRefused
	}
	l.wakeWriter()
	l.out = out
	return forwardPending
}
