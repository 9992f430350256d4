package sublease

import (
	"testing"
	"time"
)

// TestClockSetBack checks that a lease which is not used comes back after the clock was set back, and that a descriptor gets a
// lease again.
func TestClockSetBack(t *testing.T) {
	for _, back := range []time.Duration{500 * time.Millisecond, time.Hour} {
		d := newDesk(t, Limit{10_000, 24 * time.Hour})
		d.now += 10 * int64(time.Hour)
		d.lease(print)
		d.now -= int64(back)
		d.tick(5 * time.Second)
		if n := d.tokens(); n > 0 || d.left != 10_000 {
			t.Errorf("%v: %d tokens are still out, and %d are left at the owner", back, n, d.left)
		}
		d.tick(10 * time.Second)
		if n := d.Totals().Keys; n != 0 {
			t.Errorf("%v: %d keys without requests are kept", back, n)
		}
		for i := range 100 {
			if d.Interest(d.now, 1, Print{uint64(i), 1}, 5) {
				d.Refuse(d.now, 1, Print{uint64(i), 1})
			}
		}
		d.now -= int64(back)
		d.tick(11 * time.Second)
		if !d.Interest(d.now, 1, Print{1, 1}, 20) {
			t.Errorf("%v: a descriptor is refused for longer than 10 s", back)
		}
	}
}
