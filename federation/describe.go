package federation

import "github.com/keyward/keyward/internal/limit"

// EscrowState describes an Escrow at one time.
type EscrowState struct {
	Rule       limit.Rule
	Have, Left uint64       // hits that the region was lent of this window; the unspent part
	Used       uint64       // charged hits of the pool, by the newest reply
	Usable     uint64       // hits of the pool that can be lent; 0 before the first reply of a window
	UsedUp     bool         // the newest reply lent less than was requested
	Demand     float64      // hits per second offered here
	Ends       int64        // end of the window; 0: the coordinator has named none yet
	AnsweredAt int64        // time of the newest reply; 0: none
	Others     []RegionLine // the other regions by the newest reply; shared, and not to be changed
}

// Describe returns the state of e at now.
func (e *Escrow) Describe(now int64) EscrowState {
	e.roll(now)
	s := EscrowState{Rule: e.rule, UsedUp: e.dry, Demand: e.demand.Rate(now), AnsweredAt: e.answeredAt}
	if !e.ended {
		s.Have, s.Left, s.Used, s.Usable, s.Ends, s.Others = e.have, e.left, e.used, e.usable, e.endsAt, e.others
	}
	return s
}
