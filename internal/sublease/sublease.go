// Package sublease divides hits that the owners of keys have charged between the Envoys of one pod, which spend them from
// memory that they share with their sidecar.
//
// A [TokenBook] has an account of each key. It asks for small lots, which last for a fraction of a second, or for seconds if
// a key has few requests, gives them to the connections of Envoys that need them, takes back what is not used, and returns
// it. Each hit that can be spent was charged before to the window that it can be spent in, unless nothing limits its key.
// The package has no clock and no I/O: times are nanoseconds since the Unix epoch and come from the caller.
package sublease

import (
	"math"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

// Print identifies a descriptor in the memory of one Envoy.
type Print [2]uint64

// Words is the memory of one Envoy. Methods that return how many tokens were left of a lease return false if the memory
// contains what the caller cannot have written. Then all tokens of the lease count as spent, and the connection ends.
type Words interface {
	// Put adds a lease, until the given time. It returns its slot, or false if there is no room.
	Put(p Print, tokens uint32, expires int64) (slot uint32, ok bool)
	// Left returns the tokens of a lease.
	Left(slot uint32) (left uint32, ok bool)
	// Add adds tokens to a lease, and returns how many were left before.
	Add(slot, tokens uint32) (left uint32, ok bool)
	// Remove ends a lease, and returns how many tokens were left.
	Remove(slot uint32) (left uint32, ok bool)
	// Rivals calls see with each slot in which a lease of p could be, if all of them are taken. Otherwise, Put succeeds.
	Rivals(p Print, see func(slot uint32))
}

// Limit is the limit of a key: that many hits in each window, which is a limit.FixedWindow. The zero value limits nothing: no
// owner charges hits, and Envoys may spend any number.
type Limit struct {
	Hits   uint32
	Window time.Duration
}

func (l Limit) rule() limit.Rule { return limit.Rule{Limit: l.Hits, Window: l.Window} }

// KeyHits is a number of hits of a key in a window.
type KeyHits struct {
	Key    string
	Window int64
	Hits   uint64
}

// LotAsk is a request for a lot.
type LotAsk struct {
	KeyHits
	Life time.Duration // for which the hits may stay with Envoys: what comes back of them comes back before
}

// Lot is the result of a LotAsk at the key's owner.
type Lot struct {
	KeyHits        // that were charged; Hits may be 0
	Left    uint64 // of the limit, after them
	Known   bool   // Left is known
}

// BookWork lists the actions that a TokenBook needs. The slices are valid until the next call of Tick.
type BookWork struct {
	Asks    []LotAsk  // to be charged by owners; Granted has to be called with the result of each
	Returns []KeyHits // that were charged and are not needed
	Spent   []KeyHits // that Envoys have spent since the last call
	Corrupt []uint64  // connections that have to be closed
}

// BookTotals are the sums of hits since the start. They never decrease, except Held and Keys. Granted is always Spent +
// Returned + Expired + Lost + Held, less the hits in Spent that have come back and that no others have taken the place of.
type BookTotals struct {
	Granted  uint64 // charged by owners
	Spent    uint64 // by Envoys
	Returned uint64
	Expired  uint64 // unspent when their windows ended
	Lost     uint64 // that count as spent because the memory was corrupt
	Held     uint64 // that Envoys can spend, or have spent unnoticed, and those between them

	Free uint64 // hits of keys without a limit that Envoys have spent; they are not part of the other sums

	Full uint64 // leases for which an Envoy's memory had no room
	Keys int    // with an account
}

// The times and sizes of a TokenBook.
const (
	// EndMargin is how long before the end of a window its leases end.
	EndMargin = 100 * time.Millisecond
	// clockMargin is how far the clocks of members may differ. No lot is asked for in the last part of a window that an
	// owner could charge to the next one, and, in short windows, in the first part that one could charge to the last one.
	clockMargin = limit.ClockTolerance
	// longWindow is the shortest window of which an owner's result shows to which one a lot was charged.
	longWindow = 4 * time.Second

	// TickInterval is the time between two looks at a busy lease.
	TickInterval = 20 * time.Millisecond
	// slowTicks is the number of TickIntervals between two looks at the leases of a key with few requests.
	slowTicks = 8
	// fullTicks is the same for a key with few requests that has no room for a lease.
	fullTicks = 64

	horizon     = 200 * time.Millisecond // for which a lot is enough
	idleAfter   = 400 * time.Millisecond // without use a lease is taken back; later if its rate is low
	forgetAfter = 10 * time.Second       // without use a line is removed
	leaseLife   = 10 * time.Minute       // a lease is made again after half of it; a module refuses leases of more than an hour
	retryAfter  = 500 * time.Millisecond // after too little was left of the limit
	faultAfter  = 100 * time.Millisecond // after no owner has granted a lot

	// MinRate is the number of requests per second of one Envoy from which a lease pays.
	MinRate  = 1
	keepRate = MinRate / 2.0 // of requests; below, a lease is not filled again
	// slowRate is the rate of requests at which the first lot lasts for 2 horizons. Below it, rates are measured over a
	// number of requests instead of a time, and lots last for a number of them.
	slowRate = firstLot / (2 * 0.2)

	hitsMeasured = 4 // requests over which a low rate, and their size, are averages
	sureSize     = 3 // of requests; a lower estimate may be an error, and is taken as 1

	// messageInterval is the least time between two messages of a module about a descriptor.
	messageInterval = 100 * time.Millisecond
	longMeasure     = 8 * time.Second // over which a rate is measured at most
	hitsIdle        = 4               // a lease is idle if that many requests would have come
	longIdle        = 4 * time.Second // after which a lease is idle in any case

	firstLot = 8 // hits of a lease whose demand is not known yet; later lots at most double
	minLot   = 8 // a smaller lot is not worth a request
	leastLot = 3 // requests; a lot that is enough for fewer spares too few calls
	minSpent = 4 // no lot is asked for if fewer requests will probably be made before the window ends
	maxLot   = 1 << 29

	surplusLots = 8               // a lease that would last for that many lots is taken back: then the rate has decreased for about 400 ms
	lotTime     = 3 * time.Second // for which a lot lasts at most, if it has more than firstLot
	surplusTime = 4 * time.Second // and so is one that would last for that long, if it has more than firstLot

	freeLot  = 64               // tokens of a key without a limit, at least
	freeTime = 2 * time.Second  // for which they are enough
	freeLife = 10 * time.Second // after which they expire, if this process is stopped; they are renewed after half of it

	// busyLife and slowLife are how long the hits of a lot may be with Envoys.
	busyLife = 9 * time.Second
	slowLife = 30 * time.Second
	oldAfter = slowLife - 2*longIdle // after which a lease that was not filled is taken back

	partsOfRest = 4 // a lot is at most this part of an equal share of what is left of the limit, and of the time until it is spent

	interestPeriod = 4 * time.Second        // over one or two of which the rate of a descriptor without a lease is measured
	leastMeasure   = 100 * time.Millisecond // for the hits that have proved a rate
	hitsProved     = 5                      // fewer hits prove no rate
	maxCandidates  = 1 << 14                // descriptors of one Envoy whose rates are measured at a time

	muchBusier = 4 // times: then a line takes the room of another; low rates are measured to a third

	fullAfter = time.Second      // without room, a lease is tried again, twice as late each time
	fullMost  = 16 * time.Second // at the latest
)

// Eligible reports whether the hits of a limit can be leased: if a window has room for leases between its margins, and the
// limit is large enough for lots.
func (l Limit) Eligible() bool { return l.Window >= time.Second && l.Hits >= minLot*partsOfRest }

// ChargedTo reports whether an owner has charged a request to that window of l, if the request was sent and answered at
// these times, and the owner has reported that its window ends after reset, in whole seconds, rounded up. Both clocks may
// differ by limit.ClockTolerance. In windows of longWindow and longer, a charge is not accepted if they differ by a second
// more than that, unless by whole windows: leases would end with this member's window, and not with the owner's.
func (l Limit) ChargedTo(window, sent, answered int64, reset time.Duration) bool {
	r := l.rule()
	start, end := r.End(window-1), r.End(window)
	if answered < sent || answered >= end-int64(clockMargin) || sent < start {
		return false
	}
	if l.Window < longWindow {
		return sent >= start+int64(clockMargin)
	}
	ends := int64(reset) - end // the owner has decided between sent and answered
	return answered+ends > -int64(clockMargin) && sent+ends < int64(time.Second+clockMargin)
}

// asks reports whether a lot of the window may be asked for.
func (l Limit) asks(window, now int64) bool {
	r := l.rule()
	start, end := r.End(window-1), r.End(window)
	if l.Window < longWindow {
		start += int64(clockMargin)
	}
	return now >= start && now < end-int64(clockMargin)
}

// smooth is an average rate that follows changes within horizon, or within hitsMeasured requests of that size if that is longer.
func smooth(rate, now float64, elapsed time.Duration, size float64) float64 {
	return now + (rate-now)*math.Exp(-float64(elapsed)/float64(inHits(hitsMeasured*size, rate, horizon, longMeasure)))
}

// inHits returns the time in which that many hits come, but at least and at most a time.
func inHits(hits, rate float64, least, most time.Duration) time.Duration {
	if hits >= rate*most.Seconds() {
		return most
	}
	return max(least, time.Duration(hits/rate*float64(time.Second)))
}
