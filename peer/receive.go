package peer

import (
	"errors"

	"github.com/keyward/keyward/handoff"
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
func (s *server) receive(now int64, k handoff.Kind, payload []byte) {
	m, err := s.messages.parse(k, payload)
	reason := ""
	switch {
	case errors.Is(err, errCounters) || errors.Is(err, errSlots):
		reason = refusedTooLarge
	case err != nil:
		reason = refusedMalformed
	default:
		reason = s.refuses(now, m)
	}
	if reason != "" {
		s.p.m.refused.WithLabelValues(reason).Inc()
		return
	}
	s.note(now, m)
	s.p.apply(s.p.o.Node.Step(now, s.from, s.inst, m))
	switch k {
	case handoff.Ping, handoff.Ack, handoff.SealReq:
		s.p.transfers()
		wake(s.p.moved)
	case handoff.Pong, handoff.Sealed:
		wake(s.p.moved)
	}
}

// refuses says why m must not be taken in: it is not between the two boots that are members now, or has been on its way
// for so long that what it speaks of may have been forgotten here. Heartbeats may be old; they are no better for it,
// and tell how far the clocks are apart.
func (s *server) refuses(now int64, m *handoff.Msg) string {
	l := (*s.p.links.Load())[s.from]
	switch {
	case l == nil:
		return refusedUnknown
	case s.inst == 0 || s.toInst != s.p.o.Inst || l.addr.Inst != s.inst:
		return refusedBoot
	case m.Kind != handoff.Ping && m.Kind != handoff.Pong && s.p.skews.old(s.from, m.Now, now):
		return refusedOld
	}
	return ""
}

// note keeps what the transport has to know of m.
func (s *server) note(now int64, m *handoff.Msg) {
	switch m.Kind {
	case handoff.Pong:
		s.p.skews.pong(s.from, m.Sent, m.Now, now)
	case handoff.Got:
		s.p.m.replicas(ok).Inc()
	case handoff.Sealed:
		if m.Status == handoff.Given {
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
