// Package lease lets a member spend part of a limit alone until its window ends.
//
// The grantor of a key is its owner. It charges a part of the limit and lends it: a grant. The holder decides requests
// from it locally. Messages contain state, not events: a request contains the total that the holder has of a window, so
// a lost grant is repeated with the next request, a return is a request with a lower total, and repeated messages count
// once. Five conditions ensure that all admissions together stay within the limit, for any number of holders, with
// lost, repeated and reordered messages, and with any clocks:
//
//	C1  a grant is charged before it is sent
//	C2  a return is credited once: only by a request newer than all before it, and only the difference between
//	    what the grantor has granted and what the holder reports
//	C3  a holder drops a grant by the window in it, and not later than that window's end by the grantor's clock
//	C4  a return counts only in the window it was granted in, and only at a grantor that has decided the key ever since
//	C5  a charge is replicated to the successor before the grant is sent
//
// The scheme is window-coupled leasing (GALE). Its bound follows only from the fact that credits end with the window.
// All types are values or guarded by the caller; the package has no clock, no locks and no I/O. Times are Unix
// nanoseconds by the caller's clock.
package lease

import (
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/ring"
)

// BatchKind is the content of a Batch. The numbers are part of the peer protocol.
type BatchKind uint8

// The batch kinds.
const (
	Ask    BatchKind = 1 // Requests, from a holder to the grantor
	Lend   BatchKind = 2 // Grants, in reply
	Notify BatchKind = 3 // Notices, from the grantor to its holders
	kinds            = 4
)

// Batch is one message between a holder and a grantor. It may be lost, repeated or reordered.
type Batch struct {
	Kind     BatchKind
	Requests []GrantRequest
	Grants   []Grant
	Notices  []Notice
}

// Delivery is a Batch to send to a member.
type Delivery struct {
	To    ring.ID
	Batch Batch
}

// Terms are the parameters of a rule's leases. The zero value of a field means its default. Slack is epsilon x limit,
// less for unknown identities.
type Terms struct {
	Min, Max uint32        // hits of one grant; defaults 10 and 10,000
	TTL      time.Duration // demand that a grant covers; with Reclaim, silence after which it is lost; default 10 s
	Weight   uint32        // of this rule's holders relative to others of the same key; default 1
	// Watermark is, for Approximate, the percentage of the limit below which the owner decides each request. 0 means that
	// members report the more often, the less of the last 20 % is left.
	Watermark uint8
	// LocalWatermark is, for Approximate, the percentage of the hits that a member may admit unreported below which the
	// owner decides each request until the member has reported; 0 means none. It is not sent to the owner.
	LocalWatermark uint8
	Sync           time.Duration          // Approximate: longest interval of a holder's reports; default 2 s
	Slack          uint32                 // Approximate: hits that all members together may admit unreported
	SubKeys        uint8                  // of a hot key; default 4
	Dedicated      bool                   // forward a hot key to one other member instead of using sub-keys
	Reclaim        bool                   // reclaim: ttl
	Uncapped       bool                   // the rule refuses no request (shadow and quota modes), so holders must not either
	Audit          bool                   // log every grant and reconciliation
	Partition      policy.PartitionChoice // the rule's policy for partitions
	// ReclaimCrash is reclaim: crash. The grantor lends the balance of a holder again once the cluster has declared the
	// holder failed. Reclaim is not set then.
	ReclaimCrash bool
}

// GrantRequest requests part of a key's limit, returns unused hits, and reports demand.
type GrantRequest struct {
	Key     [2]uint64
	RingPos uint64 // ring position of the key
	Domain  uint64
	Rule    limit.Rule
	Terms   Terms
	Seq     uint64 // increases with every request of this holder for this key, also across grantors
	Window  int64  // window of Have, as in the grant
	Have    uint64 // hits granted in Window and not returned
	Left    uint64 // the part of them that is unspent
	Want    bool   // more hits are wanted; otherwise this is a return or a report
	Always  bool   // the rule always uses leases, even for keys that are not hot
	Demand  uint64 // offered hits in 1000 s, including refused ones
	// State is, for Approximate, what this member has admitted: its own slots, charged by its own writer.
	State limit.State
	Name  string // readable name; empty if the grantor knows it
}

// Grant is the reply to a GrantRequest.
type Grant struct {
	Key    [2]uint64
	Seq    uint64        // of the request
	Window int64         // index of the rule's window; for buckets a number that is never used again
	Total  uint64        // hits that the holder has of Window from now on
	Used   uint64        // count of the key, including everything that is lent
	Limit  uint32        // limit that applies to Used
	Left   time.Duration // until Window, or with Denied the refusal, ends by the grantor's clock
	Flags  GrantFlags
	// State is, for Approximate, the owner's complete state of the key.
	State limit.State
}

// GrantFlags are the flags of a Grant.
type GrantFlags uint8

// The flags.
const (
	Hot    GrantFlags = 1 << 0 // continue leasing
	Last   GrantFlags = 1 << 1 // the limit is nearly used up: return what is not needed, and forward requests from now on
	Denied GrantFlags = 1 << 2 // the limit is used up: refuse until Left has passed
	Named  GrantFlags = 1 << 3 // the grantor knows the key's name
)

// Notice is a message to a holder that does not reply to a request.
type Notice struct {
	Key    [2]uint64
	Window int64
	Limit  uint32
	Left   time.Duration // as in Grant
	Kind   NoticeKind
	Boot   uint64 // Move: of the escrow that had the hits
	EndsAt int64  // Move: when the hits end, by the sender's clock
}

// NoticeKind is the content of a Notice. The numbers are part of the peer protocol.
type NoticeKind uint8

// The notice kinds.
const (
	Recall NoticeKind = 1 // as the flag Last
	Deny   NoticeKind = 2 // as the flag Denied
	Lift   NoticeKind = 3 // the limit was raised or hits were refunded: end the refusal
	Cool   NoticeKind = 4 // the key is no longer hot: return the balance and forward requests
	Move   NoticeKind = 5 // to a key's next owner: Limit hits of the escrow of a federation's pool, valid for Left and until EndsAt
)
