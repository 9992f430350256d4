package owner

import "github.com/keyward/keyward/ring"

// HeldKey is a key of another member of which this one has a lease.
type HeldKey struct {
	Key                 Key
	Domain, Name, Owner string
	Member              ring.ID // the grantor
	Left, Have          uint64
	Demand              float64 // hits a second
	Denied              bool
	Expires             int64 // Unix nanoseconds
	Mechanism           Mechanism
}

// Held are the keys of which this member has leases.
func (n *Node) Held(now int64) []HeldKey { return nil }
