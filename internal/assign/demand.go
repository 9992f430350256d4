package assign

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/quota"
	"github.com/keyward/keyward/owner"
)

// The members add up their demands in a counter of its own next to the key's, at the same owner. Its rule counts requests
// in flight, so the count is the sum of the holds that are open: one of each member, which is the member's demand. A
// member that has failed is no longer part of the sum when its hold has lapsed. Owners of earlier versions need to know
// nothing about this.

// note is the hold of a member's demand.
type note struct {
	id    claim.Ident
	parts uint64
	at    int64 // when it was made; 0: there is none
	busy  bool  // a request is in progress
}

const (
	demandUnit = 1 << 16            // parts of a demand that is equal to the limit
	demandMost = 64 * demandUnit    // parts of one member, at most
	noteWindow = 20 * time.Second   // of the counter of demands
	noteKey0   = 0x9ae16a3b2f90404f // turns a key into that of its demands
	noteKey1   = 0xc3a5c85c97cb3127
)

// demandRequest returns a request about the demands for the key of r.
func demandRequest(r *owner.Request, op owner.Op, parts uint64, id claim.Ident) owner.Request {
	return owner.Request{
		Key: owner.Key{r.Key[0] ^ noteKey0, r.Key[1] ^ noteKey1}, RingPos: r.RingPos, Domain: r.Domain, Rules: r.Rules,
		Rule: limit.Rule{Limit: math.MaxUint32, Window: noteWindow, Algorithm: limit.InFlight}, Hits: parts, Op: op,
		Degraded: policy.FailClosed, Volatile: true, Hold: &owner.Hold{ID: id, TTL: quota.DemandLife, Flags: claim.Releases},
	}
}

// announce makes the hold of a demand, releases that of the demand before, and gives the ledger the sum.
func (a *Assigner) announce(now int64, d quota.KeyDemand) {
	c := a.keys[d.Key]
	if c == nil || c.note.busy || c.request.Rule.Limit == 0 {
		return
	}
	before := c.note
	if now-before.at >= int64(quota.DemandLife-chargeTimeout) {
		before = note{} // it may have lapsed
	}
	unit := float64(c.request.Rule.Limit) / demandUnit
	next := note{
		id: claim.Ident{rand.Uint64(), rand.Uint64()}, at: now,
		parts: uint64(min(max(1, math.Ceil(float64(d.Hits)/unit)), demandMost)),
	}
	c.note.busy = true
	a.running.Add(1)
	go a.exchangeNotes(c.request, d.Key, before, next, unit)
}

// exchangeNotes makes the hold next and then releases the one before, if there is one.
func (a *Assigner) exchangeNotes(r owner.Request, key quota.Key, before, next note, unit float64) {
	defer a.running.Done()
	res := a.decide(a.now(), demandRequest(&r, owner.Reserve, next.parts, next.id))
	all := uint64(0) // it is not known
	made := !res.Over && res.Authority == owner.Full
	if made {
		all = uint64(math.Ceil(float64(max(next.parts, res.After-min(res.After, before.parts))) * unit))
	}
	kept, ended := next, before
	if !made { // it may exist nevertheless
		kept, ended = before, next
	}
	a.step(func(now int64) {
		if c := a.keys[key]; c != nil {
			c.note = kept
		}
		a.ledger.Demanded(now, key, all)
	})
	if ended.at != 0 {
		a.decide(a.now(), demandRequest(&r, owner.Release, 0, ended.id))
	}
}
