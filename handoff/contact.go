package handoff

import (
	"maps"
	"sync"

	"github.com/keyward/keyward/ring"
)

// A Machine keeps, for each peer, all times of contact on which decisions depend:
//
//   - peer.confirmedAt: this member's latest heartbeat that the peer confirmed; it keeps this member's ownership valid.
//   - Machine.confirmed: when this member last confirmed each peer; it delays takeovers.
//   - Machine.contacts: when each peer last sent any message; it determines which members get replicas, and whether
//     a replica of the peer's counters is current.
//   - clockOffset.heartbeatAt: when its last heartbeat arrived; only heartbeats compare the clocks.
//
// Package peer has times of its own for each connection: see link.lastRead there.

// silentAfter returns for how long member id may send nothing before the members that have sent something since get
// replicas first.
func (m *Machine) silentAfter(id ring.ID) int64 {
	d := m.opts.Detection
	if p := m.peers[id]; p != nil {
		d = m.pair(p)
	}
	return int64(d.Silence())
}

// Contact records that member id has sent a message.
func (m *Machine) Contact(now int64, id ring.ID) { m.contacts.set(id, now) }

// LastContact returns when member id last sent a message. It returns false if id has never sent one, or was not live
// in between. It may be called concurrently with all methods of m.
func (m *Machine) LastContact(id ring.ID) (at int64, known bool) {
	at, known = m.contacts.of(id)
	return at, known && at != 0
}

// NoReply records that member id has not replied in time to a message that was sent at the given time. If it has sent
// nothing since, it is silent until it does.
func (m *Machine) NoReply(now int64, id ring.ID, sent int64) {
	if at, _ := m.contacts.of(id); at <= sent {
		m.contacts.set(id, min(at, now-m.silentAfter(id)))
	}
}

// IsSilent reports whether member id has sent nothing for two intervals of heartbeats. It is false for a member that
// has had no reason to send anything yet.
func (m *Machine) IsSilent(now int64, id ring.ID) bool {
	at, known := m.contacts.of(id)
	return known && at <= now-m.silentAfter(id)
}

// contacts holds when each peer last sent a message; 0 if it never has, but did not reply in time. Its methods may be
// called concurrently. They take no other lock.
type contacts struct {
	mu sync.RWMutex
	at map[ring.ID]int64
}

func (c *contacts) of(id ring.ID) (at int64, known bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	at, known = c.at[id]
	return at, known
}

func (c *contacts) set(id ring.ID, at int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at[id] = at
}

// keep removes the members that are not live.
func (c *contacts) keep(live map[ring.ID]*peer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.at, func(id ring.ID, _ int64) bool { return live[id] == nil })
}

func (c *contacts) clone() *contacts { return &contacts{at: maps.Clone(c.at)} }
