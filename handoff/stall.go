package handoff

import (
	"math"
	"time"

	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/ring"
)

// offsetWindow is the length of a window. The least offset is remembered for the current window and the previous one.
const offsetWindow = int64(10 * time.Second)

// clockOffset bounds how far a peer's clock is ahead of the local clock.
//
// The peer stamps a heartbeat with its clock. When the heartbeat arrives, the stamp minus the local clock is at most
// the offset of the clocks, because the message has aged in transit. The stamp of a reply minus the time of the ping is
// at least the offset. If the first exceeds the least of the second, the offset has grown, and no network delay can
// cause that.
type clockOffset struct {
	seen        bool // a reply arrived within the last two windows
	began       int64
	least, prev int64 // upper bounds, of the current window and the previous one
	heartbeatAt int64 // time of the last heartbeat
	ahead       int64 // time of the last heartbeat that showed a jump; 0: none
	since       int64 // time of the first heartbeat in the present series of jumps
	by          int64 // lower bound of the jump
}

// hear processes a heartbeat and reports whether the peer's clock has jumped ahead of the local clock, by more than
// least. Jumps within the given time of each other are one series.
func (l *clockOffset) hear(now int64, msg *protocol.Message, least, within int64) (jumped bool) {
	if age := now - l.began; l.seen && (age > 2*offsetWindow || age < 0) {
		*l = clockOffset{}
	}
	if by := msg.Now - now - min(l.least, l.prev); l.seen && by > least {
		if l.ahead == 0 || now-l.ahead > within {
			l.since = now
		}
		l.ahead, l.by, jumped = now, by, true
	}
	l.heartbeatAt = now
	if msg.Kind == protocol.Pong {
		l.answered(now, msg.Now-msg.Sent)
	}
	return jumped
}

// answered records an upper bound.
func (l *clockOffset) answered(now, most int64) {
	switch {
	case !l.seen:
		l.seen, l.began, l.least, l.prev = true, now, most, most
	case now-l.began > offsetWindow:
		l.began, l.prev, l.least = now, l.least, most
	default:
		l.least = min(l.least, most)
	}
}

// ClockStall returns a lower bound for how long the local clock stopped, as shown by a heartbeat from the given boot of
// a member, or 0. Call it before Step with the same message.
//
// It requires that the clocks of two thirds of the peers heard from within T_own jumped ahead within T_own: one peer
// with a wrong clock must not make two other members distrust theirs. In a cluster of two, each member believes the
// other.
func (m *Machine) ClockStall(now int64, from ring.ID, bootID uint64, msg *protocol.Message) time.Duration {
	p := m.peers[from]
	if p == nil || p.BootID != bootID || msg.Now == 0 || msg.Kind == protocol.Pong && msg.Sent > now {
		return 0
	}
	ttl := int64(m.opts.Detection.OwnershipTTL())
	if !p.clock.hear(now, msg, m.minStall, ttl) {
		return 0
	}
	heard, ahead, least := 0, 0, int64(math.MaxInt64)
	for _, q := range m.sortedPeers {
		l := &q.clock
		if !l.seen || now-l.heartbeatAt > ttl {
			continue
		}
		heard++
		if l.ahead > 0 && now-l.since <= ttl {
			ahead++
			least = min(least, l.by)
		}
	}
	if ahead == 0 || 3*ahead < 2*heard {
		return 0
	}
	return time.Duration(least)
}
