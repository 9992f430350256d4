// Package quota divides a limit between Envoys that spend their parts themselves (RLQS, the rate limit quota service).
//
// A [Ledger] belongs to one sidecar. It has an allotment for each key: hits that a holder (the owner of the key, or a
// lease from it) has charged to the key's windows for this sidecar. From these it pushes leases to the streams of Envoys.
// An Envoy spends its lease without a call for each request and reports its usage every 5 seconds.
//
// The charge of a key in a window never exceeds what the sidecar holds of that window, at each push:
//
//	charge = sum of the lines of all streams + what closed streams may have spent
//	line   = spent + live - known + old + carried
//
//	spent    hits that were reported and may have been admitted in this window
//	live     size of the newest lease
//	known    the part of live that reports prove spent; it is a part of spent
//	old      what may be unreported of the leases that live has replaced in this window
//	carried  what may be unspent of the leases of the window before. It is charged to both windows
//
// Reports do not say when hits were admitted. They count against the oldest lease first, so that what is known of the
// live lease is certain. A charge ends in three ways: with its window; when a report proves that a lease is dead, which
// is the first report one second or more after Envoy has acknowledged its replacement; and never otherwise.
//
// All methods take the time, in Unix nanoseconds by one clock. The package has no clock, no locks and no I/O.
package quota

import (
	"errors"
	"math"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

// Stream identifies one stream of one Envoy. The caller chooses the numbers and never uses one again.
type Stream = uint64

// Key identifies a counter. Its form is the caller's.
type Key = string

// KeyQuota is the limit of a key. It is comparable.
type KeyQuota struct {
	Limit  uint32        // hits per window
	Window time.Duration // at least MinWindow; windows are aligned to the Unix epoch, as those of limit.FixedWindow
	Envoys uint32        // Envoys that share the limit, for the first lease of a new one; 0: as many as have streams
	// FirstAllow is set if Envoys admit requests of ids without an assignment. Such hits are charged when they are reported.
	FirstAllow bool
	// Unlimited is set if Envoys admit everything: unlimited rules, shadow mode, and ids that match no rule.
	Unlimited bool
	// Outlasts is set if Envoys admit requests after their assignments have ended. Then these are not ended early.
	Outlasts bool
	// Counter identifies the counter that the hits are charged to. Hits of one counter are not assigned for another.
	Counter [2]uint64
}

// MinWindow is the shortest window of a quota. Envoys report every 5 seconds, so shorter windows would be over before
// anything is known.
const MinWindow = 10 * time.Second

// Validate returns an error if a Ledger cannot enforce the quota.
func (q KeyQuota) Validate() error {
	if !q.Unlimited && q.Window < MinWindow {
		return errors.New("window is shorter than 10 seconds")
	}
	return nil
}

// rule returns the limit that q is a part of.
func (q KeyQuota) rule() limit.Rule { return limit.Rule{Limit: q.Limit, Window: q.Window} }

// BucketReport is the usage of one key that an Envoy reports on a stream.
type BucketReport struct {
	Stream  Stream
	Key     Key
	Allowed uint64
	Denied  uint64
	Elapsed time.Duration // since the Envoy's report before, in whole seconds; 0 in the first one of a new id
}

// PushKind is the content of a Push.
type PushKind uint8

// The push kinds.
const (
	Pair    PushKind = 1 // deny all, then a bucket of Tokens that is never refilled: exactly Tokens from now on
	Same    PushKind = 2 // the bucket of Tokens again, with another TTL: what is left of it stays
	Deny    PushKind = 3 // deny all
	Allow   PushKind = 4 // allow all
	Abandon PushKind = 5 // forget the id, and the usage that it has not reported
)

// Push is one assignment for an Envoy.
type Push struct {
	Stream Stream
	Key    Key
	Kind   PushKind
	Tokens uint32        // Pair, Same: at least 1
	TTL    time.Duration // whole seconds, at least 1; 0 for Abandon
}

// Response is a message to one Envoy, with a PING behind it. When the PING is answered, the caller reports Serial to
// Ledger.Acked.
type Response struct {
	Stream Stream
	Serial uint64 // increases with each response of a stream
	Pushes []Push
}

// WindowHits are hits of one window of a key: asked for, granted, or returned.
type WindowHits struct {
	Key    Key
	Window int64 // index, as that of limit.Rule.Index
	Hits   uint64
}

// AskResult answers an ask: hits of a window that the holder has charged.
type AskResult struct {
	WindowHits
	Left uint64 // what the limit has room for in the window after that; LeftUnknown if the holder has not answered
}

// LeftUnknown is the Left of an AskResult without an answer.
const LeftUnknown = math.MaxUint64

// KeyDemand is how many hits the Envoys of this sidecar would spend of a key in one window if nothing limited them.
type KeyDemand struct {
	Key  Key
	Hits uint64 // at least 1
}

// Work is the result of a Tick. Its slices are valid until the next Tick.
type Work struct {
	Responses []Response
	// Asks are requests for more hits of the current or the next window. The caller answers each one with Ledger.Granted,
	// also with fewer hits or none; an ask without an answer is repeated.
	Asks []WindowHits
	// Returns are hits that this sidecar does not need. It has given them up.
	Returns []WindowHits
	// Demands are to be added up with those of the other sidecars. Each one replaces the one before of its key, and is
	// void after DemandLife. The caller answers with Ledger.Demanded. Without Options.Shared there are none.
	Demands []KeyDemand
}

// Options configures a Ledger. The zero value of a field means its default.
type Options struct {
	IDs int // most ids of one stream; default 1,000
	// Shared is set if other sidecars ask the same holder for hits of the same keys. The Ledger then asks for what its Envoys
	// need, instead of twice as much, and within its part of the limit.
	Shared bool
}

const (
	defaultIDs = 1000

	pauseLease     = 6 * time.Second         // for which a lease lasts when the load of a line comes back
	reportInterval = 5500 * time.Millisecond // time until the next report, with its delay
	settleAfter    = time.Second             // after an acknowledgement, until reports contain all hits of what was replaced
	spacing        = 50 * time.Millisecond   // between two responses to an Envoy
	endMargin      = 100 * time.Millisecond  // before the end of the last charged window, leases end
	denyBefore     = 70 * time.Millisecond   // before the end of a window, leases that the next one has no room for are ended
	ackMargin      = 20 * time.Millisecond   // an acknowledgement this long before the end of a window is one before it
	coverBefore    = 10 * time.Second        // before the end of a window, leases are charged to the next one as well
	awaitsMost     = 3                       // waits of a lease for hits of the next window
	lateCover      = 7 * time.Second         // before the end of a window, a lease waits for hits of the next one: it cannot be extended for long
	coverWait      = 20 * time.Millisecond   // for the next window's hits, before leases that end with the window are pushed
	extendBefore   = 5 * time.Second         // before a lease ends, extensions are sent: one that arrives later fills the bucket again
	lotBefore      = 2 * time.Second         // before the end of a window, the next window's lot is asked for
	askAgain       = 500 * time.Millisecond  // after an ask, answered or not, until the next one for the window
	stalledAfter   = time.Second             // a response unacknowledged for this long: no new leases
	scanInterval   = 250 * time.Millisecond  // between searches for leases that will not last
	nearEnd        = 6 * time.Second         // before the end of a window, nothing is kept back
	allowTTL       = 24 * time.Hour
	emptyLife      = 30 * time.Second // after which what Envoys have left behind is given back, if none has come back

	// DemandAge is after which time a demand is given again.
	DemandAge = 4 * time.Second
	// DemandLife is how long a demand counts that is not given again.
	DemandLife = 12 * time.Second

	idleReports  = 2           // reports without hits, until a line is idle
	idleLease    = 10          // lease of an idle line
	abandonAfter = time.Minute // without hits

	peakFades   = 0.97 // with each report with hits
	steadyAbove = 0.95 // part of a line's peak, above which its load does not pause
	lowLease    = 0.92 // part of what a lease should have for a load that pauses, below which it is enlarged
	lotPart     = 1.03 // part of a sidecar's part of the limit that a lot may have, while the demands are below
	roomyBelow  = 0.75 // part of the limit: while all demands are below, lines keep leases for loads that pause

	shortWindow = 20 * time.Second // below, a limit that is exceeded is granted without a reserve
)
