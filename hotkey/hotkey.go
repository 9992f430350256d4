// Package hotkey finds the few keys with the most hits, in fixed memory, and places their sub-keys.
//
// Rates are exact for a few owned keys with many recent requests. Forwarded keys are counted in a sketch. The package
// has no clock and no locks.
package hotkey

import "github.com/keyward/keyward/ring"

// Digest is the 128-bit digest of a counter's key.
type Digest [2]uint64

// Mode is how requests for a hot key are handled. The numbers are part of the gossiped encoding.
type Mode uint8

// The modes.
const (
	Auto      Mode = 0 // decided by the Planner; in a manual route: remove the manual route
	Cap       Mode = 1 // Envoy refuses requests locally while the limit is certainly exceeded
	Dedicated Mode = 2 // all requests go to one other member
	Spread    Mode = 3 // requests go to sub-keys on several members
	Never     Mode = 4 // only in a manual route: requests are not rerouted
	Quota     Mode = 5 // Envoys spend parts of the limit (RLQS) instead of calling for each request
)

// Route describes to every member and every xDS server how requests for one hot key are handled. Of several routes for
// the same Domain and Owner a manual one counts, and then the one with the highest Version. A Route is gossiped,
// refreshed while it applies, and dropped 15 s after its last refresh.
type Route struct {
	Domain  string
	Name    string // readable descriptor: k=v,k2=v2
	Owner   string // owner string: the value of the header that Envoy matches
	Mode    Mode
	Manual  bool         // made by an operator
	Allow   bool         // with Quota: Envoys admit requests before their first assignment, so none must be primed
	Author  ring.ID      // member that made the route
	Version int64        // Unix nanoseconds of the Author's last change
	Limit   uint32       // of the rule, if Capped, in every mode
	Window  int64        // nanoseconds, if Capped
	Subs    []SubKey     // one for Dedicated, several for Spread
	Entries []RouteEntry // descriptor of the counter that Limit and Window belong to; nil if it is not known exactly
}

// RouteEntry is a key and value of a descriptor.
type RouteEntry struct{ Key, Value string }

// SubKey is an owner string that the ring assigns to a certain member.
type SubKey struct {
	Key    string // Owner, '#' and a number
	Member ring.ID
}
