package peer

import (
	"math"
	"time"
)

const (
	delayWindow = 10 * time.Second
	delaySlack  = 15 * time.Millisecond // drift between two hosts within two windows: 600 millionths of 20 s; and a rest
)

// delay finds questions that lay about for longer than their asker waits: in the buffers of a member that was stopped,
// or of a network that was cut. The asker has answered them by its own share already; to charge them as well would
// refuse somebody else later.
//
// The two hosts' monotonic clocks share no origin. The least difference between sending and reading seen in the last
// windows stands for no delay, which needs no agreement on time and survives drift.
type delay struct {
	seen             bool
	began            int64
	least, prevLeast int64
}

// tooLate says whether a group sent at sent, by the asker's clock, was read at now, by ours, more than ttl too late.
func (d *delay) tooLate(now, sent int64, ttl time.Duration) bool {
	if sent < 0 || sent > math.MaxInt64/2 {
		return false // not a clock of ours; nothing to conclude
	}
	diff := now - sent
	if !d.seen {
		*d = delay{seen: true, began: now, least: diff, prevLeast: diff}
	}
	if now-d.began > int64(delayWindow) {
		d.began, d.prevLeast, d.least = now, d.least, math.MaxInt64
	}
	d.least = min(d.least, diff)
	return diff-min(d.least, d.prevLeast) > int64(ttl+delaySlack)
}
