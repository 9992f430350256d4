package federation

import (
	"hash/fnv"
	"time"
)

// RuleTerms are a rule's settings of its federation. They are shared and immutable.
type RuleTerms struct {
	Authority uint32        // AuthorityID of the coordinator's name, or DefaultAuthority; 0 with a Floor of 100
	Floor     uint8         // percent of a region's slice that is its floor; 100: nothing is lent
	Outage    Outage        // what happens while the coordinator is away
	Batch     time.Duration // time for which a lot lasts; default 1 s
	Store     StoreTerms
	Named     bool // the coordinator needs the name of each counter, since another service counts in it too
}

// AuthorityID returns the number by which members name a coordinator to each other. It is not 0.
func AuthorityID(name string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // to a hash
	return max(1, h.Sum32())
}

var (
	// DefaultAuthority is the Authority of rules that name none: that of the layout of the window.
	DefaultAuthority = AuthorityID("")
	spreadAuthority  = AuthorityID(SpreadCoordinator)
)

// Outage determines how a region decides while the coordinator is away. The numbers are part of the peer protocol.
type Outage uint8

// The outage policies.
const (
	FailClosed   Outage = iota // spend the floor and the escrow, and refuse then
	RegionalOnly               // spend the region's slice, less what it was lent
	Snapshot                   // spend the region's slice of what was left of the pool at the newest reply, once
	FailOpen                   // admit up to the rule's local cap on each member

	outages = 4
)

var outageNames = [outages]string{"fail_closed", "regional_only", "snapshot", "fail_open"}

// String returns the policy as it is written in a rules file.
func (o Outage) String() string {
	if int(o) < len(outageNames) {
		return outageNames[o]
	}
	return outageNames[FailClosed]
}

// ParseOutage returns the policy with that name.
func ParseOutage(name string) (o Outage, ok bool) {
	for i, n := range outageNames {
		if n == name {
			return Outage(i), true
		}
	}
	return 0, false
}

// SnapshotAge is how old the newest reply may be for Snapshot to use it.
const SnapshotAge = time.Minute
