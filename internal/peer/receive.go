package peer

import (
	"errors"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/lease"
)

// Reasons to refuse a message.
const (
	refusedMalformed = "malformed"
	refusedTooLarge  = "too_large"
	refusedBoot      = "instance"
	refusedUnknown   = "unknown_member"
	refusedOld       = "old"
)

// receive takes in a message of kind k. One that is refused changes nothing, and the stream goes on: the questions on
// it are as good as before.
func (s *server) receive(now int64, k handoff.MessageKind, payload []byte) {
	m, err := s.messages.parse(k, payload)
	if err != nil {
		s.refused(unreadable(err))
		return
	}
	heartbeat := k == handoff.Ping || k == handoff.Pong // no better for being young; they tell how far the clocks are apart
	if reason := s.refuses(now, m.Now, heartbeat); reason != "" {
		s.refused(reason)
		return
	}
	s.note(now, m)
	s.p.applyHere(s.p.o.Node.Step(now, s.from, s.inst, m))
	switch k {
	case handoff.Ping, handoff.Ack, handoff.OwnershipRequest:
		s.p.transfers()
		s.p.progressed()
	case handoff.Pong, handoff.OwnershipReply:
		s.p.progressed()
	}
}

// receiveLease does the same with a lease message.
func (s *server) receiveLease(now int64, k lease.BatchKind, payload []byte) {
	m, sent, err := s.leases.parse(k, payload)
	if err != nil {
		s.refused(unreadable(err))
		return
	}
	if reason := s.refuses(now, sent, false); reason != "" {
		s.refused(reason)
		return
	}
	s.p.apply(s.p.o.Node.StepLease(now, s.from, s.inst, m))
}

func (s *server) refused(reason string) { s.p.m.refused.WithLabelValues(reason).Inc() }

// unreadable is the reason to refuse a message that could not be read.
func unreadable(err error) string {
	for _, e := range []error{errCounters, errSlots, errLeases, errName} {
		if errors.Is(err, e) {
			return refusedTooLarge
		}
	}
	return refusedMalformed
}

// refuses says why a message that was sent at sent, by its sender's clock, must not be taken in: it is not between the
// two boots that are members now, or has been on its way for so long that what it speaks of may have been forgotten here.
func (s *server) refuses(now, sent int64, ageless bool) string {
	l := (*s.p.links.Load())[s.from]
	switch {
	case l == nil:
		return refusedUnknown
	case s.inst == 0 || s.toInst != s.p.o.BootID || l.addr.BootID != s.inst:
		return refusedBoot
	case !ageless && s.p.skews.old(s.from, sent, now):
		return refusedOld
	}
	return ""
}

// note keeps what the transport has to know of m.
func (s *server) note(now int64, m *handoff.Message) {
	switch m.Kind {
	case handoff.Pong:
		if l := (*s.p.links.Load())[s.from]; l != nil {
			l.alive(m.Sent, now)
		}
		s.p.skews.pong(s.from, m.Sent, m.Now, now)
	case handoff.ReplicaAck:
		s.p.m.replicas(ok).Inc()
	case handoff.OwnershipReply:
		if m.Status == handoff.KeyGiven {
			s.p.m.keysReceived.Add(float64(len(m.Counters)))
		}
	case handoff.Chunk:
		if m.Part == 0 && m.Flags == 0 {
			s.p.log.Info("transfer from another member begins", "member", s.from, "ring", fingerprint(m.Ring))
			s.keys, s.began = 0, s.p.clock.mono()
		}
		if m.Flags == 0 {
			s.keys += len(m.Counters)
			s.p.m.keysReceived.Add(float64(len(m.Counters)))
		}
	case handoff.Ack:
		if m.Flags == 0 {
			seconds := float64(0)
			if m.Part > 0 {
				seconds = float64(s.p.clock.mono()-s.began) / 1e9
			}
			s.p.log.Info("transfer from another member received", "member", s.from, "ring", fingerprint(m.Ring), "keys", s.keys, "seconds", seconds)
			s.keys = 0
		}
	}
}
