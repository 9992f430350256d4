package peer

import (
	"errors"
	"time"

	"github.com/keyward/keyward/internal/counterwire"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/protocol"
)

// Reasons to refuse a message.
const (
	reasonMalformed     = "malformed"
	reasonTooLarge      = "too_large"
	reasonBoot          = "instance"
	reasonUnknownMember = "unknown_member"
	reasonOld           = "old"
)

// receive processes a message of kind k. A message that is refused has no effect and does not end the stream, because
// it does not affect the requests on it.
func (s *server) receive(now int64, k protocol.MessageKind, payload []byte) {
	m, err := s.messages.parse(k, payload)
	if err != nil {
		s.countRefused(parseErrorReason(err))
		return
	}
	// Heartbeats have no maximum age: they measure the difference between the clocks.
	if reason := s.refusalReason(now, m.Now, isHeartbeat(k)); reason != "" {
		s.countRefused(reason)
		return
	}
	s.recordMsg(now, m)
	s.p.applyInline(s.p.o.Node.Step(now, s.from, s.fromBoot, m))
}

// receiveLease processes a lease message of kind k.
func (s *server) receiveLease(now int64, k lease.BatchKind, payload []byte) {
	m, sent, err := s.leases.parse(k, payload)
	if err != nil {
		s.countRefused(parseErrorReason(err))
		return
	}
	if reason := s.refusalReason(now, sent, false); reason != "" {
		s.countRefused(reason)
		return
	}
	s.p.apply(s.p.o.Node.StepLease(now, s.from, s.fromBoot, m))
}

func (s *server) countRefused(reason string) { s.p.m.refused.WithLabelValues(reason).Inc() }

// parseErrorReason returns the reason to refuse a message that parse returned err for.
func parseErrorReason(err error) string {
	for _, e := range []error{errCounters, counterwire.ErrSlots, errLeaseItems, errPoolItems, errName} {
		if errors.Is(err, e) {
			return reasonTooLarge
		}
	}
	return reasonMalformed
}

// refusalReason returns why a message that was sent at sent, by its sender's clock, must be refused, or "". A message
// is refused if it is not between the current boots of two members, or so old that this member may have forgotten its
// context.
func (s *server) refusalReason(now, sent int64, anyAge bool) string {
	l := (*s.p.links.Load())[s.from]
	switch {
	case l == nil:
		return reasonUnknownMember
	case s.fromBoot == 0 || s.toBoot != s.p.o.BootID || l.bootID != s.fromBoot:
		return reasonBoot
	case !anyAge && s.p.skews.tooOld(s.from, sent, now):
		return reasonOld
	}
	return ""
}

// recordMsg updates the state of the transport, the metrics and the log for m.
func (s *server) recordMsg(now int64, m *protocol.Message) {
	switch m.Kind {
	case protocol.Pong:
		if l := (*s.p.links.Load())[s.from]; l != nil {
			l.handleHeartbeatReply(m.Sent, now)
		}
		s.p.skews.addSample(s.from, m.Sent, m.Now, now)
	case protocol.ReplicaAck:
		s.p.m.replicas(forwardOK).Inc()
	case protocol.OwnershipReply:
		if m.Status == protocol.KeyGiven {
			s.p.m.keysReceived.Add(float64(len(m.Counters)))
		}
	case protocol.Chunk, protocol.Ack:
		if m.Flags == 0 {
			s.recordTransfer(m)
		}
	}
}

// recordTransfer logs and counts a message of a transfer that is not of replicas.
func (s *server) recordTransfer(m *protocol.Message) {
	mono, log := s.p.clock.mono(), s.p.log.With("peer", s.from, "ring", fingerprint(m.Ring))
	if m.Kind == protocol.Ack {
		took := time.Duration(0)
		if m.ChunkIndex > 0 {
			took = time.Duration(mono - s.receivedSince)
		}
		log.Info("transfer received", "keys", s.receivedKeys, "duration", took)
		s.receivedKeys = 0
		return
	}
	if m.ChunkIndex == 0 {
		log.Info("incoming transfer started")
		s.receivedKeys, s.receivedSince = 0, mono
	}
	s.receivedKeys += len(m.Counters)
	s.p.m.keysReceived.Add(float64(len(m.Counters)))
}
