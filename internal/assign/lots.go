package assign

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/quota"
	"github.com/keyward/keyward/owner"
)

// lot is a number of hits that the owner has charged to a window at once. It is a hold: if the sidecar dies, it stays charged.
type lot struct {
	id     claim.Ident
	window int64
	ends   int64 // of the window
	hits   uint64
}

// chargeTimeout is how long the owner may take to charge a lot, after which the rest of a window is worth more than it.
const chargeTimeout = time.Second

// charge asks the owner for hits, and gives the ledger those that the owner has charged. The charge is replicated before
// the owner answers.
func (a *Assigner) charge(r owner.Request, h quota.WindowHits) {
	defer a.running.Done()
	got, left := a.reserve(&r, h)
	granted := quota.Grant{WindowHits: quota.WindowHits{Key: h.Key, Window: h.Window}, Left: left}
	a.step(func(now int64) {
		if c := a.keys[h.Key]; c != nil && got != nil {
			granted.Hits = got.hits
			c.lots = append(c.lots, *got)
		}
		a.ledger.Granted(now, granted)
	})
}

// reserve makes a hold of h at the owner. It returns the lot, or nil, and how many hits the limit still has room for, or
// quota.LeftUnknown.
func (a *Assigner) reserve(r *owner.Request, h quota.WindowHits) (got *lot, left uint64) {
	now := a.now()
	end := r.Rule.End(h.Window)
	ahead := r.Rule.Index(now.UnixNano())+1 == h.Window
	if !ahead && r.Rule.Index(now.UnixNano()) != h.Window || ahead && r.Rule.Algorithm != limit.FixedWindow {
		return nil, quota.LeftUnknown
	}
	l := &lot{id: claim.Ident{rand.Uint64(), rand.Uint64()}, window: h.Window, ends: end, hits: h.Hits}
	r.Op, r.Hits, r.Strict = owner.Reserve, h.Hits, true
	r.Hold = &owner.Hold{ID: l.id, TTL: time.Duration(end - now.UnixNano() + int64(time.Second)), Ahead: ahead}
	res := a.decide(now, *r)
	switch {
	case res.Over && res.Authority != owner.Full && res.Authority != owner.Part:
		return nil, quota.LeftUnknown
	case res.Over:
		return nil, uint64(r.Rule.Depth()) - min(uint64(r.Rule.Depth()), res.Before)
	case res.Authority != owner.Full && res.Authority != owner.Part, !inWindow(r, &res, h.Window, a.now().UnixNano()):
		a.settle(*r, owner.Release, 0, l.id) // charged by this member's share, or to another window
		return nil, quota.LeftUnknown
	}
	return l, uint64(r.Rule.Depth()) - min(uint64(r.Rule.Depth()), res.After)
}

// inWindow reports whether the owner has charged to that window. Its clock may differ, near the ends of the window.
func inWindow(r *owner.Request, res *owner.Result, window, now int64) bool {
	off := now + int64(res.Reset) - r.Rule.End(window)
	return max(off, -off) < int64(r.Rule.Window)/2 && now < r.Rule.End(window)
}

// decide lets the owner decide r.
func (a *Assigner) decide(now time.Time, r owner.Request) owner.Result {
	qs, as := []owner.Request{r}, make([]owner.Result, 1)
	d := now.Add(chargeTimeout)
	a.charger.Decide(policy.Deadline{Silent: d, Alive: d}, false, qs, as)
	return as[0]
}

// settle settles a hold. It reports whether the owner has confirmed it.
func (a *Assigner) settle(r owner.Request, op owner.Op, used uint64, id claim.Ident) bool {
	r.Op, r.Hits = op, used
	r.Hold = &owner.Hold{ID: id, TTL: time.Second}
	res := a.decide(a.now(), r)
	return res.Authority == owner.Full || res.Authority == owner.Part
}

// giveBack returns hits to the owner, the newest lots first.
func (a *Assigner) giveBack(now int64, h quota.WindowHits) {
	c := a.keys[h.Key]
	if c == nil {
		a.metrics.lost.Add(float64(h.Hits))
		return
	}
	c.dropLots(now)
	for i := len(c.lots) - 1; i >= 0 && h.Hits > 0; i-- {
		l := c.lots[i]
		if l.window != h.Window {
			continue
		}
		op, used := owner.Release, uint64(0)
		if l.hits > h.Hits {
			op, used = owner.Commit, l.hits-h.Hits
		}
		back := l.hits - used
		h.Hits -= back
		c.lots = slices.Delete(c.lots, i, i+1) // a hold can be settled once, so the rest of it cannot be returned later
		a.running.Add(1)
		go func(r owner.Request) {
			defer a.running.Done()
			to := a.metrics.lost
			if a.settle(r, op, used, l.id) {
				to = a.metrics.returned
			}
			to.Add(float64(back))
		}(c.request)
	}
	a.metrics.lost.Add(float64(h.Hits)) // of lots that were settled before
}

// dropLots forgets the lots of windows that have ended.
func (c *counter) dropLots(now int64) {
	c.lots = slices.DeleteFunc(c.lots, func(l lot) bool { return l.ends <= now })
}
