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
	defer a.running.Done()
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
func (a *Assigner) decide(now time.Time, r owner.Request) owner.Result {
	d := now.Add(chargeTimeout)
	return lots.Decide(a.charger, policy.Deadline{Silent: d, Alive: d}, r)
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
		a.running.Add(1)
		go func() {
			defer a.running.Done()
			to := a.metrics.lost
			if a.decide(a.now(), s.Request).Authority.FromCounter() {
				to = a.metrics.returned
			}
			to.Add(float64(s.Hits))
		}()
	}
}

// announce makes the hold of a demand, releases that of the demand before, and gives the ledger the sum.
func (a *Assigner) announce(now int64, d quota.KeyDemand) {
	c := a.keys[d.Key]
	if c == nil || c.noting {
		return
	}
	before := c.note
	if before.Lapsed(now) {
		before = lots.Note{}
	}
	c.noting = true
	a.running.Add(1)
	go a.exchangeNotes(c.request, d.Key, before, lots.NewNote(&c.request, d.Hits, now, newIdent()))
}

// exchangeNotes makes the hold next and then releases the one before, if there is one, or extends the one before.
func (a *Assigner) exchangeNotes(r owner.Request, key quota.Key, before, next lots.Note) {
	defer a.running.Done()
	if before.At != 0 && before.Near(&next) {
		res := a.decide(a.now(), lots.DemandRequest(&r, owner.Extend, before))
		if !res.Over && res.Authority == owner.Full {
			before.At = next.At
			a.noted(key, before, lots.Demand(&r, max(before.Parts, res.After)))
			return
		}
	}
	res := a.decide(a.now(), lots.DemandRequest(&r, owner.Reserve, next))
	all, kept, ended := uint64(0), before, next // it may exist, although there is no answer
	if !res.Over && res.Authority == owner.Full {
		all, kept, ended = lots.Demand(&r, max(next.Parts, res.After-min(res.After, before.Parts))), next, before
	}
	a.noted(key, kept, all)
	if ended.At != 0 {
		a.decide(a.now(), lots.DemandRequest(&r, owner.Release, ended))
	}
}

// noted records a member's note, and gives the ledger the sum of all, 0 if it is not known.
func (a *Assigner) noted(key quota.Key, n lots.Note, all uint64) {
	a.step(func(now int64) {
		if c := a.keys[key]; c != nil {
			c.note, c.noting = n, false
		}
		a.ledger.Demanded(now, key, all)
	})
}
