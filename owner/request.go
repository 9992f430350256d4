package owner

import (
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

// Key is the 128-bit digest that identifies a counter: domain, descriptor and kind of window. It does not depend on the
// limit, so a changed limit finds the same counter.
type Key = counter.Key

// Op is the operation that a request asks for. The numbers are part of the peer protocol.
type Op uint8

// The operations.
const (
	Take   Op = 0 // charge all Hits and report whether they were within the limit
	DryRun Op = 1 // report whether Hits would be within the limit
	Refund Op = 2 // refund Hits
	// Read charges nothing and reports the present count, as stop mode does for descriptors that another one keeps from
	// being charged: After is the count, and Before is After-Hits, which may wrap below 0. Statistics made of Before,
	// After and Hits then equal those of envoyproxy/ratelimit.
	Read Op = 3
	// Reserve is Take, except that nothing is charged if it exceeds the limit. It makes the claim of Request.Hold, which one
	// of the following operations settles. Only the first one has an effect.
	Reserve Op = 4
	Commit  Op = 5 // Hits were used: give back the rest of the claim, or charge what exceeds it
	Release Op = 6 // give back all of the claim
	Keep    Op = 7 // give back nothing
	Extend  Op = 8 // the claim's TTL begins again
)

// Settles reports whether o settles a claim.
func (o Op) Settles() bool { return o == Commit || o == Release || o == Keep }

// Hold names the claim of a request, and says what the claim is like.
type Hold struct {
	ID     claim.Ident
	Caller uint64        // who makes it; 0: unknown
	TTL    time.Duration // after which it lapses
	Max    uint32        // open claims of the key, at most; 0: no limit of its own
	Flags  claim.Flags
	// ChargeOver makes a Reserve that exceeds the limit charge and make a claim, for rules in shadow mode.
	ChargeOver bool
	// Ahead makes a Reserve charge the next window of a limit.FixedWindow instead of the current one. Result.Reset is the
	// time until that window ends: so the caller notices an owner of an earlier version, which charges the current one.
	Ahead bool
	// Oldest makes a Commit settle the oldest open claim of the key and Caller. ID is then that of the settlement, so that it
	// has no effect when it comes twice.
	Oldest bool
	// Until is the time, in Unix nanoseconds, after which repeating the settlement is useless; 0: claim.MarkLife after
	// Since. It is not forwarded.
	Until int64
	// Since is when the settlement first failed, for callers that repeat it; 0: it has not. It is not forwarded.
	Since int64
}

// Request asks for hits on one counter. It contains all that an owner needs, so owners need no rules.
type Request struct {
	Key     Key
	RingPos uint64 // Envoy's hash of the owner string
	Domain  uint64 // hash of the domain, for memory quotas
	// Waiter is returned with the result in Ready.Done if the request was pending. It is not forwarded.
	Waiter Waiter
	Rules  uint64 // version of the rules that matched
	Hits   uint64
	Rule   limit.Rule
	// LeaseTerms holds the rule's settings for leases; nil is all defaults. It is not forwarded with the request.
	LeaseTerms *lease.Terms
	// Tenant is the digest of the tenant that asks, if the rule divides its limit between tenants; 0: it does not.
	Tenant       uint64
	TenantWeight uint32 // of the tenant, at least 1
	LocalCap     uint32 // of FailOpen; 0 means this member's local share of the limit, at least 1
	HotFactor    uint16 // a key is hot above this multiple of the mean rate of others; 0 means 10
	Op           Op
	Mechanism    policy.Mechanism
	Degraded     policy.Degraded
	// Partition is the rule's policy for partitions; 0 is Options.Policy of the owner.
	Partition policy.PartitionChoice
	// Hold is set for the operations from Reserve on, and for a Take that must not be charged twice (claim.Once).
	Hold *Hold
	// Federation holds the rule's settings of a limit that several regions share; nil: the limit is the cluster's own.
	Federation *federation.RuleTerms
	// Name is the counter's name for a coordinator that needs it; see federation.PoolRequest.
	Name string
	// Strict requires that no charge is admitted that only this member has recorded, or that a journal of the rule's
	// counters lacks (durability: strict).
	Strict bool
	// Volatile keeps the counter out of the journal (durability: memory).
	Volatile bool
	// Audit reports whether the rule has audit logs.
	Audit bool
	// Whole makes the request's call all or nothing: if it is refused, nothing is charged. It is not forwarded, and neither
	// is Veto.
	Whole bool
	Veto  Veto
}

// Veto is when a request that exceeds its limit refuses a call that is all or nothing.
type Veto uint8

// The vetoes.
const (
	VetoAlone    Veto = iota // always
	VetoNever                // never, as in shadow mode
	VetoTogether             // if all such requests of the call exceed their limits, as quotas
)

// ResultKind describes how the caller has to continue.
type ResultKind uint8

// The kinds.
const (
	Decided ResultKind = iota // the Decision is valid
	Forward                   // this member does not decide the key: send the request to Member, if there is one
	Pending                   // the result follows in Ready.Done
)

// Authority describes the basis of a decision: full ownership, a partition's part, or a local share. The numbers are
// part of the peer protocol.
type Authority uint8

// The authorities.
const (
	Full     Authority = 0 // the owner, with the complete limit
	Part     Authority = 1 // the owner on the smaller side of a partition
	Share    Authority = 2 // not the owner: this member's local share
	Open     Authority = 3 // fail_open: admitted within the local cap
	Closed   Authority = 4 // fail_closed: from a replica or the owner's last reply, or refused
	Overflow Authority = 5 // the owner, by the conservative sketch of a full table
	Cached   Authority = 6 // refused from the deny cache
	Shed     Authority = 7 // refused and not charged, because the owner is overloaded. It is never sent to other members
	Static   Authority = 8 // mechanism static: this member's share, always. It is never sent to other members
	Escrow   Authority = 9 // the owner, from what the region was lent of a federation's pool
)

// FromCounter reports whether the key's owner decided by the key's counter, on either side of a partition.
func (a Authority) FromCounter() bool { return a == Full || a == Part }

// Path is how a decision was reached, for metrics and the direct-hit ratio.
type Path uint8

// The paths.
const (
	Local     Path = iota // decided by the member that received the request
	Forwarded             // decided by the owner, one hop away
	Leased                // decided from a lease, or from an approximate rule's copy
	Fallback              // decided by the rule's degraded policy
)

// Result is the result of one Request.
type Result struct {
	limit.Decision
	Member    ring.ID // where to forward the request, with Forward
	Kind      ResultKind
	Authority Authority
	Path      Path
	FairShare bool // refused to leave the rest of the limit to other tenants
	// The Remaining and Reset that a Read would have had in place of a charge whose claim is of a set; 0 of all others.
	ReadRemaining uint32
	ReadReset     time.Duration
	Hot           bool // the key is hot or leased: a caller that has its name passes it to Name
	// Holds is the number of the key's open holds, and Held the sum of their hits, which the count includes. Both are 0
	// except for the operations Read and DryRun, decided by the owner.
	Holds uint32
	Held  uint64
}
