package cluster

import "time"

// nRefMemory remembers how large the ring has been: N_ref, by which a limit is divided when its owner cannot be asked.
// It must not shrink just because others fell silent: they may be alive behind a cut, with shares of their own. So it
// falls only by
//   - a graceful leave, at once: the leaver gave its share up;
//   - time: decay after the last death. However many agree about a death, those behind a cut divide by the old N_ref
//     as long as they cannot see us: of five cut into 3 and 2, three with the whole limit and two with 2/5 of it would
//     be too many.
//
// A member announces only what it has seen itself, never what it heard, so a number cannot live on by echo.
type nRefMemory struct {
	decay     time.Duration
	peak      int
	lastDeath time.Time
}

// ringChanged takes note of a new ring of that size, after left members went gracefully and died ones did not.
func (r *nRefMemory) ringChanged(now time.Time, size, left, died int) {
	r.peak = max(r.peak-left, size)
	if died > 0 {
		r.lastDeath = now
	}
}

// expire lets the memory fall to the ring's size if it may.
func (r *nRefMemory) expire(now time.Time, size int) {
	if r.peak > size && now.Sub(r.lastDeath) >= r.decay {
		r.peak = size
	}
}
