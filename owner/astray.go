package owner

import (
	"maps"
	"slices"

	"github.com/keyward/keyward/ring"
)

// maxSuccessorMisses is how many keys are remembered of which one heir lacks a copy.
const maxSuccessorMisses = 1 << 14

// recordMiss notes that another member has confirmed batch seq instead of k's heir. That is enough for an answer, as two members know;
// but it is the heir that takes over, and of a key that is over its limit no later charge tells it.
func (c *replicator) recordMiss(heir ring.ID, key Key, seq uint64) {
	keys := c.successorMisses[heir]
	if keys == nil {
		if c.successorMisses == nil {
			c.successorMisses = map[ring.ID]map[Key]uint64{}
		}
		keys = map[Key]uint64{}
		c.successorMisses[heir] = keys
	}
	if _, known := keys[key]; known || len(keys) < maxSuccessorMisses {
		keys[key] = max(keys[key], seq)
	}
}

// clearMiss notes that id has what batch seq says of k, and with it all that earlier ones said.
func (c *replicator) clearMiss(id ring.ID, key Key, seq uint64) {
	if at, astray := c.successorMisses[id][key]; astray && at <= seq {
		c.dropMiss(id, key)
	}
}

func (c *replicator) dropMiss(id ring.ID, key Key) {
	if delete(c.successorMisses[id], key); len(c.successorMisses[id]) == 0 {
		delete(c.successorMisses, id)
	}
}

// resendToSuccessors sends heirs that can be heard a batch of what others have confirmed instead of them, with each Tick until they confirm it.
func (n *Node) resendToSuccessors(now int64, fx *Effects) {
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

// gatherMiss puts k in the batch; false if it is over, or the batch's member is not the one to know it any more.
func (n *Node) gatherMiss(now int64, g *gathering, key Key) bool {
	s, hash := n.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.counters.Owned.Find(hash, key)
	if e == nil || e.Expired(now) {
		return false
	}
	if _, heir := n.replicaTarget(now, s.view, e, 0); heir != g.to {
		return false
	}
	r := ref{key: key, successor: g.to}
	if u := s.counters.Unreplicated(e); u != nil {
		r.seq, r.upTo = u.Seq(), u.Charged()
	}
	g.add(s, e, r)
	return true
}
