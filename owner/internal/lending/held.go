package lending

import (
	"math"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

// heldLease is the lease that this member holds, or requests, of one key that another member owns.
type heldLease struct {
	lease.Holding
	key       Key
	ringPos   uint64
	domain    uint64
	rule      limit.Rule
	mechanism policy.Mechanism
	grantor   ring.ID // the member that was last asked
	queued    bool    // the Leases' requests contain the key
	named     bool    // the grantor has the key's name
	drift     drift   // of Approximate
}

// Spend is a request for hits of a key that another member owns.
type Spend struct {
	counter.Ref // its Rule and Full are the request's rule
	Hits        uint64
	Mechanism   policy.Mechanism
	Terms       *lease.Terms // nil is all defaults
}

// Holds reports whether this member holds or requests a lease of key.
func (l *Leases) Holds(key Key) bool { return l.held[key] != nil }

// HoldsAny reports whether this member holds or requests any lease.
func (l *Leases) HoldsAny() bool { return len(l.held) > 0 }

// AllowHits ends the refusals that the grantor of key has required, if this member holds a lease of it.
func (l *Leases) AllowHits(now int64, key Key) {
	if held := l.held[key]; held != nil {
		held.ReceiveNotice(now, &lease.Notice{Kind: lease.Lift, Window: math.MaxInt64})
	}
}

// Decide decides r from this member's lease, which it requests if there is a reason to. The result is lease.Unknown if
// the owner has to decide.
func (l *Leases) Decide(r *Spend) (d limit.Decision, result lease.SpendResult) {
	held := l.held[r.Key]
	if held == nil {
		if held = l.maybeAcquire(r); held == nil {
			return d, lease.Unknown
		}
	}
	held.update(r)
	if held.mechanism == policy.Approximate {
		return l.approximate(held, r)
	}
	d, result = held.Decide(r.Now, r.Rule, r.Hits)
	switch urgent := result == lease.Unknown; {
	case held.queued && urgent:
		l.owner.RequestFlush(true)
	case !held.queued && held.Due(r.Now):
		l.queueRequest(held, urgent || held.Urgent(r.Now))
	}
	switch result {
	case lease.Admitted:
		l.stats.LocalHits += r.Hits
	case lease.Refused:
		l.stats.LocalDenied++
	}
	return d, result
}

// maybeAcquire adds a held lease for r's key if there is a reason to request one.
func (l *Leases) maybeAcquire(r *Spend) *heldLease {
	switch mode := l.lender.routeMode(r.RingPos); {
	case r.Mechanism == policy.Approximate:
	case r.Rule.Algorithm.Log() || mode == hotkey.Never && r.Mechanism != policy.ByLease:
		return nil
	case r.Mechanism == policy.ByLease, mode != hotkey.Auto:
	case !l.forwardsMany(r.Now, r.Key):
		return nil
	}
	return l.addLease(r)
}

// addLease adds a held lease for r's key. It returns nil if there are too many.
func (l *Leases) addLease(r *Spend) *heldLease {
	if l.lender.held.Add(1) > int64(l.lender.config.MaxLeases) {
		l.lender.held.Add(-1)
		l.stats.NoRoom++
		return nil
	}
	if l.held == nil {
		l.held = map[Key]*heldLease{}
	}
	held := &heldLease{key: r.Key}
	held.Salt = l.lender.salt(r.Key)
	held.update(r)
	l.held[r.Key] = held
	return held
}

// update sets what r's rule sets for leases.
func (held *heldLease) update(r *Spend) {
	held.ringPos, held.domain, held.rule, held.mechanism = r.RingPos, r.Domain, r.Rule, r.Mechanism
	if r.Terms != nil {
		held.Terms = *r.Terms
	}
	if held.mechanism == policy.ByLease {
		held.MarkHot()
	}
}

// queueRequest queues a request for the lease for the next Flush, which urgent requires at once.
func (l *Leases) queueRequest(held *heldLease, urgent bool) {
	if held.queued {
		return
	}
	held.queued = true
	l.requests = append(l.requests, held.key)
	l.owner.RequestFlush(urgent)
}

// ObserveHot requests a lease of r's key, which its owner reports as hot. If the owner has refused r because nothing is
// left, isExhausted is true, and this member refuses for a moment; hits that become free meanwhile are not lost.
func (l *Leases) ObserveHot(r *Spend, isExhausted bool) {
	held := l.held[r.Key]
	if held == nil {
		if held = l.addLease(r); held == nil {
			return
		}
	}
	held.update(r)
	held.MarkHot()
	if isExhausted && r.Now >= held.DeniedUntil() {
		n := lease.Notice{Kind: lease.Deny, Window: math.MaxInt64, Limit: r.Rule.Depth(), Left: leastDeny}
		held.ReceiveNotice(r.Now, &n)
	}
}

// sendRequests sends the queued requests for leases.
func (l *Leases) sendRequests(now int64, out *Outbox) {
	for _, key := range l.requests {
		held := l.held[key]
		if held == nil {
			continue
		}
		held.queued = false
		owner := l.view.Ownership(held.ringPos, l.counters.Find(key).OwnedEpoch(held.ringPos))
		if owner.State != handoff.OwnedElsewhere || !l.lender.machine.CanReceive(owner.Member) {
			continue
		}
		held.grantor = owner.Member
		r := l.request(held, now)
		m := out.message(held.grantor, lease.Ask)
		m.Requests = append(m.Requests, r)
	}
	l.requests = l.requests[:0]
}

// request returns the request for a lease, or the report of an approximate rule.
func (l *Leases) request(held *heldLease, now int64) lease.GrantRequest {
	var r lease.GrantRequest
	if held.mechanism == policy.Approximate {
		r = l.buildReport(held, now)
	} else {
		r = held.Request(now)
	}
	r.Key, r.RingPos, r.Domain, r.Always = held.key, held.ringPos, held.domain, held.mechanism == policy.ByLease
	if !held.named {
		r.Name = l.names[held.key].wire()
	}
	return r
}

// AcceptGrant processes the reply of member from to a request for a lease.
func (l *Leases) AcceptGrant(now int64, from ring.ID, g *lease.Grant) {
	held := l.held[g.Key]
	if held == nil || held.grantor != from {
		return
	}
	if held.mechanism == policy.Approximate {
		l.acceptReportReply(held, now, g)
		return
	}
	before := held.Left(now)
	if !held.Accept(now, g) {
		return
	}
	if held.named = g.Flags&lease.Named != 0; held.mechanism == policy.ByLease {
		held.MarkHot()
	}
	if got := saturatingSub(held.Left(now), before); got > 0 {
		l.stats.Granted++
		l.stats.GrantedHits += got
	} else {
		l.stats.Empty++
	}
}

// AcceptNotice processes a notice of a grantor.
func (l *Leases) AcceptNotice(now int64, from ring.ID, notice *lease.Notice) {
	held := l.held[notice.Key]
	if held == nil || held.grantor != from {
		return
	}
	if held.ReceiveNotice(now, notice); notice.Kind == lease.Lift {
		l.counters.Deny.Remove(l.counters.Hash(notice.Key), notice.Key)
	}
	if held.Due(now) {
		l.queueRequest(held, false)
	}
}

// tickHeld queues the requests that are due at time now, and drops unused leases.
func (l *Leases) tickHeld(now int64) {
	for _, key := range counter.SortedKeys(l.held) {
		held := l.held[key]
		switch {
		case held.mechanism == policy.Approximate:
			if l.reportDue(held, now) {
				l.queueRequest(held, false)
			} else if held.drift.idle(now) {
				l.drop(held)
			}
		case held.Idle(now):
			l.drop(held)
		case held.Due(now):
			l.queueRequest(held, false)
		}
	}
}

// drop removes held.
func (l *Leases) drop(held *heldLease) {
	l.takeStats(held)
	delete(l.held, held.key)
	l.lender.held.Add(-1)
}
