package hotkey

import (
	"math"
	"slices"
	"time"
)

const (
	// maxTracked is how many keys a Rates follows.
	maxTracked = 64
	// defaultFactor is how many times the mean rate of active keys a hot key has, where its rule says nothing.
	defaultFactor = 10

	rateTau      = float64(time.Second) // counts fade by e in this time, so that a count is a rate per second
	coolAfter    = int64(30 * time.Second)
	reportLife   = int64(3 * time.Second)
	maxReports   = 256 // of one key
	idleFraction = 8   // what is below this part of Load.Absolute is not followed any more
)

// Baseline is what a key's rate is measured against, in questions a second.
type Baseline struct {
	Mean     float64 // of a key that is active
	Absolute float64 // 5 % of what the member can decide; 0: nothing is hot
}

// Rates follows the rates of a few keys that may be hot, and says which are. A rate is an exact decayed one: every
// question weighs e^-t after t seconds; what holders of leases decide by themselves is added.
//
// A key is hot when its rate is above max(factor x Mean, Absolute) in two ticks after each other, or above twice that in
// one. It is not hot any more when its rate has been below Absolute/2 for 30 s. The zero value is ready; guarded by the
// caller.
type Rates struct {
	index map[Digest]int
	keys  []tracked
}

// tracked is one followed key.
type tracked struct {
	key       Digest
	factor    float64
	count     float64 // decayed to at
	at        int64
	coldSince int64 // since when it is below Absolute/2; 0 is not at all
	hot       bool
	wasAbove  bool // at the last tick
	reports   []report
}

// report is what one holder said last.
type report struct {
	who  uint64
	at   int64
	rate float64
}

// Follow begins to follow k, which seems to be asked for so often a second, by the factor of its rule (0:
// defaultFactor). It is false when maxTracked others are hot or hotter.
func (r *Rates) Follow(now int64, k Digest, perSecond float64, factor uint16) bool {
	_, known := r.index[k]
	t := r.findOrAdd(now, k, perSecond)
	if t == nil {
		return false
	}
	if !known {
		t.count, t.at = perSecond, now
	}
	t.factor = float64(factor)
	return true
}

// Count adds n questions for k, if it is followed. It costs a look into a small map, and nothing while that is empty.
func (r *Rates) Count(k Digest, now int64, n float64) (tracked bool) {
	t := r.find(k)
	if t == nil {
		return false
	}
	t.count = t.localRate(now) + n
	t.at = max(t.at, now)
	return true
}

// Report says how many questions for k holder who decides by itself a second. It holds for 3 s or until who says
// something else. A key that is not followed is considered.
func (r *Rates) Report(now int64, k Digest, who uint64, perSecond float64) {
	t := r.findOrAdd(now, k, perSecond)
	if t == nil {
		return
	}
	t.dropOldReports(now)
	i := slices.IndexFunc(t.reports, func(p report) bool { return p.who == who })
	switch {
	case i >= 0:
		t.reports[i] = report{who, now, perSecond}
	case len(t.reports) < maxReports:
		t.reports = append(t.reports, report{who, now, perSecond})
	}
}

// HotChange says that a key became hot, or is not any more.
type HotChange struct {
	Key  Digest
	Hot  bool
	Rate float64 // questions a second
}

// Tick judges all keys; it is to be called twice a second. It lets go of keys that are neither hot nor near it.
func (r *Rates) Tick(now int64, l Baseline) []HotChange {
	if l.Absolute <= 0 {
		l.Absolute = math.Inf(1)
	}
	var changes []HotChange
	for i := 0; i < len(r.keys); {
		t := &r.keys[i]
		t.dropOldReports(now)
		rate := t.rate(now)
		if was := t.hot; t.update(now, rate, l) != was {
			changes = append(changes, HotChange{t.key, t.hot, rate})
		}
		if !t.hot && rate < l.Absolute/idleFraction {
			r.remove(i)
			continue
		}
		i++
	}
	return changes
}

// update says whether t is hot from now on.
func (t *tracked) update(now int64, rate float64, l Baseline) bool {
	if t.hot {
		switch {
		case rate >= l.Absolute/2:
			t.coldSince = 0
		case t.coldSince == 0:
			t.coldSince = now
		default:
			t.hot = now-t.coldSince < coolAfter
		}
		return t.hot
	}
	factor := t.factor
	if factor == 0 {
		factor = defaultFactor
	}
	bound := max(factor*l.Mean, l.Absolute)
	t.hot = rate > 2*bound || rate > bound && t.wasAbove
	t.wasAbove, t.coldSince = rate > bound && !t.hot, 0
	return t.hot
}

// RateOf is k's rate in questions a second, with what holders report; 0 when it is not followed.
func (r *Rates) RateOf(now int64, k Digest) float64 {
	if t := r.find(k); t != nil {
		return t.rate(now)
	}
	return 0
}

// Hot says whether k is hot.
func (r *Rates) Hot(k Digest) bool {
	t := r.find(k)
	return t != nil && t.hot
}

// Len is the number of keys that are followed.
func (r *Rates) Len() int { return len(r.keys) }

// All shows every key that is followed, in no meaningful order.
func (r *Rates) All(now int64, visit func(k Digest, rate float64, hot bool)) {
	for i := range r.keys {
		t := &r.keys[i]
		visit(t.key, t.rate(now), t.hot)
	}
}

// find is nil when k is not followed.
func (r *Rates) find(k Digest) *tracked {
	if len(r.keys) == 0 {
		return nil
	}
	if i, ok := r.index[k]; ok {
		return &r.keys[i]
	}
	return nil
}

// findOrAdd finds k, or makes place for a key of this rate; nil if there is none.
func (r *Rates) findOrAdd(now int64, k Digest, rate float64) *tracked {
	if t := r.find(k); t != nil {
		return t
	}
	if len(r.keys) == maxTracked && !r.evict(now, rate) {
		return nil
	}
	if r.index == nil {
		r.index = make(map[Digest]int)
	}
	r.index[k] = len(r.keys)
	r.keys = append(r.keys, tracked{key: k, at: now})
	return &r.keys[len(r.keys)-1]
}

// evict lets go of the coldest key that is not hot, if its rate is below this one.
func (r *Rates) evict(now int64, rate float64) bool {
	coldest := -1
	for i := range r.keys {
		if t := &r.keys[i]; !t.hot && t.rate(now) < rate {
			coldest, rate = i, t.rate(now)
		}
	}
	if coldest >= 0 {
		r.remove(coldest)
	}
	return coldest >= 0
}

// remove puts the last key in the place of the i-th.
func (r *Rates) remove(i int) {
	last := len(r.keys) - 1
	delete(r.index, r.keys[i].key)
	if i != last {
		r.keys[i] = r.keys[last]
		r.index[r.keys[i].key] = i
	}
	r.keys[last] = tracked{}
	r.keys = r.keys[:last]
}

// localRate is the count of t without reports, decayed to now. A clock that goes back stands still.
func (t *tracked) localRate(now int64) float64 {
	if now <= t.at {
		return t.count
	}
	return t.count * math.Exp(-float64(now-t.at)/rateTau)
}

// rate is t's rate with what holders report.
func (t *tracked) rate(now int64) float64 {
	sum := t.localRate(now)
	for _, p := range t.reports {
		if now-p.at < reportLife {
			sum += p.rate
		}
	}
	return sum
}

// dropOldReports drops reports that are too old.
func (t *tracked) dropOldReports(now int64) {
	t.reports = slices.DeleteFunc(t.reports, func(p report) bool { return now-p.at >= reportLife })
}
