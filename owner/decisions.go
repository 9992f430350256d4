package owner

// Decisions counts the questions that were decided here, by the right by which they were, and those for which another
// member was named. Facts says the same and more, but takes much longer.
func (n *Node) Decisions() (decided [Shed + 1]uint64, asked uint64) {
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		for a := range decided {
			decided[a] += s.counts.decided[a]
		}
		asked += s.counts.forwarded
		s.mu.Unlock()
	}
	return decided, asked
}
