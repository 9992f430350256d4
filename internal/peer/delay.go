package peer

import (
	"math"
	"time"
)

const (
	delayWindow = 10 * time.Second
	delaySlack  = 15 * time.Millisecond // 600 ppm of drift between two hosts in two windows, and a margin
)

// delay detects requests that were delayed for longer than their requester waits, in the buffers of a stopped member or
// of an interrupted network. The requester has decided them from its local share, so charging them again would refuse
// requests of other clients.
//
// The monotonic clocks of two hosts have different origins. The least difference between sending and reading in the
// last two windows counts as no delay. This needs no synchronized clocks, and tolerates drift.
type delay struct {
	seen             bool
	began            int64
	least, prevLeast int64
}

// tooLate reports whether a group with this ttl was read more than ttl late: sent is by the requester's clock, now by
// ours.
func (d *delay) tooLate(now, sent int64, ttl time.Duration) bool {
	late, known := d.of(now, sent)
	return known && late > ttl+delaySlack
}

// of returns how late a group was read. It returns false if sent is not of a valid clock.
func (d *delay) of(now, sent int64) (late time.Duration, known bool) {
	if sent < 0 || sent > math.MaxInt64/2 {
		return 0, false
	}
	diff := now - sent
	if !d.seen {
		*d = delay{seen: true, began: now, least: diff, prevLeast: diff}
	}
	if now-d.began > int64(delayWindow) {
		d.began, d.prevLeast, d.least = now, d.least, math.MaxInt64
	}
	d.least = min(d.least, diff)
	return time.Duration(diff - min(d.least, d.prevLeast)), true
}
