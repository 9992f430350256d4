package owner

import (
	"maps"
	"slices"

	"github.com/keyward/keyward/ring"
)

// maxSuccessorMisses is the most keys that are recorded as missing from one successor.
const maxSuccessorMisses = 1 << 14

// recordMiss records that a member other than key's successor has confirmed batch seq. That is enough for a decision,
// because two members have the charges. But it is the successor that takes over, and it gets no later charge of a key
// that is above its limit.
func (c *replicator) recordMiss(successor ring.ID, key Key, seq uint64) {
	keys := c.successorMisses[successor]
	if keys == nil {
		if c.successorMisses == nil {
			c.successorMisses = map[ring.ID]map[Key]uint64{}
		}
		keys = map[Key]uint64{}
		c.successorMisses[successor] = keys
	}
	if _, known := keys[key]; known || len(keys) < maxSuccessorMisses {
		keys[key] = max(keys[key], seq)
	}
}

// clearMiss records that member id has what batch seq, and so all earlier ones, contained of key.
func (c *replicator) clearMiss(id ring.ID, key Key, seq uint64) {
	if missed, found := c.successorMisses[id][key]; found && missed <= seq {
		c.dropMiss(id, key)
	}
}

func (c *replicator) dropMiss(id ring.ID, key Key) {
	if delete(c.successorMisses[id], key); len(c.successorMisses[id]) == 0 {
		delete(c.successorMisses, id)
	}
}

// resendToSuccessors sends each successor that can be heard a batch of what other members have confirmed in its place.
// It does so with each Tick until the successor has confirmed it.
func (n *Node) resendToSuccessors(now int64, fx *Ready) {
	c := &n.serial.replicator
	for _, id := range slices.Sorted(maps.Keys(c.successorMisses)) {
		if !n.heardRecently(id, now) || n.inflight.Load() >= maxFlight {
			continue
		}
		g := &gathering{to: id}
		for _, key := range sortedKeys(c.successorMisses[id]) {
			if g.full() {
				break
			}
			if !n.gatherMiss(now, g, key) {
				c.dropMiss(id, key)
			}
		}
		n.dispatch(now, g, fx)
	}
}

// gatherMiss adds key to the batch. It returns false if the counter has expired or the batch's member is no longer its
// successor.
func (n *Node) gatherMiss(now int64, g *gathering, key Key) bool {
	s, hash := n.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.counters.Owned.Find(hash, key)
	if e == nil || e.Expired(now) {
		return false
	}
	if _, successor := n.replicaTarget(now, s.view, e, 0); successor != g.to {
		return false
	}
	r := ref{key: key, successor: g.to}
	if u := s.counters.Unreplicated(e); u != nil {
		r.seq, r.upTo = u.Seq(), u.Charged()
	}
	g.add(s, e, r)
	return true
}
