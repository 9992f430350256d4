package peer

import (
	"errors"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/lease"
)

// Reasons to refuse a message.
const (
	reasonMalformed     = "malformed"
	reasonTooLarge      = "too_large"
	reasonBoot          = "instance"
	reasonUnknownMember = "unknown_member"
	reasonOld           = "old"
)

// receive takes in a message of kind k. One that is refused changes nothing, and the stream goes on: the questions on
// it are as good as before.
func (s *server) receive(now int64, k handoff.MessageKind, payload []byte) {
	m, err := s.messages.parse(k, payload)
	if err != nil {
		s.countRefused(parseErrorReason(err))
		return
	}
	heartbeat := k == handoff.Ping || k == handoff.Pong // no better for being young; they tell how far the clocks are apart
	if reason := s.refusalReason(now, m.Now, heartbeat); reason != "" {
		s.countRefused(reason)
		return
	}
	s.recordMsg(now, m)
	s.p.applyInline(s.p.o.Node.Step(now, s.from, s.fromBoot, m))
	switch k {
	case handoff.Ping, handoff.Ack, handoff.OwnershipRequest:
		s.p.startTransfers()
		s.p.checkProgress()
	case handoff.Pong, handoff.OwnershipReply:
		s.p.checkProgress()
	}
}

// receiveLease does the same with a lease message.
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

// parseErrorReason is the reason to refuse a message that could not be read.
func parseErrorReason(err error) string {
	for _, e := range []error{errCounters, errSlots, errLeaseItems, errName} {
		if errors.Is(err, e) {
			return reasonTooLarge
		}
	}
	return reasonMalformed
}

// refusalReason says why a message that was sent at sent, by its sender's clock, must not be taken in: it is not between the
// two boots that are members now, or has been on its way for so long that what it speaks of may have been forgotten here.
func (s *server) refusalReason(now, sent int64, ageless bool) string {
	l := (*s.p.links.Load())[s.from]
	switch {
	case l == nil:
		return reasonUnknownMember
	case s.fromBoot == 0 || s.toBoot != s.p.o.BootID || l.addr.BootID != s.fromBoot:
		return reasonBoot
	case !ageless && s.p.skews.tooOld(s.from, sent, now):
		return reasonOld
	}
	return ""
}

// recordMsg keeps what the transport has to know of m.
func (s *server) recordMsg(now int64, m *handoff.Message) {
	switch m.Kind {
	case handoff.Pong:
		if l := (*s.p.links.Load())[s.from]; l != nil {
			l.confirm(m.Sent, now)
		}
		s.p.skews.addSample(s.from, m.Sent, m.Now, now)
	case handoff.ReplicaAck:
		s.p.m.replicas(forwardOK).Inc()
	case handoff.OwnershipReply:
		if m.Status == handoff.KeyGiven {
			s.p.m.keysReceived.Add(float64(len(m.Counters)))
		}
	case handoff.Chunk:
		if m.ChunkIndex == 0 && m.Flags == 0 {
			s.p.log.Info("transfer from another member begins", "member", s.from, "ring", fingerprint(m.Ring))
			s.receivedKeys, s.receivedSince = 0, s.p.clock.mono()
		}
		if m.Flags == 0 {
			s.receivedKeys += len(m.Counters)
			s.p.m.keysReceived.Add(float64(len(m.Counters)))
		}
	case handoff.Ack:
		if m.Flags == 0 {
			seconds := float64(0)
			if m.ChunkIndex > 0 {
				seconds = float64(s.p.clock.mono()-s.receivedSince) / 1e9
			}
			s.p.log.Info("transfer from another member received", "member", s.from, "ring", fingerprint(m.Ring), "keys", s.receivedKeys, "seconds", seconds)
			s.receivedKeys = 0
		}
	}
}
