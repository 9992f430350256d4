package federation

import (
	"math"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

// maxUsed is where a ledger's count of charged hits stops. It is far above all that its regions can have together, so
// credits never bring a stopped count below what is lent, and double precision represents it.
const maxUsed = 1 << 52

// PoolAccount contains what a coordinator has lent of one key, in memory. It is the reference for the other coordinators. The zero
// PoolAccount is one that has existed since the beginning of time.
type PoolAccount struct {
	Since int64 // when the memory began: of a window that began earlier, only the rest can be lent

	window  int64
	current ledger
	past    ledger // of the window before, for sliding windows
}

// ledger contains what is lent of one window.
type ledger struct {
	used uint64 // charged hits
	PoolLines
}

// Grant processes r, a request of that region at now. It returns false if r is refused: one older than a previous one, one
// that contradicts itself, one from a window that has not begun, or one from one region too many.
func (a *PoolAccount) Grant(now int64, region string, r *PoolRequest) (g PoolGrant, ok bool) {
	w := r.Rule.Index(now)
	if !r.Valid() || r.Approximate || w < a.window || r.Window > w {
		return g, false
	}
	a.roll(w, r)
	if !a.current.receive(now, region, r, w) {
		return g, false
	}
	a.current.credit(a.current.Reclaim(now, region))
	a.past.credit(a.past.Settle(region, w-1, r))
	usable := a.usable(now, w, r)
	n := min(r.Tokens, usable-min(a.current.used, usable))
	a.current.used += n
	return PoolGrant{
		Key: r.Key, Seq: r.Seq, Window: w, Total: a.current.Lend(region, n), Used: a.current.used, Usable: usable,
		Left: time.Duration(r.Rule.End(w) - now), Others: a.current.Others(now, region),
	}, true
}

// Valid reports whether r is consistent and within the limits of all coordinators. They refuse other requests.
func (r *PoolRequest) Valid() bool {
	return r.Rule.Validate() == nil && r.Rule.Window%time.Microsecond == 0 && Federates(r.Rule.Algorithm) && r.Seq > 0 &&
		r.Left <= r.Have && len(r.Note) <= MaxNote && r.Pool <= uint64(r.Rule.Limit) &&
		r.Have <= 1<<40 && r.Tokens <= 1<<40 && r.Past.Have <= 1<<40 && r.Reclaim >= 0 && r.Reclaim%time.Microsecond == 0
}

// Federates reports whether limits of that algorithm can be divided between regions: unspent leases end only at the
// boundary of a window.
func Federates(a limit.Algorithm) bool { return a == limit.FixedWindow || a == limit.SlidingWindow }

// roll begins window w, if it is not the present one.
func (a *PoolAccount) roll(w int64, r *PoolRequest) {
	if w == a.window && a.current.lines != nil {
		return
	}
	past := ledger{}
	if w == a.window+1 && r.Rule.Algorithm == limit.SlidingWindow {
		past = a.current
	}
	a.past, a.window, a.current = past, w, ledger{}
}

// usable returns what can be lent in window w at now: of a sliding window less what the window before still weighs.
func (a *PoolAccount) usable(now, w int64, r *PoolRequest) uint64 {
	usable := usablePart(&r.Rule, r.Pool, w, a.Since)
	if r.Rule.Algorithm != limit.SlidingWindow {
		return usable
	}
	weighs := uint64(math.Ceil(portion(a.past.used, r.Rule.End(w)-now, int64(r.Rule.Window))))
	return usable - min(weighs, usable)
}

// usablePart returns what can be lent of a pool in window w by a coordinator that knows everything since then.
func usablePart(r *limit.Rule, pool uint64, w, since int64) uint64 {
	begin, end := r.End(w-1), r.End(w)
	switch {
	case since <= begin:
		return pool
	case since >= end:
		return 0
	}
	return uint64(portion(pool, end-since, end-begin))
}

// portion returns n x part / all, times in nanoseconds, computed as every coordinator does: in whole microseconds and
// double precision, in this order of operations.
func portion(n uint64, part, all int64) float64 {
	return float64(float64(n)*float64(part/1000)) / float64(all/1000)
}

// credit takes back hits that are not charged any more.
func (b *ledger) credit(hits uint64) { b.used -= min(b.used, hits) }

// receive records r and charges or credits what it changes. It returns false if r is refused.
func (b *ledger) receive(now int64, region string, r *PoolRequest, w int64) bool {
	c, ok := b.Receive(now, region, r, w)
	b.used = min(b.used-min(b.used, c.Credit)+c.Charge, maxUsed)
	return ok
}
