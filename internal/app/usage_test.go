package app

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner"
)

// TestUsageReads requires that the answers for one window fall only if the owner has refunded hits.
func TestUsageReads(t *testing.T) {
	a, b := ownerRef{"a", 1}, ownerRef{"b", 1}
	minute := limit.Rule{Limit: 100, Window: time.Minute}
	const now = int64(30 * time.Second)
	type step struct {
		at     int64 // in windows after now
		owner  ownerRef
		away   bool
		count  uint64
		want   uint64
		source string
	}
	for name, steps := range map[string][]step{
		"the owner is away":           {{0, a, false, 40, 40, fromOwner}, {0, a, true, 7, 40, fromLast}, {0, a, false, 45, 45, fromOwner}},
		"a replica has more":          {{0, a, false, 40, 40, fromOwner}, {0, a, true, 43, 43, fromRecord}, {0, a, true, 41, 43, fromLast}},
		"the new owner has less":      {{0, a, false, 40, 40, fromOwner}, {0, b, false, 39, 40, fromLast}, {0, b, false, 42, 42, fromOwner}},
		"the owner restarts":          {{0, a, false, 40, 40, fromOwner}, {0, ownerRef{"a", 2}, false, 0, 40, fromLast}},
		"hits are refunded":           {{0, a, false, 40, 40, fromOwner}, {0, a, false, 10, 10, fromOwner}, {0, a, true, 0, 10, fromLast}},
		"the new owner refunds hits":  {{0, a, false, 40, 40, fromOwner}, {0, b, false, 38, 40, fromLast}, {0, b, false, 33, 35, fromLast}},
		"the next window":             {{0, a, false, 40, 40, fromOwner}, {1, a, true, 3, 3, fromRecord}},
		"the owner changes meanwhile": {{0, a, false, 40, 40, fromOwner}, {0, ownerRef{}, false, 39, 40, fromLast}, {0, ownerRef{}, false, 38, 40, fromLast}},
	} {
		t.Run(name, func(t *testing.T) {
			var u usageReads
			for i, s := range steps {
				r := usageRead{
					rule: minute, now: now + s.at*int64(time.Minute), begun: u.begin(), end: 30 * time.Second,
					isOwner: !s.away, owner: s.owner, count: s.count,
				}
				if got, source := u.merge(&r); got != s.want || source != s.source {
					t.Errorf("reading %d: %d from %s, want %d from %s", i, got, source, s.want, s.source)
				}
			}
		})
	}
}

// TestUsageReadsAndClocks requires that the answer of a slow clock about the former window is not returned, and that an
// answer from before a clock was set back does not replace later ones.
func TestUsageReadsAndClocks(t *testing.T) {
	for name, c := range map[string]struct {
		window, ahead, end time.Duration // ahead of the first answer; end of the second one's window
		want               uint64
		source             string
	}{
		"slow by 2 s":                      {time.Minute, 3 * time.Second, 2 * time.Second, 5, fromLast},
		"an hour back, minutes":            {time.Minute, time.Hour, 30 * time.Second, 600, fromOwner},
		"an hour back, minutes, at an end": {time.Minute, time.Hour, time.Second, 600, fromOwner},
		"an hour back, hours":              {time.Hour, time.Hour, 40 * time.Minute, 600, fromOwner},
		"a day back, days":                 {24 * time.Hour, 24 * time.Hour, time.Hour, 600, fromOwner},
	} {
		t.Run(name, func(t *testing.T) {
			var u usageReads
			r := usageRead{rule: limit.Rule{Limit: 1000, Window: c.window}, isOwner: true, owner: ownerRef{"a", 1}}
			answer := func(now time.Duration, count uint64) (uint64, string) {
				r.now, r.end, r.begun, r.count = int64(now), c.window-now%c.window, u.begin(), count
				return u.merge(&r)
			}
			now := c.window - c.end
			answer(now+c.ahead, 5)
			for range 2 {
				if got, source := answer(now, 600); got != c.want || source != c.source {
					t.Errorf("%d from %s, want %d from %s", got, source, c.want, c.source)
				}
			}
		})
	}
}

// TestUsageReadsOvertaken requires that an answer that a later one has overtaken is not taken for a refund.
func TestUsageReadsOvertaken(t *testing.T) {
	var u usageReads
	r := usageRead{rule: limit.Rule{Limit: 9, Window: time.Minute}, end: time.Minute, isOwner: true, owner: ownerRef{"a", 1}}
	first, second := r, r
	first.begun, second.begun = u.begin(), u.begin()
	first.count, second.count = 4, 5
	u.merge(&second)
	if got, _ := u.merge(&first); got != 5 {
		t.Errorf("the count fell to %d", got)
	}
}

// TestUsageReadsAreBounded requires that the memory for answers is bounded, and that algorithms without fixed windows
// need none.
func TestUsageReadsAreBounded(t *testing.T) {
	var u usageReads
	r := usageRead{rule: limit.Rule{Limit: 9, Window: time.Minute}, end: time.Minute, count: 3}
	for i := range uint64(maxUsageKeys + 10) {
		r.key = owner.Key{i, i}
		u.merge(&r)
	}
	if len(u.last) != maxUsageKeys {
		t.Errorf("%d keys", len(u.last))
	}
	r.count = 1
	if got, _ := u.merge(&r); got != 3 {
		t.Errorf("the newest key was dropped: %d", got)
	}
	r.rule.Algorithm = limit.SlidingWindow
	if got, _ := u.merge(&r); got != 1 {
		t.Errorf("a sliding window's count was kept: %d", got)
	}
	u.forget(r.key)
	r.rule.Algorithm = limit.FixedWindow
	if got, _ := u.merge(&r); got != 1 {
		t.Errorf("%d after a reset", got)
	}
}
