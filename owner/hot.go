package owner

import (
	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/lease"
	"github.com/keyward/keyward/limit"
)

// HotKey is a key that this member owns and that is hot or lent.
type HotKey struct {
	Key                 Key
	Domain, Name, Owner string // empty until somebody has told them
	Hash                uint64 // ring position
	Rate                float64
	Hot                 bool
	Since               int64 // when it became hot, Unix nanoseconds
	Rule                limit.Rule
	Knobs               lease.Knobs
	Used, Lent          uint64 // hits that stand against the limit, and of these, hits that holders may not have spent
	Splittable          bool   // the limit is large enough to be lent to all members
}

// SetLoad says how many questions a second this machine could decide, and whether it has more to do than it can.
func (n *Node) SetLoad(capacity float64, overloaded bool) {}

// SetRoutes makes the keys of the owner strings in rs hot, or never hot, by decree. hash is Envoy's.
func (n *Node) SetRoutes(rs []hotkey.Route, hash func(string) uint64) {}

// HotKeys are the keys of this member that are hot or lent, the hottest first.
func (n *Node) HotKeys(now int64) []HotKey { return nil }
