package peer

import (
	"slices"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// SetView applies a new view of the cluster: its ring determines who owns a key. Members that are not on the ring are
// connected as well, ahead of time. A request that was forwarded to a member that has gone may still be answered for a
// moment.
func (p *Peer) SetView(v *membership.View) {
	p.view.Lock()
	defer p.view.Unlock()
	p.updateLinks(v)
	p.membership = v
	p.setMembership(p.oldMembers())
}

// setMembership passes the membership to Node, with NoHandoff set for the old members. It is called with view held.
func (p *Peer) setMembership(old []ring.ID) {
	p.old = old
	v := p.membership
	if len(old) > 0 {
		marked := *v
		marked.Members = slices.Clone(v.Members)
		for i := range marked.Members {
			marked.Members[i].NoHandoff = slices.Contains(old, marked.Members[i].ID)
		}
		v = &marked
	}
	p.apply(p.o.Node.SetMembership(p.clock.now(), v))
}

// updateOldMembers passes the membership to Node again if the set of members without handoff support has changed.
func (p *Peer) updateOldMembers() {
	old := p.oldMembers()
	p.view.Lock()
	defer p.view.Unlock()
	if p.membership != nil && !slices.Equal(old, p.old) {
		p.log.Info("peers without handoff support changed", "peers", old)
		p.setMembership(old)
	}
}

// oldMembers returns the members whose last stream had a protocol version without handoff.
func (p *Peer) oldMembers() (old []ring.ID) {
	for id, l := range *p.links.Load() {
		if v := l.lastVersion.Load(); v != 0 && v < handoffVersion {
			old = append(old, id)
		}
	}
	slices.Sort(old)
	return old
}
