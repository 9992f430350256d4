package federation

import (
	"math"
	"time"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
)

// HolderCount counts the hits that one holder has admitted of one key, with mechanism approximate. It admits up to Slack
// hits before it reports them, and reports the number of all its hits. Below the watermark it admits only hits that the
// coordinator has reserved for it. So the holders together admit at most the limit and, of each life but one, Slack hits. The
// caller guards it, sends a Request when one is due, and passes the reply to Accept. NewHolderCount returns one.
type HolderCount struct {
	boot uint64
	rule limit.Rule
	set  EscrowSettings

	window   int64
	admitted uint64 // in window
	recorded uint64 // what the coordinator has counted for this holder: above admitted, the rest is reserved
	sum      uint64 // of all holders, at the newest reply, including recorded
	before   uint64 // hits of all holders in the window before, of a sliding window
	past     Past   // admitted in the window before, until that is reported

	seq        uint64
	sentAt     int64
	answeredAt int64 // 0: there was no reply in this window
	inFlight   bool
	tries      int // requests in a row without a reply
	waiting    uint64
	offeredAt  int64
	demand     lease.RateMeter
}

// NewHolderCount returns a count of 0. boot must differ from those of all earlier counts of the holder.
func NewHolderCount(boot uint64) *HolderCount { return &HolderCount{boot: boot} }

// After makes the numbers of t's requests higher than seq, as [Escrow.After] does.
func (t *HolderCount) After(seq uint64) { t.seq = max(t.seq, seq) }

// room divides the hits that a HolderCount can admit.
type room struct {
	reserved uint64 // counted by the coordinator, and not yet admitted
	free     uint64 // the rest of the limit, by the newest reply
	local    uint64 // the part of free that can be admitted before it is reported
}

// Decide decides hits.
func (t *HolderCount) Decide(now int64, r limit.Rule, s EscrowSettings, hits uint64) Verdict {
	t.use(now, r, s)
	m := t.room(now)
	switch {
	case hits <= m.reserved+m.local:
		t.admitted += hits
		return Admitted
	case hits > m.reserved+m.free:
		return Refused
	}
	return Wait
}

func (t *HolderCount) room(now int64) (m room) {
	m.reserved = t.recorded - min(t.admitted, t.recorded)
	unreported := t.unreported()
	used := t.sum + unreported + weighs(&t.rule, t.before, t.window, now)
	m.free = uint64(t.rule.Limit) - min(used, uint64(t.rule.Limit))
	checked := uint64(t.rule.Limit) * uint64(t.set.Store.Watermark) / 100
	slack := uint64(t.set.Store.Slack)
	m.local = min(slack-min(unreported, slack), m.free-min(checked, m.free))
	return m
}

func (t *HolderCount) unreported() uint64 { return t.admitted - min(t.recorded, t.admitted) }

// weighs returns what hits of the window before w weigh at now: in a sliding window, the part that is not yet over.
func weighs(r *limit.Rule, hits uint64, w, now int64) uint64 {
	if r.Algorithm != limit.SlidingWindow {
		return 0
	}
	left := min(max(0, r.End(w)-now), int64(r.Window))
	return uint64(math.Ceil(portion(hits, left, int64(r.Window))))
}

// use sets the rule and the parameters.
func (t *HolderCount) use(now int64, r limit.Rule, s EscrowSettings) {
	if r.Window != t.rule.Window || r.Algorithm != t.rule.Algorithm {
		*t = HolderCount{boot: t.boot, seq: t.seq, waiting: t.waiting, demand: t.demand, offeredAt: t.offeredAt}
	}
	t.rule, t.set = r, s
	t.roll(now)
}

// roll begins the window of now.
func (t *HolderCount) roll(now int64) {
	w := t.rule.Index(now)
	if w <= t.window {
		return
	}
	t.past, t.before = Past{}, 0
	if t.rule.Algorithm == limit.SlidingWindow && w == t.window+1 {
		t.before = t.sum + t.unreported()
		if t.unreported() > 0 {
			t.past = Past{t.window, t.admitted}
		}
	}
	t.window, t.admitted, t.recorded, t.sum, t.answeredAt = w, 0, 0, 0, 0
	t.inFlight = false // the reply is of the window that has ended
}

// Offer counts hits by rule r that were offered to the holder, whether or not they are admitted.
func (t *HolderCount) Offer(now int64, r limit.Rule, s EscrowSettings, hits uint64) {
	t.use(now, r, s)
	t.offeredAt = now
	t.demand.Count(now, hits)
}

// AddWaiting records that a client's request of that many hits waits for the coordinator.
func (t *HolderCount) AddWaiting(hits uint64) { t.waiting = limit.SaturatingAdd(t.waiting, hits) }

// RemoveWaiting records that a client's request of that many hits does not wait any more.
func (t *HolderCount) RemoveWaiting(hits uint64) { t.waiting -= min(t.waiting, hits) }

// TakeWaiting records that no client's request waits any more.
func (t *HolderCount) TakeWaiting() { t.waiting = 0 }

// Due reports whether a request is to be sent now: requests wait, half of the slack or the demand of two round trips is used
// up, or a report is due. It ignores the rest of a floor, since there is none.
func (t *HolderCount) Due(now int64, _ uint64, rtt time.Duration) bool {
	t.roll(now)
	if t.inFlight {
		return now-t.sentAt >= int64(timeout(rtt, t.tries))
	}
	unreported, slack := t.unreported(), float64(t.set.Store.Slack)
	switch {
	case t.waiting > t.recorded-min(t.admitted, t.recorded):
		return true
	case unreported == 0:
		return t.past != Past{}
	case float64(unreported) >= max(slack/4, min(slack/2, slack-2*t.demand.Rate(now)*rtt.Seconds())):
		return true
	}
	return now-t.sentAt >= int64(t.set.Store.sync())
}

// Request returns the request to send now. The caller sets its Key and Epoch.
func (t *HolderCount) Request(now int64, _ time.Duration) PoolRequest {
	t.roll(now)
	t.seq = max(t.seq+1, uint64(max(0, now)))
	t.sentAt, t.inFlight = now, true
	reserved := t.recorded - min(t.admitted, t.recorded)
	r := PoolRequest{
		Rule: t.rule, Pool: uint64(t.rule.Limit), Boot: t.boot, Seq: t.seq, Window: t.window, Have: t.admitted,
		Past: t.past, Approximate: true,
	}
	if t.waiting > reserved {
		r.Tokens = min(t.waiting, uint64(t.rule.Limit))
	}
	return r
}

// Accept processes the reply to the request in flight. It returns false if g replies to another request.
func (t *HolderCount) Accept(now int64, g *PoolGrant, _ time.Duration) bool {
	t.roll(now)
	if !t.inFlight || g.Seq != t.seq || g.Window != t.window {
		return false
	}
	t.inFlight, t.tries, t.answeredAt, t.past = false, 0, now, Past{}
	t.recorded, t.sum, t.before = max(t.recorded, g.Total), max(t.sum, g.Used), max(t.before, g.Past)
	return true
}

// Left returns the hits that can be admitted at now without asking the coordinator.
func (t *HolderCount) Left(now int64) uint64 {
	t.roll(now)
	m := t.room(now)
	return m.reserved + m.local
}

// Rest returns what was left of the limit at the newest reply, apart from Left.
func (t *HolderCount) Rest(now int64) uint64 {
	t.roll(now)
	m := t.room(now)
	return m.free - m.local
}

// Granted returns the hits that the holder has admitted in the present window, or has reserved.
func (t *HolderCount) Granted(now int64) uint64 {
	t.roll(now)
	return max(t.admitted, t.recorded)
}

// Snapshot returns what was left of the limit at the newest reply of this window. It returns 0 if that is too old.
func (t *HolderCount) Snapshot(now int64) uint64 {
	if t.roll(now); t.answeredAt == 0 || now-t.answeredAt > int64(SnapshotAge) {
		return 0
	}
	return t.room(now).free
}

// Release returns the last report, for a count that is not used any more. ok is false if everything is reported.
func (t *HolderCount) Release(now int64) (r PoolRequest, ok bool) {
	t.roll(now)
	t.waiting = 0
	if t.unreported() == 0 && t.past == (Past{}) {
		return r, false
	}
	return t.Request(now, 0), true
}

// Unanswered reports whether a request was sent and had no reply in time, and forgets it.
func (t *HolderCount) Unanswered(now int64, rtt time.Duration) bool {
	if !t.inFlight || now-t.sentAt < int64(timeout(rtt, t.tries)) {
		return false
	}
	t.inFlight = false
	t.tries++
	return true
}

// Expired reports whether the count is no longer needed: everything is reported, and no client's request came for a while.
// Each new count adds a record to the coordinator's, so that while is longer in long windows.
func (t *HolderCount) Expired(now int64) bool {
	t.roll(now)
	idle := min(max(10*time.Second, t.rule.Window/100), time.Hour)
	return t.unreported() == 0 && t.past == Past{} && t.waiting == 0 && now-t.offeredAt >= int64(idle)
}
