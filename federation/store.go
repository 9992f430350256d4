package federation

import (
	"math"
	"time"
)

// StoreTerms are a rule's settings of how a holder uses its coordinator: a region, or a sidecar that is a holder of its own.
// The zero value is mechanism lease with all defaults.
type StoreTerms struct {
	Approximate bool          // mechanism: approximate. Holders admit hits before they report them
	Slack       uint32        // Approximate: hits that may be admitted unreported: of all holders in a rule, of one in EscrowSettings
	Watermark   uint8         // Approximate: the percentage of the limit below which, if no more is left, each request is checked
	Sync        time.Duration // Approximate: longest interval of a holder's reports; default 2 s
	LotMin      uint32        // hits of a lot at least, where enough is left; 0 means 10
	LotMax      uint32        // hits of a lot at most; 0 means no limit
	Reclaim     time.Duration // silence after which a holder's unspent hits are credited; 0: never
}

const (
	// defaultSync is the longest interval of a holder's reports, if the rule does not set it.
	defaultSync = 2 * time.Second
	// ReclaimCrash is the silence after which a holder counts as crashed, with reclaim: crash.
	ReclaimCrash = 3 * time.Second
	// reclaimMargin is how much later than its holder the coordinator considers hits expired.
	reclaimMargin = time.Second
	// heartbeats is how many reports a holder of expiring hits sends in the time in which they expire.
	heartbeats = 3
)

func (t *StoreTerms) sync() time.Duration {
	if t.Sync <= 0 {
		return defaultSync
	}
	return t.Sync
}

// lot returns the size of a lot that lasts for n hits, where share is the holder's part of what is left.
func (t *StoreTerms) lot(n float64, share uint64) uint64 {
	least, most := uint64(leastLot), uint64(math.MaxUint32)
	if t.LotMin > 0 {
		least = uint64(t.LotMin)
	}
	if t.LotMax > 0 {
		most = uint64(t.LotMax)
		least = min(least, most)
	}
	return min(max(uint64(math.Ceil(n)), min(least, share)), most)
}

// atMost returns the number of hits that random requests seldom exceed, where n are expected: three standard deviations
// more. Without them, a region whose demand fluctuates has spent its lot a moment before the next one comes.
func atMost(n float64) float64 { return n + 3*math.Sqrt(n) }

// Extended reports whether r needs a coordinator that supports mechanism approximate or reclaim.
func (r *PoolRequest) Extended() bool { return r.Approximate || r.Reclaim > 0 }

// expire gives up what is unspent if the coordinator has not confirmed it for so long that it may credit it soon.
func (e *Escrow) expire(now int64) {
	if e.set.Store.Reclaim > 0 && e.left > 0 && now >= e.confirmedAt+int64(e.set.Store.Reclaim) {
		e.have -= e.left
		e.left, e.reported = 0, false
	}
}

// Reclaimed reports whether the coordinator credits what the escrow has left without its consent.
func (e *Escrow) Reclaimed() bool { return e.set.Store.Reclaim > 0 }

// renews reports whether a heartbeat is due, because the holder has unspent hits.
func (e *Escrow) renews(now int64) bool {
	every := int64(e.set.Store.Reclaim) / heartbeats
	return every > 0 && e.left > 0 && now-e.confirmedAt >= every
}
