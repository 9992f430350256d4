package handoff

import (
	"math"
	"time"

	"github.com/keyward/keyward/ring"
)

const (
	// minStall is how far a peer's clock must have moved ahead, for its heartbeats to say that self's clock has stood
	// still. A member that loses less does no harm: its right ends Own after a confirmation, by its own clock, and the
	// others wait for Fence, which is half a second more. Clocks that NTP slews part by 1 ms a second at most, so in the
	// two windows for which a difference is remembered they come nowhere near it.
	minStall = 250 * time.Millisecond
	// offsetWindow is how long the least difference is remembered, and as long again.
	offsetWindow = int64(10 * time.Second)
)

// clockOffset bounds how far a peer's clock is ahead of self's.
//
// The peer stamps a heartbeat with its clock. When the heartbeat arrives, the stamp less self's clock is at most the
// difference between the clocks, because the message has aged on its way. The stamp of an answer, less the time at which
// self asked, is at least the difference. If the first exceeds the least of the second, then the difference has grown,
// and no delay of the network can cause that.
type clockOffset struct {
	seen        bool // an answer has come within the last two windows
	began       int64
	least, prev int64 // upper bounds, of this window and the one before
	heard       int64 // the last heartbeat
	ahead       int64 // the last heartbeat that showed a jump; 0: none has
	since       int64 // the first of those that came one after the other
	by          int64 // the size of the jump, at least
}

// hear processes a heartbeat, and reports whether the peer's clock has jumped ahead of self's.
func (l *clockOffset) hear(now int64, msg *Message, within int64) (jumped bool) {
	if age := now - l.began; l.seen && (age > 2*offsetWindow || age < 0) {
		*l = clockOffset{}
	}
	if by := msg.Now - now - min(l.least, l.prev); l.seen && by > int64(minStall) {
		if l.ahead == 0 || now-l.ahead > within {
			l.since = now
		}
		l.ahead, l.by, jumped = now, by, true
	}
	l.heard = now
	if msg.Kind == Pong {
		l.answered(now, msg.Now-msg.Sent)
	}
	return jumped
}

// answered notes an upper bound.
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

// ClockStall returns for how long self's clock must have stood still at least, as a heartbeat from the boot inst of member
// from shows it, or 0. Call it before Step with the same message.
//
// It takes two thirds of the peers that were heard within Own, all of whose clocks jumped ahead within Own: the clock of
// one peer that is set does not make two other members doubt theirs. Of two members each believes the other.
func (m *Machine) ClockStall(now int64, from ring.ID, inst uint64, msg *Message) time.Duration {
	p := m.peers[from]
	if p == nil || p.BootID != inst || msg.Now == 0 || msg.Kind == Pong && msg.Sent > now || !p.clock.hear(now, msg, int64(m.opts.OwnershipTTL)) {
		return 0
	}
	heard, ahead, least := 0, 0, int64(math.MaxInt64)
	for _, q := range m.sortedPeers {
		l := &q.clock
		if !l.seen || now-l.heard > int64(m.opts.OwnershipTTL) {
			continue
		}
		heard++
		if l.ahead > 0 && now-l.since <= int64(m.opts.OwnershipTTL) {
			ahead++
			least = min(least, l.by)
		}
	}
	if ahead == 0 || 3*ahead < 2*heard {
		return 0
	}
	return time.Duration(least)
}
