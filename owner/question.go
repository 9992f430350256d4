// Package owner is one member's state machine: it counts what the member owns and names who decides the rest.
//
// A question's way: Node.Decide hashes its key to a shard; under the shard's lock handoff's view says whether the key's
// token is here; limit decides on the state in the shard's table, or, when the table is full, on a sketch that
// over-estimates. For what others hold the answer names the member to ask: there the question meets Serve, its answer
// meets Observe here, and when no answer comes in time, Degrade decides. What was charged goes to the key's heir with
// Flush, what changes its owner with Pull; messages of other members come in by Step.
//
// Of keys that are hot, or whose rule says so, the owner lends parts (grant.go) to members that are asked for them, which
// decide from these (hold.go) or, for approximate rules, from their own copy (approx.go); what is said about that comes in
// by StepLease. Nothing here reads a clock, waits, or starts anything.
package owner

import (
	"time"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

// Key is the 128-bit digest that identifies a counter: domain, descriptor and kind of window. It does not depend on the
// limit, so a changed limit finds the same counter.
type Key = counter.Key

// Op is what a question wants done. The numbers are part of the peer protocol.
type Op uint8

// The operations.
const (
	Take   Op = 0 // charge Hits in full and say whether they fitted
	DryRun Op = 1 // say whether Hits would fit
	Refund Op = 2 // give Hits back
	// Read charges nothing and answers for the count as it stands, the way stop mode answers for descriptors that
	// another one kept from being charged: After is the count, and Before is After-Hits, which may wrap below 0.
	// Statistics made of Before, After and Hits then come out as envoyproxy/ratelimit's do.
	Read Op = 3
)

// Request asks for hits on one counter. It carries all that an owner needs, so owners need no rules.
type Request struct {
	Key     Key
	RingPos uint64 // ring position: Envoy's hash of the owner string
	Domain  uint64 // hash of the domain, for memory quotas
	// Waiter is returned with the result in Effects.Done if the request was pending. It does not travel.
	Waiter Waiter
	Rules  uint64 // version of the rules it was matched by
	Hits   uint64
	Rule   limit.Rule
	// LeaseConfig are what the rule says of leases; nil is all defaults. They do not travel with a question.
	LeaseConfig *lease.Terms
	LocalCap    uint32 // of FailOpen; 0 means this member's share of the limit, at least 1
	HotFactor   uint16 // a key is hot above so many times the mean rate; 0 means 10
	Op          Op
	Mechanism   policy.Mechanism
	Degraded    policy.Degraded
	// Strict wants no charge admitted that only this member knows of (durability: strict).
	Strict bool
}

// ResultKind says what to do with an Answer.
type ResultKind uint8

// The kinds.
const (
	Decided ResultKind = iota // the Decision stands
	Forward                   // ask Member; this one does not decide the key. No Member: nobody better is known
	Pending                   // the result comes later, in Effects.Done
)

// Authority is by what right a Decision was made. The numbers are part of the peer protocol.
type Authority uint8

// The authorities.
const (
	Full     Authority = 0 // the one owner, with the whole limit
	Part     Authority = 1 // the owner inside a minority
	Share    Authority = 2 // not the owner: this member's share
	Open     Authority = 3 // fail_open: admitted on the local cap
	Closed   Authority = 4 // fail_closed: from the quota snapshot, or refused
	Overflow Authority = 5 // the owner, by the conservative sketch of a full table
	Cached   Authority = 6 // refused from the deny cache
	Shed     Authority = 7 // refused, uncharged: the owner lives and is asked too much. It never travels
)

// Deadline is when an answer is given without the key's owner. Both are the same, or Alive is later.
type Deadline struct {
	Silent time.Time // when nothing has been heard of the owner while it was asked: the rule's degraded policy answers
	Alive  time.Time // when the owner is alive and has not answered yet: the question is refused, uncharged
}

// Path is how an answer was reached, for metrics and the direct-hit ratio.
type Path uint8

// The paths.
const (
	Local     Path = iota // decided where it was asked
	Forwarded             // decided by the owner, one hop away
	Leased                // decided from a lease, or what stands in for one
	Fallback              // decided by the rule's degraded policy
)

// Result answers one Question.
type Result struct {
	limit.Decision
	Member    ring.ID // whom to ask, with Ask
	Kind      ResultKind
	Authority Authority
	Path      Path
	Hot       bool // the key is hot or leased: who knows its name should tell it with Name
}
