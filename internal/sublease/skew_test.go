package sublease

import (
	"testing"
	"time"
)

// TestChargedToAnotherWindow has owners whose clocks differ answer at once, to requests at each time of a window at which lots are
// asked for. A result shows that the owner has charged another window if they differ by up to 0.25 s in windows of 1 s, 0.75 s in
// windows of 2 s, and 1 s in longer ones.
func TestChargedToAnotherWindow(t *testing.T) {
	for window, most := range map[time.Duration]time.Duration{
		time.Second: 250 * time.Millisecond, 2 * time.Second: 750 * time.Millisecond, 3 * time.Second: time.Second,
		4 * time.Second: time.Second, 10 * time.Second: time.Second,
	} {
		l := Limit{1000, window}
		r, wrong := l.rule(), 0
		at := r.Index(1000 * int64(window))
		for skew := -most; skew <= most; skew += 10 * time.Millisecond {
			for now := r.End(at - 1); now < r.End(at); now += int64(10 * time.Millisecond) {
				theirs := now + int64(skew)
				charged := r.Index(theirs)
				reset := (time.Duration(r.End(charged)-theirs) + time.Second - 1).Truncate(time.Second)
				accepted := l.asks(at, now) && l.ChargedTo(at, now, now, reset)
				if accepted && charged != at {
					wrong++
				}
				if near := max(skew, -skew) < clockMargin; near && l.asks(at, now) && charged == at && !accepted {
					t.Fatalf("windows of %v, %v apart: a charge is refused", window, skew)
				}
			}
		}
		if wrong > 0 {
			t.Errorf("windows of %v: %d charges of another window are accepted", window, wrong)
		}
	}
}
