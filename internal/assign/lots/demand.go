package lots

import (
	"math"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/quota"
	"github.com/keyward/keyward/owner"
)

// The members add up the demands of their Envoys in a counter of its own next to the key's, at the same owner. Its rule counts requests
// in flight, so the count is the sum of the holds that are open: one of each member, which is the member's demand. A
// member that has failed is no longer part of the sum when its hold has lapsed. Owners of earlier versions need to know
// nothing about this.

// Note is the hold of a member's demand.
type Note struct {
	ID    claim.Ident
	Parts uint64
	At    int64 // when it was made or extended; 0: there is none
}

// The sizes of notes.
const (
	DemandUnit = 1 << 16          // parts of a demand that is equal to the limit
	DemandMost = 64 * DemandUnit  // parts of one member, at most
	noteWindow = 20 * time.Second // of the counter of demands

	noteKey0 = 0x9ae16a3b2f90404f // turn a key into that of its demands
	noteKey1 = 0xc3a5c85c97cb3127
	callKey0 = 0xb492b66fbe98f273 // turn that into the key of the demands of calls
)

// NewNote returns the note of a demand for the key of r.
func NewNote(r *owner.Request, hits uint64, now int64, id claim.Ident) Note {
	parts := math.Ceil(float64(hits) * DemandUnit / float64(max(1, r.Rule.Limit)))
	return Note{ID: id, Parts: uint64(min(max(1, parts), DemandMost)), At: now}
}

// Demand returns the hits that parts stand for.
func Demand(r *owner.Request, parts uint64) uint64 {
	return uint64(math.Ceil(float64(parts) * float64(r.Rule.Limit) / DemandUnit))
}

// Lapsed reports whether n may have lapsed at the time now, or exists no longer.
func (n *Note) Lapsed(now int64) bool {
	return n.At == 0 || now < n.At || now-n.At >= int64(quota.DemandLife-2*time.Second)
}

// Current returns n, or no note if n may have lapsed at the time now.
func (n *Note) Current(now int64) Note {
	if n.Lapsed(now) {
		return Note{}
	}
	return *n
}

// Near reports whether n and next differ so little that extending n is better: while a member has two notes, others see
// too much.
func (n *Note) Near(next *Note) bool {
	return max(n.Parts, next.Parts)-min(n.Parts, next.Parts) <= n.Parts/20
}

// DemandRequest returns a request about a note for the key of r.
func DemandRequest(r *owner.Request, op owner.Op, n Note) owner.Request {
	q := owner.Request{
		Key: owner.Key{r.Key[0] ^ noteKey0, r.Key[1] ^ noteKey1}, RingPos: r.RingPos, Domain: r.Domain, Rules: r.Rules,
		Rule: limit.Rule{Limit: math.MaxUint32, Window: noteWindow, Algorithm: limit.InFlight}, Op: op,
		Degraded: policy.FailClosed, Volatile: true, Hold: &owner.Hold{ID: n.ID, TTL: quota.DemandLife, Flags: claim.Releases},
	}
	if op == owner.Reserve {
		q.Hits = n.Parts
	}
	return q
}

// CallsRequest is DemandRequest for a note of the demand of calls, which has a counter of its own at the same owner: hits for
// calls are charged when they come, and those for Envoys before.
func CallsRequest(r *owner.Request, op owner.Op, n Note) owner.Request {
	q := DemandRequest(r, op, n)
	q.Key[0] ^= callKey0
	return q
}
