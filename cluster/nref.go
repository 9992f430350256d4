package cluster

import "time"

// reference remembers how large the ring has been: N_ref, by which a limit is divided when its owner cannot be asked.
// It must not shrink just because others fell silent: they may be alive behind a cut, with shares of their own. So it
// falls only by
//   - a graceful leave, at once: the leaver gave its share up;
//   - a death that more than half of N_ref have confirmed, at once: the rest, alive or not, is a minority, and divides
//     by the old N_ref as long as it cannot see us. Confirmed by a member means that it announces the ring without the
//     dead, so nothing more has to be gossiped;
//   - time: decay after the last death.
//
// A member announces only what it has seen itself, never what it heard, so a number cannot live on by echo.
type reference struct {
	decay     time.Duration
	peak      int
	lastDeath time.Time
}

// change takes note of a new ring of that size, after left members went gracefully and died ones did not.
func (r *reference) change(now time.Time, size, left, died int) {
	r.peak = max(r.peak-left, size)
	if died > 0 {
		r.lastDeath = now
	}
}

// settle lets the memory fall to the ring's size if it may. confirmed is how many members of that ring announce it.
func (r *reference) settle(now time.Time, size, confirmed int) {
	if r.peak > size && (2*confirmed > r.peak || now.Sub(r.lastDeath) >= r.decay) {
		r.peak = size
	}
}
