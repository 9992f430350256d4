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
func (c *replicator) recordMiss(heir ring.ID, k Key, seq uint64) {
	keys := c.successorMisses[heir]
	if keys == nil {
		if c.successorMisses == nil {
			c.successorMisses = map[ring.ID]map[Key]uint64{}
		}
		keys = map[Key]uint64{}
		c.successorMisses[heir] = keys
	}
	if _, known := keys[k]; known || len(keys) < maxSuccessorMisses {
		keys[k] = max(keys[k], seq)
	}
}

// clearMiss notes that id has what batch seq says of k, and with it all that earlier ones said.
func (c *replicator) clearMiss(id ring.ID, k Key, seq uint64) {
	if at, astray := c.successorMisses[id][k]; astray && at <= seq {
		c.dropMiss(id, k)
	}
}

func (c *replicator) dropMiss(id ring.ID, k Key) {
	if delete(c.successorMisses[id], k); len(c.successorMisses[id]) == 0 {
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
		for _, k := range sortedKeys(c.successorMisses[id]) {
			if g.full() {
				break
			}
			if !n.gatherMiss(now, g, k) {
				c.dropMiss(id, k)
			}
		}
		n.dispatch(now, g, fx)
	}
}

// gatherMiss puts k in the batch; false if it is over, or the batch's member is not the one to know it any more.
func (n *Node) gatherMiss(now int64, g *gathering, k Key) bool {
	s, h := n.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.counters.Owned.Find(h, k)
	if e == nil || e.Expired(now) {
		return false
	}
	if _, heir := n.replicaTarget(now, s.view, e, 0); heir != g.to {
		return false
	}
	r := ref{key: k, successor: g.to}
	if d := s.counters.Unreplicated(e); d != nil {
		r.seq, r.upTo = d.Seq(), d.Charged()
	}
	g.add(s, e, r)
	return true
}
