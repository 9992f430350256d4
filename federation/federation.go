// Package federation divides one limit between regions, each of which is a cluster: a floor that a region always has,
// and a pool that one coordinator lends to the regions until the window ends.
//
// In each window, the floors and the pool add up to the limit. A floor is never lent, and a part of the pool is charged
// before it is lent, so all admissions together stay within the limit, for any number of regions, any order of messages
// and any clocks. The scheme is window-coupled leasing (see internal/lease) between regions: credits end with their
// window.
//
// The types are values or guarded by the caller. Only implementations of Coordinator do I/O. Times are Unix nanoseconds by
// the caller's clock.
package federation

import (
	"context"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

// Key is the 128-bit digest that identifies a counter in all regions of a federation.
type Key = [2]uint64

// MaxNote is the most bytes of a Note.
const MaxNote = 1024

// Coordinator lends parts of the pools of keys. Its methods are safe for concurrent use; each request is processed
// atomically, and one call needs one round trip.
type Coordinator interface {
	// Lease processes requests of a region and returns a Grant for each, in their order, apart from those that are
	// refused because they are late or invalid. An error means that it is unknown which requests were processed.
	Lease(ctx context.Context, region string, rs []PoolRequest) ([]PoolGrant, error)
	// Reconcile is Lease for requests without Tokens, whose grants are not needed.
	Reconcile(ctx context.Context, region string, rs []PoolRequest) error
	// Healthy returns an error if the coordinator cannot lend now.
	Healthy(ctx context.Context) error
}

// Grantor is the synchronous form of a Coordinator: it processes one request at a time of the caller's clock, without
// I/O. It returns false if the request is refused.
type Grantor interface {
	Grant(now int64, region string, r *PoolRequest) (PoolGrant, bool)
}

// PoolRequest asks a coordinator for a part of a key's pool, returns unspent hits, and reports demand. It contains state, not
// events: what the region has of a window in all. So a lost grant is repeated with the next request, a return is a request
// with a lower total, and repeated requests count once.
type PoolRequest struct {
	Key    Key
	Rule   limit.Rule // the rule of the whole federation; a fixed or a sliding window
	Pool   uint64     // hits of a window that may be lent to all regions together
	Epoch  uint32     // of the federation's layout; coordinators refuse requests with another one
	Boot   uint64     // identifies one life of the region's escrow of this key
	Seq    uint64     // increases with every request of the region for this key
	Window int64      // index of the window of Have and Left, as in the grant; 0: the region has nothing
	Have   uint64     // hits granted to Boot in Window and not returned
	Left   uint64     // the part of them that is unspent
	Tokens uint64     // hits wanted in addition
	Past   Past       // of a sliding window: what the region kept of the window before
	Note   []byte     // for the other regions; at most MaxNote bytes

	// Approximate makes the request one of mechanism approximate, which only some coordinators support. Have then counts the hits
	// that Boot has admitted in Window, and Tokens those that it wants to admit in addition if the limit has room.
	Approximate bool
	// Reclaim is the silence of the region after which Left is credited to the pool, in whole microseconds; 0: never. Only some
	// coordinators support it.
	Reclaim time.Duration

	// Name is the counter's key in envoyproxy/ratelimit without the start of the window, which ends it:
	// "domain_key_value_". Only a coordinator that shares its counts with that service needs it.
	Name string
}

// Past reports what a region had of a window that has ended, apart from what was unspent then.
type Past struct {
	Window int64  // 0: nothing is reported
	Have   uint64 // hits spent in Window
}

// PoolGrant is the reply to a Request.
type PoolGrant struct {
	Key    Key
	Seq    uint64        // of the request
	Window int64         // the window in which the grant can be spent
	Total  uint64        // hits that the region has of Window from now on
	Used   uint64        // hits of the pool that are charged, including everything that is lent
	Usable uint64        // hits of the pool that can be lent in Window at most
	Left   time.Duration // until Window ends by the coordinator's clock
	Past   uint64        // Approximate: hits of all holders in the window before, of a sliding window
	Others []RegionLine  // the other regions with a request in Window, in the order of their names
}

// RegionLine describes what another region has of a key.
type RegionLine struct {
	Region  string
	Granted uint64        // hits that it has of the window
	Left    uint64        // the part of them that was unspent at its newest request
	Age     time.Duration // time since that request
	Note    []byte        // of that request
}
