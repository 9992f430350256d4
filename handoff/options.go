// Package handoff moves counters between owners so that no charge is lost and none is counted twice.
//
// Ownership is the right to decide a key. Exactly one member holds it. It moves when the current and the next owner
// have adopted the same ring: the current owner stops deciding, sends the key's counter and then announces the
// transfer, with an Ack for complete arcs or with an OwnershipReply for a single key. Until then the current owner
// continues to decide, whatever ring it has adopted, so a key is never without an owner.
//
// A Machine tracks what one member owns and exchanges the heartbeats that keep its ownership valid. An OwnershipView is
// the immutable part of a Machine that decisions need. The scripts in testdata show the protocol step by step.
package handoff

import (
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// Options configures a Machine. Self and BootID are required.
type Options struct {
	Self   ring.ID
	BootID uint64 // boot ID of this member; odd
	// Detection sets for how long a confirmation keeps ownership valid (T_own, 1.5 s by default), and how long after its
	// last confirmation a failed member's keys may be taken over (T_take, 2 s by default).
	//
	// If members differ, a confirmation is valid for the shorter T_own of its two members, so the one that confirms may
	// take over after its own T_take. A member without an announced Detection may use a confirmation for the default
	// T_own in any case; others wait for the default T_take at least. An Ack makes its receiver wait as long as its
	// sender would.
	Detection membership.Detection
}
