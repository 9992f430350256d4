// Package lots makes the requests with which a sidecar has hits charged for its Envoys at the owner of their key, and
// judges the results.
package lots

import (
	"slices"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/quota"
	"github.com/keyward/keyward/owner"
)

// Charger decides requests on counters, as peer.Peer does.
type Charger interface {
	Decide(deadline policy.Deadline, stop bool, qs []owner.Request, as []owner.Result)
}

// Decide lets c decide q.
func Decide(c Charger, deadline policy.Deadline, q owner.Request) owner.Result {
	return DecideAll(c, deadline, q)[0]
}

// DecideAll lets c decide qs at the same time.
func DecideAll(c Charger, deadline policy.Deadline, qs ...owner.Request) []owner.Result {
	as := make([]owner.Result, len(qs))
	c.Decide(deadline, false, qs, as)
	return as
}

// HeldLot is a number of hits that the owner has charged to a window at once. It is a hold: if the sidecar dies, it stays
// charged.
type HeldLot struct {
	ID     claim.Ident
	Window int64
	Ends   int64 // of the window
	Hits   uint64
}

// Reserve returns the request that charges h, at the time now, as a hold with that ID, and what it charges. r is a request
// of the key. It returns false if h is of another window than the current or the next one, or of one that cannot be charged.
// The charge is replicated before the owner answers.
func Reserve(r owner.Request, h quota.WindowHits, now int64, id claim.Ident) (q owner.Request, l HeldLot, ok bool) {
	ahead := r.Rule.Index(now)+1 == h.Window
	if !ahead && r.Rule.Index(now) != h.Window || ahead && r.Rule.Algorithm != limit.FixedWindow {
		return owner.Request{}, HeldLot{}, false
	}
	end := r.Rule.End(h.Window)
	r.Op, r.Hits, r.Strict = owner.Reserve, h.Hits, true
	r.Hold = &owner.Hold{ID: id, TTL: time.Duration(end - now + int64(time.Second)), Ahead: ahead}
	return r, HeldLot{ID: id, Window: h.Window, Ends: end, Hits: h.Hits}, true
}

// Charged judges the result of the request that was to charge l, at the time now. If charged, l may be assigned. If it must be
// released, it was or may have been charged otherwise than intended. left is how many hits the limit still has room for, or
// quota.LeftUnknown.
func Charged(q *owner.Request, l *HeldLot, res *owner.Result, now int64) (charged, release bool, left uint64) {
	byOwner, depth := res.Authority.FromCounter(), uint64(q.Rule.Depth())
	switch {
	case res.Over && !byOwner:
		return false, true, quota.LeftUnknown // the owner may have charged it, and its answer is late
	case res.Over:
		return false, false, depth - min(depth, res.Before)
	case !byOwner, !inWindow(q, res, l.Window, now):
		return false, true, quota.LeftUnknown // charged by this member's share, or to another window
	}
	return true, false, depth - min(depth, res.After)
}

// inWindow reports whether the owner has charged to that window. Its clock may differ, near the ends of the window.
func inWindow(q *owner.Request, res *owner.Result, window, now int64) bool {
	off := now + int64(res.Reset) - q.Rule.End(window)
	return max(off, -off) < int64(q.Rule.Window)/2 && now < q.Rule.End(window)
}

// Settle returns the request that settles a hold of the key of r.
func Settle(r owner.Request, op owner.Op, used uint64, id claim.Ident) owner.Request {
	r.Op, r.Hits = op, used
	r.Hold = &owner.Hold{ID: id, TTL: time.Second}
	return r
}

// Settlement gives hits of a lot back.
type Settlement struct {
	Request owner.Request
	Hits    uint64
}

// Return removes h from the lots, the newest ones first, and returns the requests that give it back, and how many of its hits
// stay charged. A hold can be settled once, so the rest of a lot of which a part is given back cannot be returned later.
func Return(lots *[]HeldLot, r owner.Request, now int64, h quota.WindowHits) (settle []Settlement, kept uint64) {
	Drop(lots, now)
	for i := len(*lots) - 1; i >= 0 && h.Hits > 0; i-- {
		l := (*lots)[i]
		if l.Window != h.Window {
			continue
		}
		op, used := owner.Release, uint64(0)
		if l.Hits > h.Hits {
			op, used = owner.Commit, l.Hits-h.Hits
		}
		h.Hits -= l.Hits - used
		*lots = slices.Delete(*lots, i, i+1)
		settle = append(settle, Settlement{Settle(r, op, used, l.ID), l.Hits - used})
	}
	return settle, h.Hits
}

// Drop removes the lots of windows that have ended.
func Drop(lots *[]HeldLot, now int64) {
	*lots = slices.DeleteFunc(*lots, func(l HeldLot) bool { return l.Ends <= now })
}
