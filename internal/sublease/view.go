package sublease

// LeaseView describes one key that a connection may spend, at the last look.
type LeaseView struct {
	Key  string
	Rate float64 // requests per second, smoothed
	// Given is the tokens of the lease when it was last filled, and Left those that are unspent. They are 0 without a lease.
	Given, Left uint32
	// Taken is the hits that were spent since the line was made. NoLease and Empty are those for which there was no token
	// meanwhile, while there was no lease, or one.
	Taken, NoLease, Empty uint64
}

// Lines calls see with each key of a connection, in no order.
func (b *TokenBook) Lines(conn uint64, see func(v LeaseView)) {
	e := b.conns[conn]
	if e == nil {
		return
	}
	for _, l := range e.lines {
		see(LeaseView{l.account.key, l.rate, l.given, l.left, l.taken, l.noLease, l.empty})
	}
}
