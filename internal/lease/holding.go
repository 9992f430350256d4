package lease

import (
	"time"

	"github.com/keyward/keyward/internal/limit"
)

const (
	retry    = 100 * time.Millisecond // first wait for an answer; doubles
	slowest  = time.Second            // longest wait for an answer, and between wants that get nothing
	idle     = time.Second            // without questions for so long a holder gives back
	tailIdle = 100 * time.Millisecond // the same, when little is left of the limit
	report   = time.Second            // a busy holder says something so often
	settled  = time.Second            // after a window has ended by the holder's clock it has ended by everybody's
	pressing = retry                  // what lasts for less is asked for at once
	low      = 30                     // percent of what there was after the last grant: more is wanted
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
	lot        uint64 // left after the last grant
	ends       int64  // window's end, not later than by the grantor's clock
	expires    int64  // of the balance: ends, or earlier with Reclaim
	used       uint64 // against the limit, when the last grant was made
	limit      uint32 // that used stands against

	seq    uint64 // of the newest request
	sent   int64  // when it was
	flying bool   // it may still be answered
	wanted bool   // it wanted more
	tries  uint8  // requests without an answer, in a row
	empty  uint8  // wants that got nothing, in a row

	asked  int64  // when the last question came
	busy   bool   // a question came after the last request
	short  bool   // a question had to go to the owner for want of balance
	last   bool   // little is left of the limit
	pause  int64  // nothing is wanted before
	denied int64  // refused until
	refuse uint32 // questions with a limit of at most this
	cool   int64  // since when the key is not hot; 0: it is
	demand meter
	lately HoldingStats
}

// Decide answers a question for hits, which are more than 0, if that can be done here. Its counts are an estimate: what
// stood against the limit at the last grant, less what is unspent here; never above the limit unless refused.
func (h *Holding) Decide(now int64, r limit.Rule, hits uint64) (limit.Decision, SpendResult) {
	if r != h.rule {
		h.adopt(now, r)
	}
	h.demand.count(now, hits)
	h.asked, h.busy = now, true
	h.expire(now)
	switch {
	case hits <= h.left && r.Depth() >= h.limit: // of a lowered limit only the owner knows what is left
		h.lately.Local++
		return h.spend(now, r, hits), Admitted
	case now < h.denied && r.Depth() <= h.refuse:
		h.lately.Local++
		return h.over(now, r, hits), Refused
	}
	h.short = true
	return limit.Decision{}, Unknown
}

// adopt goes on with a changed rule.
func (h *Holding) adopt(now int64, r limit.Rule) {
	if h.rule != (limit.Rule{}) && (r.Algorithm != h.rule.Algorithm || r.Window != h.rule.Window) {
		h.Drop(now)
	}
	if r.Depth() > h.refuse {
		h.denied, h.pause = 0, 0
	}
	h.rule = r
}

func (h *Holding) spend(now int64, r limit.Rule, hits uint64) limit.Decision {
	depth := uint64(r.Depth())
	d := limit.Decision{Before: h.used - min(h.used, h.left)}
	d.After = min(d.Before+hits, depth)
	d.Remaining = uint32(depth - d.After)
	h.left -= hits
	d.Reset = seconds(h.ends - now)
	if r.Algorithm.Bucket() {
		d.Reset = seconds(int64(float64(d.After) * float64(r.Window) / float64(max(1, r.Limit))))
	}
	return d
}

func (h *Holding) over(now int64, r limit.Rule, hits uint64) limit.Decision {
	depth := uint64(r.Depth())
	return limit.Decision{Before: depth, After: add(depth, hits), Over: true, Reset: seconds(h.denied - now)}
}

// seconds is as in package limit: whole, rounded up, at least one.
func seconds(left int64) time.Duration {
	return (time.Duration(max(1, left)) + time.Second - 1).Truncate(time.Second)
}

// expire drops what may not be spent any more (C3). What a holder gives up by Reclaim counts as given back, for the
// grantor credits it by itself.
func (h *Holding) expire(now int64) {
	if now >= h.ends {
		h.last = false
	}
	if now >= h.ends+int64(settled) {
		h.window, h.have = 0, 0
	}
	switch {
	case h.left == 0 || now < h.expires:
		return
	case now < h.ends:
		h.have -= h.left
		h.flying = false
	default:
		h.lately.Stranded += h.left
	}
	h.left = 0
}

// Due says that a request is to be sent now.
func (h *Holding) Due(now int64) bool {
	h.expire(now)
	if h.flying {
		return now-h.sent >= h.wait(h.tries) && now-h.asked < int64(gone)
	}
	return h.spare(now) > 0 || h.wants(now) || h.busy && h.cool == 0 && now-h.sent >= int64(report)
}

// Urgent says that what is left will be spent before a request that waits for others is answered.
func (h *Holding) Urgent(now int64) bool {
	return h.short || float64(h.left) < h.demand.rate(now)*pressing.Seconds()
}

// wants says that more is wanted.
func (h *Holding) wants(now int64) bool {
	if h.cool != 0 || now < h.pause || now < h.denied || now-h.asked >= int64(idle) {
		return false
	}
	// A new slice of a bucket replaces the old one, so it is not asked for before that is spent.
	return h.short || h.lot > 0 && !h.rule.Algorithm.Bucket() && h.left <= h.lot*low/100
}

// spare is what is to be given back: all without questions or heat; near the end of the limit what will not be needed
// before the window ends, if that is most of it.
func (h *Holding) spare(now int64) uint64 {
	quiet := now - h.asked
	switch {
	case h.left == 0 || h.rule.Algorithm.Bucket():
		return 0
	case h.cool != 0 || quiet >= int64(idle) || h.last && quiet >= int64(tailIdle):
		return h.left
	case h.last:
		need := h.demand.rate(now) * time.Duration(h.ends-now).Seconds()
		if keep := uint64(min(need, float64(h.left))) + 1; keep < h.left/2 {
			return h.left - keep
		}
	}
	return 0
}

// wait is how long the answer of the try before is waited for, 100 ms to 1 s, spread by an eighth.
func (h *Holding) wait(try uint8) int64 {
	d := int64(slowest)
	if try < 4 {
		d = min(d, int64(retry)<<try)
	}
	x := (h.Salt + uint64(try)) * 0x9E3779B97F4A7C15 >> 40 // 24 bits
	return d - d/8 + int64(x)*(d/4)>>24
}

// Request is what to send now; the caller adds what names the key. No request before it can be answered any more.
func (h *Holding) Request(now int64) GrantRequest {
	h.expire(now)
	if h.flying {
		h.lately.Timeouts++
		h.tries = min(h.tries+1, 8)
	}
	h.wanted = h.wants(now)
	back := h.spare(now)
	h.left -= back
	h.have -= back
	// By the clock, so that a holding that was forgotten and the next boot of its member go on above it.
	h.seq = max(h.seq+1, uint64(max(0, now)))
	h.sent, h.flying, h.busy = now, true, false
	return GrantRequest{
		Rule: h.rule, Terms: h.Terms, Seq: h.seq, Window: h.window, Have: h.have, Left: h.left, Want: h.wanted,
		Demand: uint64(min(h.demand.rate(now)*1000, 1<<62)),
	}
}

// Accept takes in the answer to the request in flight. It is not accepted if it answers another, or breaks a condition.
func (h *Holding) Accept(now int64, g *Grant) bool {
	if !h.flying || g.Seq != h.seq {
		return false
	}
	h.expire(now)
	if c := h.broken(g); c != 0 {
		h.lately.Violations[c]++
		return false
	}
	h.flying, h.tries, h.short = false, 0, false
	h.cool = since(h.cool, g.Flags&Hot == 0, now)
	h.last = g.Flags&Last != 0
	gain := h.book(now, g)
	h.hold(now, h.wanted, gain)
	if g.Flags&Denied != 0 {
		h.denied, h.refuse = h.sent+int64(g.Left), g.Limit
	}
	return true
}

// broken is the condition that g is against; 0: none.
func (h *Holding) broken(g *Grant) Condition {
	switch {
	case g.Left < 0, g.Window < h.window, g.Flags&Denied == 0 && g.Left > limitOf(h.rule.Window):
		return C3
	case g.Window == h.window && g.Total < h.have:
		return C2
	}
	return 0
}

// limitOf is the most that can be left of a window.
func limitOf(window time.Duration) time.Duration { return max(window, time.Second) }

// book makes the balance what g says, and returns what came in.
func (h *Holding) book(now int64, g *Grant) (gain uint64) {
	if g.Window != h.window { // C3
		h.lately.Stranded += h.left
		h.window, h.have, h.left = g.Window, 0, 0
	}
	gain = g.Total - h.have
	h.have, h.left = g.Total, h.left+gain
	if g.Flags&Denied == 0 {
		h.ends = h.sent + int64(g.Left)
		h.expires = h.ends
		if h.Terms.Reclaim {
			h.expires = min(h.ends, h.sent+int64(h.Terms.ttl()))
		}
		if h.rule.Algorithm.Bucket() {
			h.expires = min(h.ends, h.sent+int64(Slice))
		}
	}
	h.limit = g.Limit
	h.used = max(h.left, min(g.Used, uint64(g.Limit)))
	if gain > 0 {
		h.lot = h.left
		h.lately.Grants++
	}
	h.expire(now)
	return gain
}

// hold waits longer from one want that got nothing to the next, but not beyond the window's end.
func (h *Holding) hold(now int64, wanted bool, gain uint64) {
	switch {
	case gain > 0:
		h.pause, h.empty = 0, 0
	case h.last:
		h.pause = now + int64(slowest)
	case wanted:
		h.pause = now + h.wait(h.empty)
		h.empty = min(h.empty+1, 8)
	}
	if h.ends > now {
		h.pause = min(h.pause, h.ends)
	}
}

// ReceiveNotice takes in a notice. What it says of a window that is over here is old.
func (h *Holding) ReceiveNotice(now int64, n *Notice) {
	if n.Window < h.window && (n.Kind == Recall || n.Kind == Deny) {
		return
	}
	switch n.Kind {
	case Recall:
		h.last = true
		h.hold(now, false, 0)
	case Deny:
		h.denied, h.refuse = now+int64(max(0, n.Left)), n.Limit
		if h.rule.Algorithm == limit.FixedWindow && h.rule.Window > 0 { // the notice was under way for a while
			h.denied = min(h.denied, h.rule.End(n.Window))
		}
	case Lift:
		h.denied, h.pause, h.last = 0, 0, false
	case Cool:
		h.cool = since(h.cool, true, now)
	}
}

// MarkHot says that the owner calls the key hot again.
func (h *Holding) MarkHot() { h.cool = 0 }

// since is t if that is set, else now; 0 without cond.
func since(t int64, cond bool, now int64) int64 {
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
	h.lately.Stranded += h.left
	*h = Holding{
		Terms: h.Terms, Salt: h.Salt, rule: h.rule, seq: h.seq, asked: now, sent: now, demand: meter{at: now}, lately: h.lately,
	}
}

// Idle says that nothing is held or has been wanted for a while: the Holding may be forgotten.
func (h *Holding) Idle(now int64) bool {
	h.expire(now)
	return h.left == 0 && now >= h.denied && (now-h.asked >= int64(gone) || h.cool != 0 && now-h.cool >= int64(gone))
}

// Left is what may still be spent here.
func (h *Holding) Left(now int64) uint64 {
	if now >= h.expires {
		return 0
	}
	return h.left
}

// Denied says until when questions are refused here; not after now: they are not.
func (h *Holding) Denied() int64 { return h.denied }

// TakeStats is what happened since the last call.
func (h *Holding) TakeStats() HoldingStats {
	s := h.lately
	h.lately = HoldingStats{}
	return s
}
