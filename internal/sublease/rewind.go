package sublease

// rewind moves all times of the book by as much as the clock was set back. Without it, a lease would not become idle, and what
// was put off would not be tried again, until the clock has made up for the step.
func (b *TokenBook) rewind(by int64) {
	b.ticked -= by + int64(TickInterval) // all leases are looked at now, because the window may be another one
	for _, a := range b.accounts {
		a.retry -= by
		a.leftAt -= by
		a.lookAt = 0
		for _, l := range a.lines {
			for _, at := range []*int64{&l.usedAt, &l.messageAt, &l.lookedAt, &l.filledAt, &l.renewAt, &l.fullTo} {
				*at -= by
			}
		}
	}
	for _, e := range b.conns {
		e.period -= by
		for _, c := range e.candidates {
			c.since -= by
			c.refused -= by
		}
	}
}
