package owner

// Decisions returns the number of requests decided here, by Authority, and of those for which another member was named.
// It is a part of Stats that takes much less time.
func (n *Node) Decisions() (decided [Escrow + 1]uint64, forwarded uint64) {
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		for a := range decided {
			decided[a] += s.counts.Decided[a]
		}
		forwarded += s.counts.Forwarded
		s.mu.Unlock()
	}
	return decided, forwarded
}
