package assign

import (
	"math/rand/v2"
	"time"

	"github.com/keyward/keyward/internal/assign/lots"
	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/quota"
	"github.com/keyward/keyward/owner"
)

// chargeTimeout is how long the owner may take to charge a lot, after which the rest of a window is worth more than it.
const chargeTimeout = time.Second

func newIdent() claim.Ident { return claim.Ident{rand.Uint64(), rand.Uint64()} }

// charge asks the owner for hits, and gives the ledger those that the owner has charged.
func (a *Assigner) charge(r owner.Request, h quota.WindowHits) {
	got, left := a.reserve(&r, h)
	granted := quota.AskResult{WindowHits: quota.WindowHits{Key: h.Key, Window: h.Window}, Left: left}
	changed := false
	a.step(func(now int64) {
		c := a.keys[h.Key]
		if changed = c != nil && c.request.Key != r.Key; changed { // the rule has changed meanwhile
			granted.Left = quota.LeftUnknown
		} else if c != nil && got != nil {
			granted.Hits = got.Hits
			c.lots = append(c.lots, *got)
		}
		a.ledger.Granted(now, granted)
	})
	if changed && got != nil {
		a.decide(a.now(), lots.Settle(r, owner.Release, 0, got.ID))
	}
}

// reserve makes a hold of h at the owner. It returns the lot, or nil, and how many hits the limit still has room for, or
// quota.LeftUnknown.
func (a *Assigner) reserve(r *owner.Request, h quota.WindowHits) (got *lots.HeldLot, left uint64) {
	now := a.now()
	q, l, ok := lots.Reserve(*r, h, now.UnixNano(), newIdent())
	if !ok {
		return nil, quota.LeftUnknown
	}
	res := a.decide(now, q)
	charged, release, left := lots.Charged(&q, &l, &res, a.now().UnixNano())
	if release {
		a.decide(a.now(), lots.Settle(*r, owner.Release, 0, l.ID))
	}
	if !charged {
		return nil, left
	}
	return &l, left
}

// decide lets the owner decide r.
func (a *Assigner) decide(now time.Time, r owner.Request) owner.Result { return a.decideAll(now, r)[0] }

// decideAll lets the owner decide rs at the same time.
func (a *Assigner) decideAll(now time.Time, rs ...owner.Request) []owner.Result {
	d := now.Add(chargeTimeout)
	return lots.DecideAll(a.charger, policy.Deadline{Silent: d, Alive: d}, rs...)
}

// giveBack returns hits to the owner.
func (a *Assigner) giveBack(now int64, h quota.WindowHits) {
	c := a.keys[h.Key]
	if c == nil {
		a.metrics.lost.Add(float64(h.Hits))
		return
	}
	from, request := &c.lots, c.request
	if c.before != nil {
		from, request = &c.before.lots, c.before.request
	}
	settlements, kept := lots.Return(from, request, now, h)
	a.metrics.lost.Add(float64(kept)) // of lots that were settled before
	for _, s := range settlements {
		a.request(func() {
			to := a.metrics.lost
			if a.decide(a.now(), s.Request).Authority.FromCounter() {
				to = a.metrics.returned
			}
			to.Add(float64(s.Hits))
		})
	}
}

// announce makes the hold of a demand, releases that of the demand before, and gives the ledger the sum.
func (a *Assigner) announce(now int64, d quota.KeyDemand) {
	c := a.keys[d.Key]
	if c == nil || c.noting {
		return
	}
	before, next := c.note.Current(now), lots.NewNote(&c.request, d.Hits, now, newIdent())
	c.noting = true
	r := c.request
	a.request(func() {
		kept, sums := a.exchangeNotes(r, before, next, lots.DemandRequest)
		a.step(func(now int64) {
			if c := a.keys[d.Key]; c != nil {
				c.note, c.noting = kept, false
			}
			if sums.callsKnown { // else they keep their part until the next exchange
				a.ledger.CallsDemanded(now, d.Key, lots.Demand(&r, sums.calls))
			}
			a.ledger.Demanded(now, d.Key, lots.Demand(&r, sums.notes))
		})
	})
}

// withdraw releases the demands that this member has announced: its Envoys and callers will be those of other members.
func (a *Assigner) withdraw(now int64) {
	end := func(r owner.Request, n *lots.Note, request func(*owner.Request, owner.Op, lots.Note) owner.Request) {
		if last := n.Current(now); last.At != 0 {
			*n = lots.Note{}
			a.request(func() { a.decide(a.now(), request(&r, owner.Release, last)) })
		}
	}
	for _, c := range a.keys {
		end(c.request, &c.note, lots.DemandRequest)
	}
	for _, c := range a.callers {
		end(c.request, &c.note, lots.CallsRequest)
	}
}

// noteSums are the parts of the demands of all members. notes is 0 if it is not known.
type noteSums struct {
	notes      uint64 // those of the note's kind
	calls      uint64
	callsKnown bool
}

// exchangeNotes makes the hold next, which request describes, and then releases the one before, if there is one, or extends the
// one before. It returns the member's note and the sums.
func (a *Assigner) exchangeNotes(r owner.Request, before, next lots.Note, request func(*owner.Request, owner.Op, lots.Note) owner.Request) (
	kept lots.Note, sums noteSums,
) {
	calls := lots.CallsRequest(&r, owner.DryRun, lots.Note{})
	calls.Hold = nil
	do := func(op owner.Op, n lots.Note) (res owner.Result, ok bool) {
		as := a.decideAll(a.now(), request(&r, op, n), calls)
		if as[1].Authority == owner.Full {
			sums.calls, sums.callsKnown = as[1].After, true
		}
		return as[0], !as[0].Over && as[0].Authority == owner.Full
	}
	if before.At != 0 && before.Near(&next) {
		if res, ok := do(owner.Extend, before); ok {
			before.At, sums.notes = next.At, max(before.Parts, res.After)
			return before, sums
		}
	}
	kept, ended := before, next // it may exist, although there is no answer
	if res, ok := do(owner.Reserve, next); ok {
		kept, ended, sums.notes = next, before, max(next.Parts, res.After-min(res.After, before.Parts))
	}
	if ended.At != 0 {
		a.decide(a.now(), request(&r, owner.Release, ended))
	}
	return kept, sums
}
