package lease

import (
	"time"

	"github.com/keyward/keyward/internal/limit"
)

// RenewalInterval is the time between two requests of a busy holder.
const RenewalInterval = time.Second

const (
	minWait          = 100 * time.Millisecond // first timeout of a request; doubles
	maxWait          = time.Second            // longest timeout, and pause after grants without hits
	idleAfter        = time.Second            // a holder without requests for this long returns its balance
	idleAfterNearEnd = 100 * time.Millisecond // the same, when the limit is nearly used up
	windowGrace      = time.Second            // after a window has ended by the holder's clock, it has ended by all clocks
	urgentWithin     = minWait                // a balance that lasts for less is renewed at once
	lowPercent       = 30                     // percent of the balance after the last grant at which more is requested
)

// SpendResult is the result of a local decision.
type SpendResult uint8

// The results.
const (
	Unknown  SpendResult = iota // the owner must decide
	Admitted                    // spent from the balance
	Refused                     // the owner reported that the limit is used up
)

// HoldingStats counts events at a holder.
type HoldingStats struct {
	Local      uint64 // requests decided locally
	Grants     uint64 // grants with hits
	Timeouts   uint64 // requests without a reply in time
	Stranded   uint64 // hits that expired, neither spent nor returned
	Violations Violations
}

// Add adds o to s.
func (s *HoldingStats) Add(o HoldingStats) {
	s.Local += o.Local
	s.Grants += o.Grants
	s.Timeouts += o.Timeouts
	s.Stranded += o.Stranded
	s.Violations.Add(o.Violations)
}

// Holding is the lease of one member on a key that it does not own. The caller guards it, sends a Request when one is
// Due, and passes on the reply and notices. The zero Holding has no hits and requests some after the first decision. At
// most one request is in flight. Nothing is spent after the window has ended by the grantor's clock. Clocks need not
// agree: the remaining time in a grant counts from the time of the request.
type Holding struct {
	Terms Terms  // of the rule
	Salt  uint64 // spreads retries, by key and member

	rule       limit.Rule // of the last decision
	window     int64      // window of have and left; 0: none
	have, left uint64
	lastLot    uint64 // balance after the last grant
	endsAt     int64  // end of the window, not later than by the grantor's clock
	expiresAt  int64  // end of the balance: endsAt, or earlier with Reclaim
	used       uint64 // count of the key when the last grant was made
	limit      uint32 // limit that applied to used

	seq         uint64 // of the newest request
	sentAt      int64  // when it was sent
	inFlight    bool   // its reply may still arrive
	wanted      bool   // it requested more hits
	tries       uint8  // consecutive requests without a reply
	emptyGrants uint8  // consecutive grants without hits, although some were wanted

	decidedAt      int64  // time of the last decision
	busy           bool   // a decision was made after the last request
	shortOfBalance bool   // a decision was forwarded because the balance was too low
	nearEnd        bool   // the limit is nearly used up
	pauseUntil     int64  // nothing is requested before this time
	deniedUntil    int64  // hits are refused until this time
	deniedLimit    uint32 // applies to rules with at most this limit
	coldSince      int64  // since when the key is no longer hot; 0: it is hot
	demand         RateMeter
	stats          HoldingStats
}

// Decide decides hits, which must not be 0, from the balance or a known refusal if possible. The counts of the Decision
// are estimates: the count at the last grant less the local balance, and never above the limit unless refused.
func (h *Holding) Decide(now int64, r limit.Rule, hits uint64) (limit.Decision, SpendResult) {
	if r != h.rule {
		h.setRule(now, r)
	}
	h.demand.Count(now, hits)
	h.decidedAt, h.busy = now, true
	h.expire(now)
	switch {
	case hits <= h.left && r.Depth() >= h.limit: // of a lowered limit, only the owner knows the rest
		h.stats.Local++
		return h.spend(now, r, hits), Admitted
	case now < h.deniedUntil && r.Depth() <= h.deniedLimit:
		h.stats.Local++
		return h.deny(now, r, hits), Refused
	}
	h.shortOfBalance = true
	return limit.Decision{}, Unknown
}

// setRule replaces the rule.
func (h *Holding) setRule(now int64, r limit.Rule) {
	if h.rule != (limit.Rule{}) && (r.Algorithm != h.rule.Algorithm || r.Window != h.rule.Window) {
		h.Drop(now)
	}
	if r.Depth() > h.deniedLimit {
		h.deniedUntil, h.pauseUntil = 0, 0
	}
	h.rule = r
}

func (h *Holding) spend(now int64, r limit.Rule, hits uint64) limit.Decision {
	depth := uint64(r.Depth())
	d := limit.Decision{Before: h.used - min(h.used, h.left)}
	d.After = min(d.Before+hits, depth)
	d.Remaining = uint32(depth - d.After)
	h.left -= hits
	d.Reset = limit.WholeSeconds(h.endsAt - now)
	if r.Algorithm.Bucket() {
		d.Reset = limit.WholeSeconds(int64(float64(d.After) * float64(r.Window) / float64(max(1, r.Limit))))
	}
	return d
}

func (h *Holding) deny(now int64, r limit.Rule, hits uint64) limit.Decision {
	depth := uint64(r.Depth())
	reset := limit.WholeSeconds(h.deniedUntil - now)
	return limit.Decision{Before: depth, After: limit.SaturatingAdd(depth, hits), Over: true, Reset: reset}
}

// expire drops hits that may no longer be spent (C3). Hits that a holder gives up because of Reclaim count as returned,
// because the grantor credits them by itself.
func (h *Holding) expire(now int64) {
	if now >= h.endsAt {
		h.nearEnd = false
	}
	if now >= h.endsAt+int64(windowGrace) {
		h.window, h.have = 0, 0
	}
	switch {
	case h.left == 0 || now < h.expiresAt:
		return
	case now < h.endsAt:
		h.have -= h.left
		h.inFlight = false
	default:
		h.stats.Stranded += h.left
	}
	h.left = 0
}

// Due reports whether a request should be sent now.
func (h *Holding) Due(now int64) bool {
	h.expire(now)
	if h.inFlight {
		return now-h.sentAt >= h.wait(h.tries) && now-h.decidedAt < int64(forgetAfter)
	}
	return h.surplus(now) > 0 || h.wants(now) || h.busy && h.coldSince == 0 && now-h.sentAt >= int64(RenewalInterval)
}

// Urgent reports whether the balance will be spent before a reply arrives if the request waits for others.
func (h *Holding) Urgent(now int64) bool {
	return h.shortOfBalance || float64(h.left) < h.demand.Rate(now)*urgentWithin.Seconds()
}

// wants reports whether more hits are needed.
func (h *Holding) wants(now int64) bool {
	if h.coldSince != 0 || now < h.pauseUntil || now < h.deniedUntil || now-h.decidedAt >= int64(idleAfter) {
		return false
	}
	// A new slice of a bucket replaces the previous one, so it is not requested before that is spent.
	return h.shortOfBalance || h.lastLot > 0 && !h.rule.Algorithm.Bucket() && h.left <= h.lastLot*lowPercent/100
}

// surplus returns the hits to return: all if there are no requests or the key is not hot; near the end of the limit
// those that will not be needed before the window ends, if that is most of them.
func (h *Holding) surplus(now int64) uint64 {
	quiet := now - h.decidedAt
	switch {
	case h.left == 0 || h.rule.Algorithm.Bucket():
		return 0
	case h.coldSince != 0 || quiet >= int64(idleAfter) || h.nearEnd && quiet >= int64(idleAfterNearEnd):
		return h.left
	case h.nearEnd:
		need := h.demand.Rate(now) * time.Duration(h.endsAt-now).Seconds()
		if keep := uint64(min(need, float64(h.left))) + 1; keep < h.left/2 {
			return h.left - keep
		}
	}
	return 0
}

// wait returns the timeout after the given try: 100 ms to 1 s, spread by an eighth.
func (h *Holding) wait(try uint8) int64 {
	d := int64(maxWait)
	if try < 4 {
		d = min(d, int64(minWait)<<try)
	}
	x := (h.Salt + uint64(try)) * 0x9E3779B97F4A7C15 >> 40 // 24 bits
	return d - d/8 + int64(x)*(d/4)>>24
}

// Request returns the request to send now; the caller adds the fields that identify the key. Replies to earlier
// requests are no longer accepted.
func (h *Holding) Request(now int64) GrantRequest {
	h.expire(now)
	if h.inFlight {
		h.stats.Timeouts++
		h.tries = min(h.tries+1, 8)
	}
	h.wanted = h.wants(now)
	back := h.surplus(now)
	h.left -= back
	h.have -= back
	// Based on the clock, so that a new Holding and the next boot of this member continue with higher numbers.
	h.seq = max(h.seq+1, uint64(max(0, now)))
	h.sentAt, h.inFlight, h.busy = now, true, false
	return GrantRequest{
		Rule: h.rule, Terms: h.Terms, Seq: h.seq, Window: h.window, Have: h.have, Left: h.left, Want: h.wanted,
		Demand: uint64(min(h.demand.Rate(now)*1000, 1<<62)),
	}
}

// Accept processes the reply to the request in flight. It returns false if g replies to another request or violates a
// condition.
func (h *Holding) Accept(now int64, g *Grant) bool {
	if !h.inFlight || g.Seq != h.seq {
		return false
	}
	h.expire(now)
	if c := h.violated(g); c != 0 {
		h.stats.Violations[c]++
		return false
	}
	h.inFlight, h.tries, h.shortOfBalance = false, 0, false
	h.coldSince = sinceIf(h.coldSince, g.Flags&Hot == 0, now)
	h.nearEnd = g.Flags&Last != 0
	gain := h.applyGrant(now, g)
	h.backOff(now, h.wanted, gain)
	if g.Flags&Denied != 0 {
		h.deniedUntil, h.deniedLimit = h.sentAt+int64(g.Left), g.Limit
	}
	return true
}

// violated returns the condition that g violates, or 0.
func (h *Holding) violated(g *Grant) Condition {
	switch {
	case g.Left < 0, g.Window < h.window, g.Flags&Denied == 0 && g.Left > maxLeft(h.rule.Window):
		return C3
	case g.Window == h.window && g.Total < h.have:
		return C2
	}
	return 0
}

// maxLeft returns the longest time that can be left of a window.
func maxLeft(window time.Duration) time.Duration { return max(window, time.Second) }

// applyGrant sets the balance to g and returns the hits gained.
func (h *Holding) applyGrant(now int64, g *Grant) (gain uint64) {
	if g.Window != h.window { // C3
		h.stats.Stranded += h.left
		h.window, h.have, h.left = g.Window, 0, 0
	}
	gain = g.Total - h.have
	h.have, h.left = g.Total, h.left+gain
	if g.Flags&Denied == 0 {
		h.endsAt = h.sentAt + int64(g.Left)
		h.expiresAt = h.endsAt
		if h.Terms.Reclaim {
			h.expiresAt = min(h.endsAt, h.sentAt+int64(h.Terms.ttl()))
		}
		if h.rule.Algorithm.Bucket() {
			h.expiresAt = min(h.endsAt, h.sentAt+int64(Slice))
		}
	}
	h.limit = g.Limit
	h.used = max(h.left, min(g.Used, uint64(g.Limit)))
	if gain > 0 {
		h.lastLot = h.left
		h.stats.Grants++
	}
	h.expire(now)
	return gain
}

// backOff sets the pause after a grant: longer after each one without hits, but not beyond the end of the window.
func (h *Holding) backOff(now int64, wanted bool, gain uint64) {
	switch {
	case gain > 0:
		h.pauseUntil, h.emptyGrants = 0, 0
	case h.nearEnd:
		h.pauseUntil = now + int64(maxWait)
	case wanted:
		h.pauseUntil = now + h.wait(h.emptyGrants)
		h.emptyGrants = min(h.emptyGrants+1, 8)
	}
	if h.endsAt > now {
		h.pauseUntil = min(h.pauseUntil, h.endsAt)
	}
}

// ReceiveNotice processes a notice. Notices about a window that has ended here are ignored.
func (h *Holding) ReceiveNotice(now int64, n *Notice) {
	if n.Window < h.window && (n.Kind == Recall || n.Kind == Deny) {
		return
	}
	switch n.Kind {
	case Recall:
		h.nearEnd = true
		h.backOff(now, false, 0)
	case Deny:
		h.deniedUntil, h.deniedLimit = now+int64(max(0, n.Left)), n.Limit
		if h.rule.Algorithm == limit.FixedWindow && h.rule.Window > 0 { // the notice was delayed in transit
			h.deniedUntil = min(h.deniedUntil, h.rule.End(n.Window))
		}
	case Lift:
		h.deniedUntil, h.pauseUntil, h.nearEnd = 0, 0, false
	case Cool:
		h.coldSince = sinceIf(h.coldSince, true, now)
	}
}

// MarkHot records that the owner reports the key as hot again.
func (h *Holding) MarkHot() { h.coldSince = 0 }

// sinceIf returns t if it is set, otherwise now; without cond it returns 0.
func sinceIf(t int64, cond bool, now int64) int64 {
	switch {
	case !cond:
		return 0
	case t == 0:
		return now
	}
	return t
}

// Drop gives up the balance, which remains charged until its window ends. It is called when the clock has stepped.
func (h *Holding) Drop(now int64) {
	h.stats.Stranded += h.left
	*h = Holding{
		Terms: h.Terms, Salt: h.Salt, rule: h.rule, seq: h.seq,
		decidedAt: now, sentAt: now, demand: RateMeter{at: now}, stats: h.stats,
	}
}

// Idle reports whether there is no balance and there were no decisions recently: the Holding may be dropped.
func (h *Holding) Idle(now int64) bool {
	h.expire(now)
	if h.left > 0 || now < h.deniedUntil {
		return false
	}
	return now-h.decidedAt >= int64(forgetAfter) || h.coldSince != 0 && now-h.coldSince >= int64(forgetAfter)
}

// Left returns the hits that may still be spent here.
func (h *Holding) Left(now int64) uint64 {
	if now >= h.expiresAt {
		return 0
	}
	return h.left
}

// DeniedUntil returns until when hits are refused here. If it is not after now, they are not.
func (h *Holding) DeniedUntil() int64 { return h.deniedUntil }

// TakeStats returns the events since the last call.
func (h *Holding) TakeStats() HoldingStats {
	s := h.stats
	h.stats = HoldingStats{}
	return s
}
