package handoff

import (
	"maps"
	"slices"

	"github.com/keyward/keyward/ring"
)

// clone returns a copy of m that shares only immutable values with it: rings, views and their members. Tests that
// explore every order of events use it; TestCloneSharesNothing fails if a new field is shared by mistake.
func (m *Machine) clone() *Machine {
	c := *m
	c.history = slices.Clone(m.history)
	c.confirmed = maps.Clone(m.confirmed)
	c.contacts = m.contacts.clone()
	c.copiesFrom = maps.Clone(m.copiesFrom)
	c.missingSince = maps.Clone(m.missingSince)
	c.peers = make(map[ring.ID]*peer, len(m.peers))
	c.sortedPeers = make([]*peer, len(m.sortedPeers))
	for i, p := range m.sortedPeers {
		q := *p
		c.peers[p.ID], c.sortedPeers[i] = &q, &q
	}
	return &c
}
