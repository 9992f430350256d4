package owner

import (
	"cmp"
	"slices"
	"time"

	"github.com/keyward/keyward/federation"
)

// HeldEscrow describes the escrow of one key.
type HeldEscrow struct {
	federation.EscrowState
	Key       Key
	Authority uint32 // federation.AuthorityID of its coordinator
}

// Escrows returns the escrows of this member with the most lent hits, at most the given number, and how many there are.
func (n *Node) Escrows(now int64, most int) (held []HeldEscrow, all int) {
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		at := s.clock(now)
		for key, x := range s.escrows.keys {
			if x.count == nil { // mechanism approximate holds nothing
				held = append(held, HeldEscrow{x.Escrow.Describe(at), key, x.authority})
			}
		}
		s.mu.Unlock()
	}
	all = len(held)
	slices.SortFunc(held, func(a, b HeldEscrow) int {
		return cmp.Or(-cmp.Compare(a.Have, b.Have), -cmp.Compare(a.Demand, b.Demand), cmp.Compare(a.Key[0], b.Key[0]), cmp.Compare(a.Key[1], b.Key[1]))
	})
	return held[:min(all, most)], all
}

// CoordinatorState reports whether outage policies decide because the coordinator with that federation.AuthorityID is away,
// and the round trip time to it.
func (n *Node) CoordinatorState(authority uint32) (away bool, rtt time.Duration) {
	l := n.federation.link(authority)
	return l.isAway(), l.roundTrip()
}
