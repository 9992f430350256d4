package federation

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

const (
	// lateBoot is how long after the newest request of a region one with a lower Seq, of another boot, is an old message
	// and not that of an owner whose clock is behind.
	lateBoot = 10 * time.Second
	// maxRegions is the most regions with requests for one key.
	maxRegions = 256
	// maxUsed is where a ledger's count of charged hits stops. It is far above all that its regions can have together, so
	// credits never bring a stopped count below what is lent, and double precision represents it.
	maxUsed = 1 << 52
)

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
	used  uint64 // charged hits
	lines []line // sorted by region
}

// line contains what a region has of a window.
type line struct {
	region  string
	boot    uint64
	seq     uint64 // of the newest request
	have    uint64 // hits that boot has
	left    uint64 // the part of them that may be unspent
	askedAt int64
	reclaim int64 // nanoseconds of silence after which left is credited; 0: never
	note    []byte
}

// Grant processes r, a request of that region at now. It returns false if r is refused: one older than a previous one, one
// that contradicts itself, one from a window that has not begun, or one from one region too many.
func (a *PoolAccount) Grant(now int64, region string, r *PoolRequest) (g PoolGrant, ok bool) {
	w := r.Rule.Index(now)
	if !r.Valid() || r.Approximate || w < a.window || r.Window > w {
		return g, false
	}
	a.roll(w, r)
	l := a.current.line(region)
	switch {
	case l == nil:
		return g, false
	case r.Seq <= l.seq && (r.Boot == l.boot || now-l.askedAt < int64(lateBoot)):
		return g, false
	}
	a.current.replace(l, r.Boot)
	a.current.receive(l, r, w)
	a.current.reclaim(now, region)
	a.past.settle(region, w-1, r)
	l.seq, l.askedAt, l.reclaim, l.note = r.Seq, now, int64(r.Reclaim), slices.Clone(r.Note)
	usable := a.usable(now, w, r)
	n := min(r.Tokens, usable-min(a.current.used, usable))
	a.current.used += n
	l.have += n
	l.left += n
	return PoolGrant{
		Key: r.Key, Seq: r.Seq, Window: w, Total: l.have, Used: a.current.used, Usable: usable,
		Left: time.Duration(r.Rule.End(w) - now), Others: a.current.others(now, region),
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

// receive sets l to what the region of r has of window w, and credits what it has returned or never got.
func (b *ledger) receive(l *line, r *PoolRequest, w int64) {
	have, left := r.Have, r.Left
	if r.Window != w {
		have, left = 0, 0
	}
	was := l.have
	if l.boot != r.Boot {
		was = 0 // what the earlier boot had stays charged
	}
	// A region that has more than is recorded shows that the record was lost.
	b.used = min(b.used-min(b.used, was)+have, maxUsed)
	l.boot, l.have, l.left = r.Boot, have, left
}

// settle credits what region has not spent of window w, which has ended.
func (b *ledger) settle(region string, w int64, r *PoolRequest) {
	if r.Past.Window != w {
		return
	}
	i, found := b.find(region)
	if !found || b.lines[i].boot != r.Boot || r.Past.Have >= b.lines[i].have {
		return
	}
	l := &b.lines[i]
	b.used -= min(b.used, l.have-r.Past.Have)
	l.have = r.Past.Have
}

// line returns the line of region, which it adds if necessary, or nil if there are too many.
func (b *ledger) line(region string) *line {
	i, found := b.find(region)
	if !found {
		if len(b.lines) >= maxRegions {
			return nil
		}
		b.lines = slices.Insert(b.lines, i, line{region: region})
	}
	return &b.lines[i]
}

func (b *ledger) find(region string) (int, bool) {
	return slices.BinarySearchFunc(b.lines, region, func(l line, region string) int { return cmp.Compare(l.region, region) })
}

// others returns the lines of the other regions.
func (b *ledger) others(now int64, region string) (ls []RegionLine) {
	for i := range b.lines {
		if l := &b.lines[i]; l.region != region {
			ls = append(ls, RegionLine{l.region, l.have, l.left, time.Duration(max(0, now-l.askedAt)), l.note})
		}
	}
	return ls
}
