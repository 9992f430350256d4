package hotkey

import (
	"math"
	"slices"
	"time"
)

const (
	// maxTracked is the number of keys that a Rates tracks.
	maxTracked = 64
	// defaultFactor is the multiple of the mean rate of other active keys above which a key is hot, if its rule does not
	// set it.
	defaultFactor = 10

	rateTau      = float64(time.Second) // time constant of counts, which makes a count a rate per second
	coolAfter    = int64(30 * time.Second)
	reportLife   = int64(3 * time.Second)
	maxReports   = 256 // of one key
	idleFraction = 8   // keys below Absolute divided by this are no longer tracked
)

// EpochSeconds is the time over which the mean rate of active keys is taken.
const EpochSeconds = 8

// Baseline contains the rates with which keys are compared, in requests per second.
type Baseline struct {
	Mean     float64 // mean rate of the keys that were active in the last epoch
	Active   float64 // their number; 0 if it is unknown: a key is then compared with a mean that includes its own requests
	Absolute float64 // 5% of what the member can decide; 0: no key is hot
	EpochEnd bool    // an epoch ends with this tick; Mean and Active are those of the epoch before it
}

// meanOfOthers returns the mean rate of the active keys without one that had so many requests in the last epoch. With them, a key
// among few could not be far above the mean, whatever its rate.
func (l *Baseline) meanOfOthers(requests float64) float64 {
	switch {
	case l.Active <= 0 || requests <= 0:
		return l.Mean
	case l.Active <= 1:
		return 0
	}
	return max(0, l.Mean*l.Active-requests/EpochSeconds) / (l.Active - 1)
}

// Rates tracks the rates of a few keys and reports which are hot. A rate is an exact decayed count: every request has a
// weight of e^-t after t seconds. Requests that holders of leases decide are added.
//
// A key becomes hot when its rate is above max(factor x mean of the others, Absolute) at two consecutive ticks, or above twice that
// at one. It stops being hot when its rate has been below Absolute/2 for 30 s. The zero value is ready to use; the
// caller guards it.
type Rates struct {
	index map[Digest]int
	keys  []tracked
}

// tracked is the state of one key.
type tracked struct {
	key       Digest
	factor    float64
	count     float64 // decayed to at
	epoch     float64 // requests in this epoch
	lastEpoch float64 // requests in the last one
	at        int64
	coldSince int64 // since when it is below Absolute/2; 0: it is not
	hot       bool
	wasAbove  bool // above the bound at the last tick
	reports   []report
}

// report is the last report of one holder, or the rate of the hits that Envoys were charged ahead for one window.
type report struct {
	who   uint64 // a holder, or the end of the window
	until int64
	rate  float64
	ahead bool
}

// Follow starts to track k at an estimated rate, with the factor of its rule; 0 means defaultFactor. It returns false
// if maxTracked other keys are hot or have higher rates.
func (r *Rates) Follow(now int64, k Digest, perSecond float64, factor uint16) bool {
	_, known := r.index[k]
	t := r.findOrAdd(now, k, perSecond)
	if t == nil {
		return false
	}
	if !known {
		t.count, t.epoch, t.at = perSecond, perSecond, now
	}
	t.factor = float64(factor)
	return true
}

// Count adds n requests for k and reports whether k is tracked. It costs a lookup in a small map, or nothing if that is
// empty.
func (r *Rates) Count(k Digest, now int64, n float64) (tracked bool) {
	t := r.find(k)
	if t == nil {
		return false
	}
	t.count = t.localRate(now) + n
	t.epoch += n
	t.at = max(t.at, now)
	return true
}

// Report sets the rate at which a holder decides requests for k. It expires after 3 s. If k is not tracked, Report
// starts to track it.
func (r *Rates) Report(now int64, k Digest, who uint64, perSecond float64) {
	t := r.findOrAdd(now, k, perSecond)
	if t == nil {
		return
	}
	t.report(now, report{who: who, until: now + reportLife, rate: perSecond})
}

// Ahead adds hits for k that were charged for Envoys to a window before it begins. Envoys decide requests themselves, so
// the hits are all that the owner sees of them. They count as a rate until the window ends at end, which is its length
// after it begins.
func (r *Rates) Ahead(now int64, k Digest, end, length int64, hits float64) {
	perSecond := hits * float64(time.Second) / float64(length)
	t := r.findOrAdd(now, k, perSecond)
	if t == nil {
		return
	}
	for _, p := range t.reports {
		if p.ahead && p.who == uint64(end) {
			perSecond += p.rate
		}
	}
	t.report(now, report{who: uint64(end), until: end + reportLife, rate: perSecond, ahead: true})
}

// report replaces the report of the same source.
func (t *tracked) report(now int64, by report) {
	t.dropOldReports(now)
	i := slices.IndexFunc(t.reports, func(p report) bool { return p.who == by.who && p.ahead == by.ahead })
	switch {
	case i >= 0:
		t.reports[i] = by
	case len(t.reports) < maxReports:
		t.reports = append(t.reports, by)
	}
}

// HotChange is a key that became hot or stopped being hot.
type HotChange struct {
	Key  Digest
	Hot  bool
	Rate float64 // requests per second
}

// Tick updates all keys and returns those that changed. Call it twice a second. Keys that are not nearly hot are no
// longer tracked.
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
		if l.EpochEnd {
			t.lastEpoch, t.epoch = t.epoch, 0
		}
		if !t.hot && rate < l.Absolute/idleFraction {
			r.remove(i)
			continue
		}
		i++
	}
	return changes
}

// update reports whether t is hot from now on.
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
	bound := max(factor*l.meanOfOthers(t.lastEpoch), l.Absolute)
	t.hot = rate > 2*bound || rate > bound && t.wasAbove
	t.wasAbove, t.coldSince = rate > bound && !t.hot, 0
	return t.hot
}

// RateOf returns k's rate in requests per second, including reports, or 0 if it is not tracked.
func (r *Rates) RateOf(now int64, k Digest) float64 {
	if t := r.find(k); t != nil {
		return t.rate(now)
	}
	return 0
}

// OwnRate returns k's rate without reports: the requests per second that this member decides itself.
func (r *Rates) OwnRate(now int64, k Digest) float64 {
	if t := r.find(k); t != nil {
		return t.localRate(now)
	}
	return 0
}

// Hot reports whether k is hot.
func (r *Rates) Hot(k Digest) bool {
	t := r.find(k)
	return t != nil && t.hot
}

// Len returns the number of tracked keys.
func (r *Rates) Len() int { return len(r.keys) }

// All calls visit for every tracked key, in no particular order.
func (r *Rates) All(now int64, visit func(k Digest, rate float64, hot bool)) {
	for i := range r.keys {
		t := &r.keys[i]
		visit(t.key, t.rate(now), t.hot)
	}
}

// find returns nil if k is not tracked.
func (r *Rates) find(k Digest) *tracked {
	if len(r.keys) == 0 {
		return nil
	}
	if i, ok := r.index[k]; ok {
		return &r.keys[i]
	}
	return nil
}

// findOrAdd returns the state of k, which it creates if there is room for a key with this rate, otherwise nil.
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

// evict removes the key with the lowest rate that is not hot, if it is below this rate.
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

// remove moves the last key to the place of the i-th.
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

// localRate returns the count without reports, decayed to now. If the clock went back, it does not change.
func (t *tracked) localRate(now int64) float64 {
	if now <= t.at {
		return t.count
	}
	return t.count * math.Exp(-float64(now-t.at)/rateTau)
}

// rate returns t's rate including reports. Around the end of a window two windows have hits that were charged ahead;
// the larger rate counts.
func (t *tracked) rate(now int64) float64 {
	sum, ahead := t.localRate(now), 0.0
	for _, p := range t.reports {
		switch {
		case now >= p.until:
		case p.ahead:
			ahead = max(ahead, p.rate)
		default:
			sum += p.rate
		}
	}
	return sum + ahead
}

// dropOldReports drops expired reports.
func (t *tracked) dropOldReports(now int64) {
	t.reports = slices.DeleteFunc(t.reports, func(p report) bool { return now >= p.until })
}
