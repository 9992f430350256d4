package peer

import (
	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// SetView applies a new view of the cluster: its ring determines who owns a key. Members that are not on the ring are
// connected as well, ahead of time. A request that was forwarded to a member that has gone may still be answered for a
// moment.
func (p *Peer) SetView(v *membership.View) { p.setView(v.Ring, stateOf(v), addressesOf(v)) }

// stateOf returns the membership for handoff.
func stateOf(v *membership.View) handoff.Membership {
	s := handoff.Membership{
		NRef: v.NRef, Joined: v.Joined, Leaving: v.SelfMember().State == membership.Leaving, Left: v.Left,
	}
	for i := range v.Members {
		m := &v.Members[i]
		if m.Role == membership.RoleMember && m.ID != v.Self {
			s.Peers = append(s.Peers, handoff.LivePeer{ID: m.ID, BootID: m.BootID, State: m.State, Weight: m.Weight})
		}
	}
	return s
}

// addressesOf returns the addresses of the other members' peer ports.
func addressesOf(v *membership.View) map[ring.ID]Addr {
	addrs := map[ring.ID]Addr{}
	for i := range v.Members {
		m := &v.Members[i]
		if m.Role == membership.RoleMember && m.ID != v.Self && m.Peer != "" {
			addrs[m.ID] = Addr{HostPort: m.Peer, BootID: m.BootID}
		}
	}
	return addrs
}
