package sublease

import (
	"testing"
	"time"
)

// TestUnspendable checks that few lots are asked for if a descriptor's requests have another one that is never leased: they give
// back at once what they have taken.
func TestUnspendable(t *testing.T) {
	for _, perSecond := range []int{1, 2, 20, 200} {
		d := newDesk(t, Limit{100_000, time.Hour})
		d.now += 60 * second
		calls := 0
		for range 60 * perSecond {
			calls++
			if d.tokens() == 0 && d.Interest(d.now, 1, print, 1) {
				d.Lease(d.now, 1, print, key, d.limit)
			}
			d.tick(time.Second / time.Duration(perSecond))
		}
		t.Logf("%d requests a second: %d lots for %d calls", perSecond, d.lots, calls)
		if d.lots > 8 {
			t.Errorf("%d requests a second: %d lots in a minute, of which nothing is spent", perSecond, d.lots)
		}
	}
}
