// Package lease lets a member spend part of a limit alone until its window ends.
//
// The grantor of a key, its owner, charges a part of the limit and lends it: a grant. The holder decides questions from
// it without asking. What both say to each other is state, not events: a request says how much the holder has of a
// window in all, so a lost grant comes back with the next request, a return is a request that has less, and whatever is
// said twice counts once. Five conditions make the sum of all admissions at most the limit, for any number of holders,
// loss, duplication, reordering and clocks:
//
//	C1  a grant is charged before it is sent
//	C2  what comes back is credited once: only by a request newer than all before it, and only the difference between
//	    what the grantor has granted and what the holder says it has
//	C3  a holder drops a grant by the window in it, and not later than that window's end by the grantor's clock
//	C4  a return counts only in the window it was granted in, and only at a grantor that has decided the key ever since
//	C5  a charge is in the heir's memory before the grant is sent
//
// The scheme is window-coupled leasing (GALE); that credits end with the window is the sole source of its bound.
// Everything here is a value or guarded by the caller: no clock, no lock, no I/O. Times are Unix nanoseconds of the
// clock of whoever calls.
package lease

import (
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/ring"
)

// BatchKind says what a message holds. The numbers are part of the peer protocol.
type BatchKind uint8

// The kinds of messages.
const (
	Ask    BatchKind = 1 // Requests, from a holder to the grantor
	Lend   BatchKind = 2 // Grants, the answers
	Notify BatchKind = 3 // Notices, from the grantor to its holders
	kinds            = 4
)

// Batch is one message between a holder and a grantor. It may be lost, doubled and overtaken.
type Batch struct {
	Kind     BatchKind
	Requests []GrantRequest
	Grants   []Grant
	Notices  []Notice
}

// Delivery is a message to send.
type Delivery struct {
	To    ring.ID
	Batch Batch
}

// Terms are what a rule says of its leases. The zero value of each field means its default.
type Terms struct {
	Min, Max  uint32        // hits of one grant; defaults 10 and 10 000
	TTL       time.Duration // a grant is sized for so much demand; with Reclaim a holder that is silent for so long loses it; default 10 s
	Weight    uint32        // of this rule's holders against others of the same key; default 1
	Watermark uint8         // percent of the limit that is left from which on Approximate checks before it admits; default 20
	Sync      time.Duration // Approximate: the most between two reports of a holder; default 2 s
	Slack     uint32        // Approximate: hits that all members together may admit unseen (epsilon x limit, less for unknown identities)
	SubKeys   uint8         // of a hot key; default 4
	Dedicated bool          // a hot key goes to one other member, instead of sub-keys
	Reclaim   bool          // reclaim: ttl
	Uncapped  bool          // the rule refuses nobody (shadow and quota modes), so nobody else may
	Audit     bool          // every grant and reconciliation is logged
}

// GrantRequest asks for a part of a key's limit, gives back, and reports, all in one.
type GrantRequest struct {
	Key    [2]uint64
	Owner  uint64 // ring position
	Domain uint64
	Rule   limit.Rule
	Terms  Terms
	Seq    uint64 // rises with every request of this holder for this key, also over grantors
	Window int64  // that Have is of, as the grant named it
	Have   uint64 // hits granted in Window and not given back
	Left   uint64 // of these, not spent
	Want   bool   // more is wanted; otherwise this is a return or a report
	Always bool   // the rule says to lease, whether the key is hot or not
	Demand uint64 // offered hits in 1000 s, denials included
	// State is, for Approximate, what this member has admitted: its own slots, charged by its own writer.
	State limit.State
	Name  string // for people; empty when the grantor knows it
}

// Grant answers a Request.
type Grant struct {
	Key    [2]uint64
	Seq    uint64        // of the request
	Window int64         // of the rule's window, or for buckets a number that never comes again
	Total  uint64        // what the holder has of Window from now on
	Used   uint64        // the count that stands against the limit, with all that is lent
	Limit  uint32        // that Used stands against
	Left   time.Duration // until Window, or with Denied the refusal, ends by the grantor's clock
	Flags  GrantFlags
	// State is, for Approximate, everything that the owner knows of the key.
	State limit.State
}

// GrantFlags of a Grant.
type GrantFlags uint8

// The flags.
const (
	Hot    GrantFlags = 1 << 0 // go on leasing
	Last   GrantFlags = 1 << 1 // little is left: give back what is not needed, ask the owner from now on
	Denied GrantFlags = 1 << 2 // the limit is used up: refuse until Left has passed
	Named  GrantFlags = 1 << 3 // the grantor knows the key's name
)

// Notice tells a holder what it has not asked.
type Notice struct {
	Key    [2]uint64
	Window int64
	Limit  uint32
	Left   time.Duration // as in Grant
	Kind   NoticeKind
}

// NoticeKind a Notice says. The numbers are part of the peer protocol.
type NoticeKind uint8

// The notices.
const (
	Recall NoticeKind = 1 // as the flag Last
	Deny   NoticeKind = 2 // as the flag Denied
	Lift   NoticeKind = 3 // the limit was raised or hits were given back: forget the refusal
	Cool   NoticeKind = 4 // the key is not hot any more: give back, and ask the owner
)
