package federation

import (
	"time"

	"github.com/keyward/keyward/internal/limit"
)

const (
	// lateReport is how much earlier than a window begins, or later than it ends, requests for it are accepted: holders count by
	// their own clocks.
	lateReport = 10 * time.Second
	// keepCounts is how much longer counts are kept, so that a clock that is set back finds them.
	keepCounts = time.Minute
	// maxLives is the most lives of holders in one window of a key. A holder that restarts is another life.
	maxLives = 4096
)

// CountAccount contains what holders have admitted of one key, with mechanism approximate. It is the reference for
// coordinators. The zero CountAccount contains nothing.
type CountAccount struct {
	windows map[int64]*countedWindow
}

// countedWindow contains the hits of a window.
type countedWindow struct {
	sum   uint64
	lives map[holderLife]uint64 // hits, some of which may be reserved
}

// holderLife is one life of a holder.
type holderLife struct {
	holder string
	boot   uint64
}

// Grant processes r, a request of that holder at now. It counts the hits that the holder reports, and reserves the tokens for which
// the limit has room. A repeated request changes nothing. It returns false if r is refused: one that contradicts itself, or is not
// of the present window.
func (a *CountAccount) Grant(now int64, holder string, r *PoolRequest) (g PoolGrant, ok bool) {
	end := r.Rule.End(r.Window)
	if !r.Valid() || !r.Approximate || now >= end+int64(lateReport) || now < end-int64(r.Rule.Window)-int64(lateReport) {
		return g, false
	}
	w, past := a.windows[r.Window], a.windows[r.Window-1]
	life := holderLife{holder, r.Boot}
	if w != nil && len(w.lives) >= maxLives {
		if _, known := w.lives[life]; !known {
			return g, false
		}
	}
	w = a.window(now, r, r.Window)
	if r.Past.Window == r.Window-1 {
		past = a.window(now, r, r.Window-1)
		past.raise(life, r.Past.Have)
	}
	before := uint64(0)
	if past != nil && (r.Rule.Algorithm == limit.SlidingWindow || r.Past.Window == r.Window-1) {
		before = past.sum
	}
	weight := weighs(&r.Rule, before, r.Window, now)
	usable := r.Pool - min(weight, r.Pool)
	count := w.raise(life, r.Have)
	if target := r.Have + r.Tokens; target > count {
		count = w.raise(life, count+min(target-count, usable-min(w.sum, usable)))
	}
	return PoolGrant{
		Key: r.Key, Seq: r.Seq, Window: r.Window, Total: count, Used: w.sum, Usable: usable,
		Left: time.Duration(max(0, end-now)), Past: before,
	}, true
}

// window returns window w, which it adds if necessary, and removes those that have ended long ago.
func (a *CountAccount) window(now int64, r *PoolRequest, w int64) *countedWindow {
	if a.windows == nil {
		a.windows = map[int64]*countedWindow{}
	}
	for i := range a.windows {
		if r.Rule.End(i+1)+int64(lateReport+keepCounts) <= now {
			delete(a.windows, i)
		}
	}
	if a.windows[w] == nil {
		a.windows[w] = &countedWindow{lives: map[holderLife]uint64{}}
	}
	return a.windows[w]
}

// raise sets the hits of a life to n, if that is more, and returns what they are then.
func (w *countedWindow) raise(l holderLife, n uint64) uint64 {
	was := w.lives[l]
	n = max(n, was)
	w.lives[l], w.sum = n, min(w.sum+n-was, maxUsed)
	return n
}
