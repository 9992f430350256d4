package lease

import (
	"time"

	"github.com/keyward/keyward/internal/limit"
)

const (
	minWait          = 100 * time.Millisecond // first wait for an answer; doubles
	maxWait          = time.Second            // longest wait for an answer, and between wants that get nothing
	idleAfter        = time.Second            // without questions for so long a holder gives back
	idleAfterNearEnd = 100 * time.Millisecond // the same, when little is left of the limit
	reportEvery      = time.Second            // a busy holder says something so often
	windowGrace      = time.Second            // after a window has ended by the holder's clock it has ended by everybody's
	urgentWithin     = minWait                // what lasts for less is asked for at once
	lowPercent       = 30                     // percent of what there was after the last grant: more is wanted
)

// SpendResult is what a holder can say by itself.
type SpendResult uint8

// The verdicts.
const (
	Unknown  SpendResult = iota // the owner has to be asked
	Admitted                    // from the balance
	Refused                     // the limit is used up, the owner said
)

// HoldingStats is what happened at a holder.
type HoldingStats struct {
	Local      uint64 // questions decided here
	Grants     uint64 // that brought something
	Timeouts   uint64 // requests that were not answered in time
	Stranded   uint64 // hits that were held and neither spent nor given back
	Violations Violations
}

// Add adds what another counted.
func (s *HoldingStats) Add(o HoldingStats) {
	s.Local += o.Local
	s.Grants += o.Grants
	s.Timeouts += o.Timeouts
	s.Stranded += o.Stranded
	s.Violations.Add(o.Violations)
}

// Holding is what one member holds of one key that it does not own. The caller guards it, sends a Request when one is
// Due, and brings it the answer and notices. The zero Holding has nothing, and asks when it is asked. It keeps no more than
// one request in flight, spends nothing after the window's end by the grantor's clock, and needs no agreement of clocks:
// what a grant says is left of its window runs from when the request was sent.
type Holding struct {
	Terms Terms  // of the rule
	Salt  uint64 // spreads retries: by key and member

	rule       limit.Rule // of the last question
	window     int64      // that have and left are of; 0: of none
	have, left uint64
	lastLot    uint64 // left after the last grant
	endsAt     int64  // window's end, not later than by the grantor's clock
	expiresAt  int64  // of the balance: ends, or earlier with Reclaim
	used       uint64 // against the limit, when the last grant was made
	limit      uint32 // that used stands against

	seq         uint64 // of the newest request
	sentAt      int64  // when it was
	inFlight    bool   // it may still be answered
	wanted      bool   // it wanted more
	tries       uint8  // requests without an answer, in a row
	emptyGrants uint8  // wants that got nothing, in a row

	decidedAt      int64  // when the last question came
	busy           bool   // a question came after the last request
	shortOfBalance bool   // a question had to go to the owner for want of balance
	nearEnd        bool   // little is left of the limit
	pauseUntil     int64  // nothing is wanted before
	deniedUntil    int64  // refused until
	deniedLimit    uint32 // questions with a limit of at most this
	coldSince      int64  // since when the key is not hot; 0: it is
	demand         meter
	stats          HoldingStats
}

// Decide answers a question for hits, which are more than 0, if that can be done here. Its counts are an estimate: what
// stood against the limit at the last grant, less what is unspent here; never above the limit unless refused.
func (h *Holding) Decide(now int64, r limit.Rule, hits uint64) (limit.Decision, SpendResult) {
	if r != h.rule {
		h.setRule(now, r)
	}
	h.demand.count(now, hits)
	h.decidedAt, h.busy = now, true
	h.expire(now)
	switch {
	case hits <= h.left && r.Depth() >= h.limit: // of a lowered limit only the owner knows what is left
		h.stats.Local++
		return h.spend(now, r, hits), Admitted
	case now < h.deniedUntil && r.Depth() <= h.deniedLimit:
		h.stats.Local++
		return h.deny(now, r, hits), Refused
	}
	h.shortOfBalance = true
	return limit.Decision{}, Unknown
}

// setRule goes on with a changed rule.
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
	return limit.Decision{Before: depth, After: limit.SaturatingAdd(depth, hits), Over: true, Reset: limit.WholeSeconds(h.deniedUntil - now)}
}

// expire drops what may not be spent any more (C3). What a holder gives up by Reclaim counts as given back, for the
// grantor credits it by itself.
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

// Due says that a request is to be sent now.
func (h *Holding) Due(now int64) bool {
	h.expire(now)
	if h.inFlight {
		return now-h.sentAt >= h.wait(h.tries) && now-h.decidedAt < int64(forgetAfter)
	}
	return h.surplus(now) > 0 || h.wants(now) || h.busy && h.coldSince == 0 && now-h.sentAt >= int64(reportEvery)
}

// Urgent says that what is left will be spent before a request that waits for others is answered.
func (h *Holding) Urgent(now int64) bool {
	return h.shortOfBalance || float64(h.left) < h.demand.rate(now)*urgentWithin.Seconds()
}

// wants says that more is wanted.
func (h *Holding) wants(now int64) bool {
	if h.coldSince != 0 || now < h.pauseUntil || now < h.deniedUntil || now-h.decidedAt >= int64(idleAfter) {
		return false
	}
	// A new slice of a bucket replaces the old one, so it is not asked for before that is spent.
	return h.shortOfBalance || h.lastLot > 0 && !h.rule.Algorithm.Bucket() && h.left <= h.lastLot*lowPercent/100
}

// surplus is what is to be given back: all without questions or heat; near the end of the limit what will not be needed
// before the window ends, if that is most of it.
func (h *Holding) surplus(now int64) uint64 {
	quiet := now - h.decidedAt
	switch {
	case h.left == 0 || h.rule.Algorithm.Bucket():
		return 0
	case h.coldSince != 0 || quiet >= int64(idleAfter) || h.nearEnd && quiet >= int64(idleAfterNearEnd):
		return h.left
	case h.nearEnd:
		need := h.demand.rate(now) * time.Duration(h.endsAt-now).Seconds()
		if keep := uint64(min(need, float64(h.left))) + 1; keep < h.left/2 {
			return h.left - keep
		}
	}
	return 0
}

// wait is how long the answer of the try before is waited for, 100 ms to 1 s, spread by an eighth.
func (h *Holding) wait(try uint8) int64 {
	d := int64(maxWait)
	if try < 4 {
		d = min(d, int64(minWait)<<try)
	}
	x := (h.Salt + uint64(try)) * 0x9E3779B97F4A7C15 >> 40 // 24 bits
	return d - d/8 + int64(x)*(d/4)>>24
}

// Request is what to send now; the caller adds what names the key. No request before it can be answered any more.
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
	// By the clock, so that a holding that was forgotten and the next boot of its member go on above it.
	h.seq = max(h.seq+1, uint64(max(0, now)))
	h.sentAt, h.inFlight, h.busy = now, true, false
	return GrantRequest{
		Rule: h.rule, Terms: h.Terms, Seq: h.seq, Window: h.window, Have: h.have, Left: h.left, Want: h.wanted,
		Demand: uint64(min(h.demand.rate(now)*1000, 1<<62)),
	}
}

// Accept takes in the answer to the request in flight. It is not accepted if it answers another, or breaks a condition.
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

// violated is the condition that g is against; 0: none.
func (h *Holding) violated(g *Grant) Condition {
	switch {
	case g.Left < 0, g.Window < h.window, g.Flags&Denied == 0 && g.Left > maxLeft(h.rule.Window):
		return C3
	case g.Window == h.window && g.Total < h.have:
		return C2
	}
	return 0
}

// maxLeft is the most that can be left of a window.
func maxLeft(window time.Duration) time.Duration { return max(window, time.Second) }

// applyGrant makes the balance what g says, and returns what came in.
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

// backOff waits longer from one want that got nothing to the next, but not beyond the window's end.
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

// ReceiveNotice takes in a notice. What it says of a window that is over here is old.
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
		if h.rule.Algorithm == limit.FixedWindow && h.rule.Window > 0 { // the notice was under way for a while
			h.deniedUntil = min(h.deniedUntil, h.rule.End(n.Window))
		}
	case Lift:
		h.deniedUntil, h.pauseUntil, h.nearEnd = 0, 0, false
	case Cool:
		h.coldSince = sinceIf(h.coldSince, true, now)
	}
}

// MarkHot says that the owner calls the key hot again.
func (h *Holding) MarkHot() { h.coldSince = 0 }

// sinceIf is t if that is set, else now; 0 without cond.
func sinceIf(t int64, cond bool, now int64) int64 {
	switch {
	case !cond:
		return 0
	case t == 0:
		return now
	}
	return t
}

// Drop gives up everything that is held: it stays charged until its window ends. For a clock that has stepped.
func (h *Holding) Drop(now int64) {
	h.stats.Stranded += h.left
	*h = Holding{
		Terms: h.Terms, Salt: h.Salt, rule: h.rule, seq: h.seq, decidedAt: now, sentAt: now, demand: meter{at: now}, stats: h.stats,
	}
}

// Idle says that nothing is held or has been wanted for a while: the Holding may be forgotten.
func (h *Holding) Idle(now int64) bool {
	h.expire(now)
	return h.left == 0 && now >= h.deniedUntil && (now-h.decidedAt >= int64(forgetAfter) || h.coldSince != 0 && now-h.coldSince >= int64(forgetAfter))
}

// Left is what may still be spent here.
func (h *Holding) Left(now int64) uint64 {
	if now >= h.expiresAt {
		return 0
	}
	return h.left
}

// DeniedUntil says until when questions are refused here; not after now: they are not.
func (h *Holding) DeniedUntil() int64 { return h.deniedUntil }

// TakeStats is what happened since the last call.
func (h *Holding) TakeStats() HoldingStats {
	s := h.stats
	h.stats = HoldingStats{}
	return s
}
