package federation

import (
	"time"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
)

const (
	// prefetchPercent is the part of a lot below which more is requested.
	prefetchPercent = 30
	// prefetchRoundTrips is the demand, in round trips, below which more is requested: a reply may take twice as long as usual.
	prefetchRoundTrips = 2
	// lotRoundTrips is how many round trips a lot lasts at least.
	lotRoundTrips = 5
	// windowParts is the part of a window, as 1/n, that a lot lasts at most.
	windowParts = 10
	// shares is the part of the limit, as 1/n, that a lot is at most.
	shares = 20
	// leastLot is the hits of a lot, where enough is left.
	leastLot = 10
	// active is the age of its newest request below which a region competes for what is left of a pool.
	active = 3 * time.Second
	// clockMargin is how far the clocks of a region and its coordinator may differ.
	clockMargin = limit.ClockTolerance
)

// Verdict is the result of a decision from an escrow.
type Verdict uint8

// The verdicts.
const (
	Wait     Verdict = iota // only the coordinator knows: ask it, and decide again when it has answered
	Admitted                // spent from the escrow
	Refused                 // the pool is used up, by the coordinator's newest reply
)

// EscrowSettings are the parameters of one decision that are not the rule's.
type EscrowSettings struct {
	Pool  uint64        // hits of a window that may be lent to all regions together
	Batch time.Duration // time for which a lot lasts, if round trips are short; default 1 s
	Floor uint64        // hits of a window that are the region's floor; only the division between tenants needs it
	Store StoreTerms
}

// Escrow is a region's part of the pool of one key. It is at the key's owner and nowhere else (F3). The caller guards it,
// sends a Request when one is due, and passes the reply to Accept. At most one request is in flight. Nothing is spent
// after the window has ended, by the owner's clock or the coordinator's. NewEscrow returns one.
type Escrow struct {
	boot uint64
	rule limit.Rule
	set  EscrowSettings

	window     int64 // of have and left; 0: none
	have, left uint64
	endsAt     int64
	lentUntil  int64 // endsAt without the margin for clocks: not later than the end by the coordinator's clock
	ended      bool  // the window has ended here, so that nothing is left
	past       Past  // to be reported with the next requests
	used       uint64
	usable     uint64
	others     []RegionLine
	rivals     int // other regions that compete for the pool
	answeredAt int64

	confirmedAt int64 // when the newest request with a reply was sent

	seq      uint64
	sentAt   int64
	inFlight bool
	tries    int    // requests in a row without a reply
	tokens   uint64 // requested with the newest request
	waiting  uint64 // hits of the requests that wait

	offeredAt  int64
	reported   bool  // the coordinator knows that nothing is left here
	dry        bool  // the newest reply lent less than was requested: the pool is used up
	pauseUntil int64 // nothing is requested before
	empty      int   // replies in a row that lent less than was requested
	demand     lease.RateMeter
	moved      movedHits
	tenants    *tenants // nil: the limit is not divided between tenants
}

// NewEscrow returns an escrow without hits. boot must differ from those of all earlier escrows of the region.
func NewEscrow(boot uint64) *Escrow { return &Escrow{boot: boot, reported: true, ended: true} }

// After makes the numbers of e's requests higher than seq. It must be called with the number of the newest request of an
// earlier escrow of the key at the same member: a reply has the number of its request alone, and one to the earlier escrow
// would lend to e what the pool has been given back.
func (e *Escrow) After(seq uint64) { e.seq = max(e.seq, seq) }

// Decide decides hits from the escrow.
func (e *Escrow) Decide(now int64, r limit.Rule, s EscrowSettings, hits uint64) Verdict {
	e.use(r, s)
	e.roll(now)
	switch {
	case hits <= e.left+e.moved.left:
		moved := min(hits, e.moved.left) // first, because it cannot be returned
		e.moved.left -= moved
		e.left -= hits - moved
		return Admitted
	case e.dry:
		return Refused
	}
	return Wait
}

// use sets the rule and the parameters.
func (e *Escrow) use(r limit.Rule, s EscrowSettings) {
	if r.Window != e.rule.Window || r.Algorithm != e.rule.Algorithm {
		e.drop()
	}
	e.rule, e.set = r, s
}

// Offer counts hits by rule r that were offered to the region, whether or not they are admitted.
func (e *Escrow) Offer(now int64, r limit.Rule, s EscrowSettings, hits uint64) {
	e.use(r, s)
	e.offeredAt = now
	e.demand.Count(now, hits)
}

// AddWaiting records that a client's request of that many hits waits for the coordinator.
func (e *Escrow) AddWaiting(hits uint64) { e.waiting = limit.SaturatingAdd(e.waiting, hits) }

// RemoveWaiting records that a client's request of that many hits does not wait any more.
func (e *Escrow) RemoveWaiting(hits uint64) { e.waiting -= min(e.waiting, hits) }

// TakeWaiting records that no client's request waits any more.
func (e *Escrow) TakeWaiting() {
	e.waiting = 0
	e.tenants.takeWaiting()
}

// roll drops what is left if the window has ended (F5). What the region had of the window remains known: the coordinator's
// clock may still be in it, and must not take it for a lost grant.
func (e *Escrow) roll(now int64) {
	if now >= e.moved.endsAt {
		e.moved.left = 0
	}
	e.expire(now)
	if e.ended || now < e.endsAt {
		return
	}
	if e.rule.Algorithm == limit.SlidingWindow {
		e.past = Past{e.window, e.have - e.left} // it still weighs
	}
	e.end()
}

// drop gives up everything, which stays charged.
func (e *Escrow) drop() {
	e.end()
	e.past, e.moved.left = Past{}, 0
}

// end gives up what is left of the window.
func (e *Escrow) end() {
	e.ended, e.left, e.dry, e.pauseUntil, e.empty = true, 0, false, 0, 0
	e.inFlight = false // the reply could be of the window that has ended
}

// Due reports whether a request is to be sent now, where floor is the rest of the region's floor and rtt the round
// trip time to the coordinator.
func (e *Escrow) Due(now int64, floor uint64, rtt time.Duration) bool {
	e.roll(now)
	if e.inFlight {
		return now-e.sentAt >= int64(timeout(rtt, e.tries))
	}
	if e.waiting > e.left+e.moved.left && now >= e.pauseUntil && e.tenants == nil {
		return true
	}
	if e.idle(now, rtt) {
		return e.left > 0 || !e.reported
	}
	if e.renews(now) {
		return true
	}
	if now < e.pauseUntil {
		return false
	}
	lot := e.lot(now, rtt)
	if e.tenants != nil && e.informsRivals(now, rtt) {
		return true
	}
	return e.wanted(lot) > 0 && (e.low(now, lot, floor, rtt) || e.tenants != nil && e.waiting > 0)
}

// idle reports whether the region has had no demand for so long that it gives its escrow back.
func (e *Escrow) idle(now int64, rtt time.Duration) bool {
	return now-e.offeredAt >= int64(max(time.Second, lotRoundTrips*rtt))
}

// low reports whether what is left lasts so short a time that more is requested.
func (e *Escrow) low(now int64, lot, floor uint64, rtt time.Duration) bool {
	rate := e.demand.Rate(now)
	meanwhile := rate * rtt.Seconds() // hits until the reply
	at := max(float64(lot)*prefetchPercent/100, prefetchRoundTrips*meanwhile, atMost(meanwhile))
	return float64(limit.SaturatingAdd(e.left+e.moved.left, floor)) <= at
}

// lot returns how many hits the region should have. It determines the number of round trips, and not what is admitted.
func (e *Escrow) lot(now int64, rtt time.Duration) uint64 {
	n := atMost(e.demand.Rate(now) * e.horizon(now, rtt).Seconds())
	left := e.rest()
	if e.dry { // other regions may have given hits back since then
		left = e.set.Pool
	}
	if e.tenants != nil {
		return e.fairLot(now, rtt, left)
	}
	return e.set.Store.lot(min(n, e.mostLot(left)), left/uint64(e.rivals+1))
}

// mostLot returns how many hits a lot has at most, if left hits of the pool are not lent.
func (e *Escrow) mostLot(left uint64) float64 {
	return min(float64(e.rule.Limit)/shares, float64(left)/float64(2*(e.rivals+1)))
}

// leastLot returns how many hits a lot has at least.
func (e *Escrow) leastLot(left uint64) uint64 { return min(leastLot, left/uint64(e.rivals+1)) }

// horizon returns for which time the region should have hits.
func (e *Escrow) horizon(now int64, rtt time.Duration) time.Duration {
	last := min(max(e.set.batch(), lotRoundTrips*rtt), e.rule.Window/windowParts)
	return min(last, time.Duration(max(0, e.windowEnd(now)-now)))
}

// windowEnd returns when the present window ends.
func (e *Escrow) windowEnd(now int64) int64 {
	if !e.ended {
		return e.endsAt
	}
	return e.rule.End(e.rule.Index(now))
}

// Rest returns what was left of the pool at the newest reply. Before the first one of a window that is all of it.
func (e *Escrow) Rest(now int64) uint64 {
	e.roll(now)
	return e.rest()
}

// Snapshot returns what was left of the pool at the newest reply of this window. It returns 0 if that is too old.
func (e *Escrow) Snapshot(now int64) uint64 {
	if e.roll(now); e.ended || now-e.answeredAt > int64(SnapshotAge) {
		return 0
	}
	return e.rest()
}

func (e *Escrow) rest() uint64 {
	if e.ended {
		return e.set.Pool
	}
	return e.usable - min(e.used, e.usable)
}

// wanted returns how many hits to request, to have lot, and at least what clients wait for.
func (e *Escrow) wanted(lot uint64) uint64 {
	want := max(lot, e.waiting)
	if e.tenants != nil {
		want = max(lot, e.tenants.largest())
	}
	return want - min(e.left+e.moved.left, want)
}

// Request returns the request to send now. Replies to earlier requests are no longer accepted. The caller sets its Key
// and Epoch.
func (e *Escrow) Request(now int64, rtt time.Duration) PoolRequest {
	e.roll(now)
	e.tokens = 0
	if e.idle(now, rtt) && e.waiting == 0 {
		e.have -= e.left
		e.left, e.reported = 0, true
	} else {
		lot := e.lot(now, rtt)
		if e.tenants != nil {
			e.giveBackExcess()
		}
		e.tokens, e.reported = e.wanted(lot), false
	}
	// Based on the clock, so that the region's next escrow of the key continues with higher numbers.
	e.seq = max(e.seq+1, uint64(max(0, now)))
	e.sentAt, e.inFlight = now, true
	r := PoolRequest{
		Rule: e.rule, Pool: e.set.Pool, Boot: e.boot, Seq: e.seq, Window: e.window, Have: e.have,
		Left: e.left, Tokens: e.tokens, Reclaim: e.set.Store.Reclaim, Note: e.note(now),
	}
	if now >= e.rule.End(e.past.Window) { // before, more of that window can be lent and spent
		r.Past = e.past
	}
	return r
}

// Accept processes the reply to the request in flight. It returns false if g replies to another request, or contradicts
// what is known.
func (e *Escrow) Accept(now int64, g *PoolGrant, rtt time.Duration) bool {
	e.roll(now)
	if !e.inFlight || g.Seq != e.seq || g.Window < e.window || g.Window == e.window && g.Total < e.have ||
		g.Left < 0 || g.Left > e.rule.Window {
		return false
	}
	e.inFlight, e.tries, e.answeredAt, e.confirmedAt = false, 0, now, e.sentAt
	if g.Window != e.window {
		e.window, e.have, e.left = g.Window, 0, 0
	}
	if g.Window > e.moved.window {
		e.moved.left = 0 // one window at a time
	}
	if e.past.Window <= g.Window {
		e.past = Past{}
	}
	gain := g.Total - e.have
	e.have, e.left = g.Total, e.left+gain
	// F1: by the owner's clock, or the coordinator's with a margin, whichever comes first.
	e.lentUntil = min(e.rule.End(g.Window), e.sentAt+int64(g.Left))
	e.endsAt = min(e.rule.End(g.Window), e.lentUntil+int64(clockMargin))
	e.ended, e.used, e.usable, e.rivals = false, g.Used, g.Usable, 0
	e.others = g.Others
	for i := range g.Others {
		if g.Others[i].Age < active {
			e.rivals++
		}
	}
	e.learn(now, g, rtt)
	if e.dry = gain < e.tokens; e.dry {
		e.pauseUntil = now + int64(timeout(rtt, e.empty))
		e.empty++
	} else {
		e.pauseUntil, e.empty = 0, 0
	}
	if e.roll(now); e.ended { // by this clock, and not yet by the coordinator's: a request could only get the same reply
		e.pauseUntil = now + int64(min(g.Left, timeout(rtt, 0)))
	}
	return true
}

// timeout returns how long to wait for the reply to a request, and between two requests for hits of a pool that is used
// up: 4 round trips and at least 100 ms, doubling up to 2 s.
func timeout(rtt time.Duration, tries int) time.Duration {
	return min(max(4*rtt, 100*time.Millisecond)<<min(tries, 5), 2*time.Second)
}

// Left returns the hits that can be spent at now.
func (e *Escrow) Left(now int64) uint64 {
	e.roll(now)
	return e.left + e.moved.left
}

// Granted returns the hits that the region was lent in the present window by its own clock, spent and unspent.
func (e *Escrow) Granted(now int64) uint64 {
	b := e.Balance()
	if now >= e.rule.End(b.Window) {
		return 0
	}
	return b.Have
}

// Release returns the request that gives back what is left, for an escrow that is not used any more: its key has another
// owner. ok is false if there is nothing to give back.
func (e *Escrow) Release(now int64) (r PoolRequest, ok bool) {
	if e.roll(now); e.left == 0 {
		return r, false
	}
	e.waiting, e.offeredAt = 0, now-int64(time.Hour)
	return e.Request(now, 0), true
}

// Unanswered reports whether a request was sent and had no reply in time, and forgets it: a reply that comes later is not
// accepted, and the next request makes up for it.
func (e *Escrow) Unanswered(now int64, rtt time.Duration) bool {
	if !e.inFlight || now-e.sentAt < int64(timeout(rtt, e.tries)) {
		return false
	}
	e.inFlight = false
	e.tries++
	return true
}

// Expired reports whether the escrow is no longer needed: it has nothing, the coordinator knows, and no client's request came for
// a while.
func (e *Escrow) Expired(now int64) bool {
	e.roll(now)
	return e.left+e.moved.left == 0 && e.waiting == 0 && now-e.offeredAt >= int64(10*time.Second) && (e.reported || e.ended) &&
		(e.past == Past{} || now >= e.rule.End(e.past.Window+1)) // it weighs on one window only
}

func (s *EscrowSettings) batch() time.Duration {
	if s.Batch <= 0 {
		return time.Second
	}
	return s.Batch
}

// EscrowBalance contains what an escrow has of a window. The window may have ended.
type EscrowBalance struct {
	Window int64  // index; 0: none
	Have   uint64 // hits lent, spent and unspent
	Left   uint64 // unspent hits that can be returned
	Moved  uint64 // unspent hits that came from earlier owners of the key
}

// Balance returns what e has of the newest window in which it had hits.
func (e *Escrow) Balance() EscrowBalance {
	b := EscrowBalance{Window: max(e.window, e.moved.window), Left: e.left, Moved: e.moved.left}
	if b.Window == e.window {
		b.Have = e.have
	}
	if b.Window == e.moved.window {
		b.Have += e.moved.had
	}
	return b
}
