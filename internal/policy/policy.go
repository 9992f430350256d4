// Package policy names how the requests of a rule are decided. Rules state it, requests carry it to the owner of their
// key.
package policy

import "fmt"

// Mechanism selects which member decides the requests of a rule. The numbers are part of the peer protocol.
type Mechanism uint8

// The mechanisms.
const (
	ByOwner     Mechanism = 0 // the key's owner decides every request, unless the key is hot
	ByLease     Mechanism = 1 // members always decide from leases that the owner grants
	Approximate Mechanism = 2 // members decide locally and report to the owner later; the unreported hits are bounded
	Static      Mechanism = 3 // each member admits its share of the limit; never sent to other members
)

// String returns the mechanism as it is written in a rules file.
func (m Mechanism) String() string {
	switch m {
	case ByOwner:
		return "owner"
	case ByLease:
		return "lease"
	case Approximate:
		return "approximate"
	case Static:
		return "static"
	}
	return fmt.Sprintf("mechanism(%d)", uint8(m))
}

// Degraded selects what decides a request whose owner does not answer before the deadline. The numbers are part of the
// peer protocol.
type Degraded uint8

// The degraded policies.
const (
	LocalShare Degraded = 0 // this member's share of the limit
	FailOpen   Degraded = 1 // admit, up to local_cap per member and window
	FailClosed Degraded = 2 // this member's share of what is left by its newest state of the key; then refuse
)

// String returns the policy as it is written in a rules file.
func (d Degraded) String() string {
	switch d {
	case LocalShare:
		return "local_share"
	case FailOpen:
		return "fail_open"
	case FailClosed:
		return "fail_closed"
	}
	return fmt.Sprintf("degraded(%d)", uint8(d))
}
