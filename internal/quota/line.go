package quota

import (
	"math"
	"time"
)

// unbounded is the number of hits of unknown leases that the first reports of a line may contain.
const unbounded = math.MaxUint64

// line is the account of one key on one stream.
type line struct {
	allotment *allotment
	stream    *stream
	place     int // in allotment.lines

	// The charge of the current window; the package's comment has the meanings.
	spent, live, known, old, carried uint64
	// past bounds the unreported hits of leases that were dead before the window began, or that another stream or sidecar
	// has pushed. They are not charged. In a window's first reports they cannot be distinguished from those of live.
	past uint64
	// late counts the hits of ended windows that no report has proven spent. Reports that are still to come may.
	late uint64
	// doubt counts reported hits that were taken for past ones. Credits are less by that.
	doubt uint64
	guess float64 // estimate of the reported hits of live

	// The newest lease or refusal.
	kind    PushKind
	serial  uint64 // of its response; 0: none was sent
	sentAt  int64
	stale   bool // it was pushed before the window: carried has what may be left of it
	acked   bool
	ackedAt int64
	size    uint64
	endsAt  int64 // when its TTL ends at the earliest
	ttl     time.Duration
	usedAt  int64 // acknowledgement of the TTL
	// The extension of it that is unacknowledged; 0: none.
	same         uint64
	sameDeadline int64 // when the lease would have ended without it
	cutFrom      int64 // when the lease would have ended at the latest without a shorter TTL that is unacknowledged; 0: there is none

	rate       rate
	peak       float64 // hits per second in the busiest of the last reports with hits
	reportedAt int64   // 0: never
	before     int64   // time of the report before that one
	hitAt      int64   // last report with hits
	lastHits   uint64
	quiet      int  // consecutive reports without hits
	back       bool // the newest report is the first one with hits after others, so its rate is too low
	settled    bool // a report has settled the first lease
	forced     bool // the Envoy has lost its assignment
	hungry     bool // it was offered less than it needs
	awaits     int  // how often what it wants has waited for hits of the next window

	want    PushKind // to push; 0: nothing
	lot     uint64   // with Pair
	queued  bool     // in stream.wants
	removed bool
	counted counted // what the sums of the allotment contain
}

// counted are a line's parts of the sums of its allotment.
type counted struct{ charge, ahead uint64 }

// rest returns how much of the live lease may be unspent.
func (l *line) rest() uint64 { return l.live - l.known }

// alive returns how many hits the Envoy may admit from now on with the leases that it has.
func (l *line) alive() uint64 {
	if l.acked && !l.stale {
		return l.rest()
	}
	return l.rest() + l.old + l.carried
}

// charge returns what the line is charged in the current window.
func (l *line) charge() uint64 { return l.spent + l.rest() + l.old + l.carried }

// count attributes allowed hits of a report, to the oldest leases first.
func (l *line) count(hits uint64) {
	take := func(from *uint64) uint64 {
		n := min(hits, *from)
		*from -= n
		hits -= n
		return n
	}
	l.spent += take(&l.carried)
	if l.past == unbounded {
		l.prove(hits)
		l.foreign(hits)
		return
	}
	n := take(&l.past)
	l.prove(n)
	l.doubt += n
	l.spent += take(&l.old)
	n = min(hits, l.rest())
	l.known += n
	l.spent += hits // more than there was: the Envoy has admitted it, so it is charged
}

// prove records that hits of ended windows were spent.
func (l *line) prove(hits uint64) {
	if n := min(hits, l.late); n > 0 {
		l.late -= n
		l.allotment.ledger.stats.Late += n
	}
}

// foreign counts hits that may be of leases of another stream or sidecar, which has charged them, or of no lease.
func (l *line) foreign(hits uint64) {
	if l.allotment.quota.FirstAllow {
		l.spent += hits
	} else {
		l.doubt += hits
	}
}

// settles reports whether a report that arrives now contains all hits of the leases before the newest one.
func (l *line) settles(now int64) bool {
	return l.serial != 0 && !l.stale && l.acked && now-l.ackedAt >= int64(settleAfter)
}

// credit ends the charges of leases that are dead and completely reported. It returns the hits that are free again.
func (l *line) credit() uint64 {
	kept := min(l.old, l.doubt)
	freed := l.old - kept + l.carried
	l.spent += kept
	l.doubt -= kept
	if l.late > 0 {
		l.allotment.ledger.stats.Stranded += l.late
		l.late = 0
	}
	l.old, l.carried, l.past, l.settled = 0, 0, 0, true
	return freed
}

// refused records that the Envoy has refused requests: the lease is spent if it was the only one since the report before.
func (l *line) refused(now int64) {
	if l.kind == Pair && l.past == 0 && l.acked && now < l.endsAt && l.before != 0 && l.before-l.ackedAt >= int64(settleAfter) {
		l.spent += l.rest()
		l.known = l.live
	}
}

// replace records the push of a lease, or of a refusal with n = 0.
func (l *line) replace(now int64, kind PushKind, serial, n uint64, ttl time.Duration) {
	l.old += l.rest()
	l.live, l.known, l.size, l.guess = n, 0, n, 0
	l.kind, l.serial, l.sentAt, l.acked = kind, serial, now, false
	l.ttl, l.endsAt = ttl, now+int64(ttl)
	l.same, l.forced, l.stale = 0, false, false
}

// extend records the push of a longer TTL.
func (l *line) extend(now int64, serial uint64, ttl time.Duration) {
	if l.same == 0 {
		l.sameDeadline = l.endsAt
	}
	l.same, l.ttl, l.endsAt = serial, ttl, now+int64(ttl)
}

// ack records that all responses up to serial are in use.
func (l *line) ack(now int64, serial uint64) {
	if !l.acked && l.serial != 0 && l.serial <= serial {
		l.acked, l.ackedAt, l.usedAt = true, now, now
	}
	if l.same == 0 || l.same > serial {
		return
	}
	if now >= l.sameDeadline { // the lease may have ended before, and then the extension has filled the bucket again
		l.old += l.rest()
		l.live, l.known = l.size, 0
		l.ackedAt = now
	}
	if l.same, l.usedAt = 0, now; l.cutFrom != 0 {
		l.cutFrom, l.endsAt = 0, now+int64(l.ttl)
	}
}

// latestEnd returns when the lease ends at the latest on a stream that is closed at now.
func (l *line) latestEnd(now int64) int64 {
	if l.waits() {
		return max(l.cutFrom, now+int64(settleAfter+l.ttl))
	}
	return l.usedAt + int64(l.ttl)
}

// waits reports whether a response with a push for the line is unacknowledged.
func (l *line) waits() bool { return l.serial != 0 && !l.acked || l.same != 0 }

// turn begins a window. What may be alive is charged to it as well.
func (l *line) turn(end int64) {
	alive := l.alive()
	if l.acked && l.ackedAt > end-int64(ackMargin) {
		alive = l.rest() + l.old + l.carried
	}
	dead := l.charge() - l.spent - alive
	if l.late += dead; l.past != unbounded {
		l.past += dead
	}
	l.allotment.ledger.stats.Stranded += alive // the next window is charged as well
	if l.same != 0 {                           // if it arrives when the lease has ended, it fills the bucket again
		alive += l.size
		l.same = 0
	}
	l.spent, l.live, l.known, l.old, l.doubt, l.carried = 0, 0, 0, 0, 0, alive
	l.hungry, l.awaits, l.guess, l.stale = false, 0, 0, true
	if l.want == Pair || l.want == Same {
		l.want = 0
	}
}

// expected returns the estimate of the unspent hits of the live lease. It is negative if the lease was too small.
func (l *line) expected(now int64) float64 {
	return float64(l.live) - max(float64(l.known), l.guess) - l.rate.over(now-max(l.sentAt, l.reportedAt))
}

// spentUp reports whether the lease is spent: reports prove it, or the load since them makes it very likely.
func (l *line) spentUp(now int64) bool {
	since := l.rate.over(now - max(l.sentAt, l.reportedAt))
	return l.rest() == 0 || l.expected(now)+math.Sqrt(max(0, since)) < 0
}

// idle reports whether the Envoy has no requests at present.
func (l *line) idle() bool { return l.quiet >= idleReports }

// demand returns the hits that the line needs in the next seconds.
func (l *line) demand(now int64, seconds float64) float64 {
	switch {
	case l.stream.stalled(now):
		return 0
	case l.idle():
		return idleLease
	case !l.rate.known:
		return l.allotment.firstLease(now)
	}
	return l.rate.need(seconds, 2)
}
