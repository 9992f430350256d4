package federation

import "time"

// longestMove is the longest time for which moved hits are stored until the key's next request.
const longestMove = 24 * time.Hour

// movedBoots is how many escrows can be moved into another one in its life. Hits of further ones are lost until their
// window ends.
const movedBoots = 8

// EscrowMove contains the hits that one escrow of a region has left, on their way to the key's next owner in the region.
// They can be spent there, and are not returned to the coordinator. They count once, by Boot.
//
// EndsAt is a time and not a duration, because the receiver cannot know how long the message was on its way. It is not later
// than the end of the window by the coordinator's clock. So the margin for clocks remains for those of the region's members,
// however often the hits move.
type EscrowMove struct {
	Boot   uint64 // of the escrow that had it
	Window int64
	Hits   uint64
	EndsAt int64 // by the clock of the member that sends it, and then of the one that has it
	Taken  bool  // by the escrow of the member that has it, which may have moved on since
}

// Arrived returns m at a member that receives it at now. When it was sent, left was the time until EndsAt: if the sender's
// clock is ahead of the receiver's by more than the message took, now and left are sooner.
func (m EscrowMove) Arrived(now int64, left time.Duration) EscrowMove {
	m.EndsAt = min(m.EndsAt, now+int64(min(left, longestMove)))
	return m
}

// movedHits contains the hits that an escrow has received from earlier ones of the region.
type movedHits struct {
	boots  []uint64 // from which
	window int64
	had    uint64 // hits of window that came
	left   uint64
	endsAt int64
}

// Move takes what is left out of the escrow, which is not used any more: its key has another owner in the region. It is
// called until ok is false, because what came from earlier escrows moves apart. In the margin after the end by the
// coordinator's clock, nothing moves.
func (e *Escrow) Move(now int64) (m EscrowMove, ok bool) {
	e.roll(now)
	m = EscrowMove{Boot: e.boot, Window: e.window, Hits: e.left, EndsAt: e.lentUntil}
	e.left, e.inFlight = 0, false
	if m.Hits == 0 || now >= m.EndsAt {
		m = EscrowMove{Boot: ^e.boot, Window: e.moved.window, Hits: e.moved.left, EndsAt: e.moved.endsAt}
		e.moved.left = 0
	}
	return m, m.Hits > 0
}

// AcceptMove adds what an earlier escrow of the region had, by rule r. It returns false if that has ended, or was added
// before.
func (e *Escrow) AcceptMove(now int64, m EscrowMove) bool {
	v := &e.moved
	endsAt := min(m.EndsAt, e.rule.End(m.Window))
	for _, boot := range v.boots {
		if boot == m.Boot {
			return false
		}
	}
	if m.Boot == e.boot || now >= endsAt || m.Window < max(v.window, e.window) || len(v.boots) >= movedBoots {
		return false
	}
	if m.Window > v.window {
		v.window, v.had, v.left, v.endsAt = m.Window, 0, 0, endsAt
	}
	v.boots, v.endsAt = append(v.boots, m.Boot), min(v.endsAt, endsAt)
	v.had, v.left = v.had+m.Hits, v.left+m.Hits
	return true
}
