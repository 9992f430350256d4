package owner

import (
	"github.com/keyward/keyward/lease"
	"github.com/keyward/keyward/ring"
)

// StepLease takes in a message about leases that boot inst of member from has sent. Messages of members that are not
// known to live are refused.
func (n *Node) StepLease(now int64, from ring.ID, inst uint64, m *lease.Msg) (fx Effects) {
	return fx
}
