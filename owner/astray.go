package owner

import (
	"maps"
	"slices"

	"github.com/keyward/keyward/ring"
)

// maxAstray is how many keys are remembered of which one heir lacks a copy.
const maxAstray = 1 << 14

// stray notes that another member has confirmed batch seq instead of k's heir. That is enough for an answer, as two members know;
// but it is the heir that takes over, and of a key that is over its limit no later charge tells it.
func (c *copier) stray(heir ring.ID, k Key, seq uint64) {
	keys := c.astray[heir]
	if keys == nil {
		if c.astray == nil {
			c.astray = map[ring.ID]map[Key]uint64{}
		}
		keys = map[Key]uint64{}
		c.astray[heir] = keys
	}
	if _, known := keys[k]; known || len(keys) < maxAstray {
		keys[k] = max(keys[k], seq)
	}
}

// arrived notes that id has what batch seq says of k, and with it all that earlier ones said.
func (c *copier) arrived(id ring.ID, k Key, seq uint64) {
	if at, astray := c.astray[id][k]; astray && at <= seq {
		c.found(id, k)
	}
}

func (c *copier) found(id ring.ID, k Key) {
	if delete(c.astray[id], k); len(c.astray[id]) == 0 {
		delete(c.astray, id)
	}
}

// retell sends heirs that can be heard a batch of what others have confirmed instead of them, with each Tick until they confirm it.
func (n *Node) retell(now int64, fx *Effects) {
	c := &n.serial.copier
	for _, id := range slices.Sorted(maps.Keys(c.astray)) {
		if !n.hears(id, now) || n.inflight.Load() >= maxFlight {
			continue
		}
		g := &gathering{to: id}
		for _, k := range sortedKeys(c.astray[id]) {
			if g.full() {
				break
			}
			if !n.gatherStray(now, g, k) {
				c.found(id, k)
			}
		}
		n.dispatch(now, g, fx)
	}
}

// gatherStray puts k in the batch; false if it is over, or the batch's member is not the one to know it any more.
func (n *Node) gatherStray(now int64, g *gathering, k Key) bool {
	s, h := n.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.tables[ownedTable].find(h, k)
	if e == nil || e.expired(now) {
		return false
	}
	if _, heir := n.copyTo(now, s.view, e, 0); heir != g.to {
		return false
	}
	r := ref{key: k, heir: g.to}
	if d := s.slab.debt(e.more); d != nil {
		r.turn, r.upto = d.turn(), d.charged
	}
	g.add(s, e, r)
	return true
}
