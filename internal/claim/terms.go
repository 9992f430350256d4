// Package claim remembers which charges of a counter may be given back: the holds of requests that were charged before
// their cost was known, the requests in flight, and the charges that a repeated request must not repeat.
//
// A claim is made when its hits are charged, and is settled once. Everything in the package is a value; it has no
// clock, no locks and no I/O.
package claim

import "time"

// Settle is how the requests of a rule are settled.
type Settle uint8

// The ways to settle.
const (
	// SettleMarked settles a hold by a request whose descriptor ends with keyward.hold.
	SettleMarked Settle = 0
	// SettleAddend reserves with requests of 0 hits, and settles with later ones that have hits.
	SettleAddend Settle = 1
)

// Lapse determines whether a hold that nothing settles within its TTL is given back.
type Lapse uint8

// The lapses.
const (
	LapseKeep    Lapse = 0 // it stays charged
	LapseRelease Lapse = 1 // it is given back
)

// The defaults of HoldTerms.
const (
	DefaultTTL = 10 * time.Minute
	DefaultMax = 16384
)

// HoldTerms are a rule's settings for holds. They are immutable.
type HoldTerms struct {
	Reserve uint64        // hits of a hold whose request has no hits of its own
	TTL     time.Duration // after which an open hold lapses; 1s to 24h
	Max     uint32        // open holds of one key
	Settle  Settle
	Lapse   Lapse
}
