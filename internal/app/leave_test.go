package app

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
)

// A member that has drained stops when no call arrives anymore. If no other member was left, one that joins meanwhile takes
// over its counters first.
func TestLastMemberStaysForTheNext(t *testing.T) {
	now := time.Unix(1750000000, 0)
	view := func(handedOff bool) *membership.View {
		self := membership.Member{ID: "a", BootID: 1, State: membership.Leaving, HandedOff: handedOff}
		return &membership.View{Self: "a", BootID: 1, Members: []membership.Member{self}}
	}
	for _, c := range []struct {
		name      string
		last      bool
		handedOff bool
		called    time.Duration // how long ago; there have been calls
		want      time.Duration
	}{
		{"called a moment ago", false, true, time.Second, time.Second},
		{"quiet", false, true, 3 * time.Second, -time.Second},
		{"quiet, and the ring has changed again", false, false, 3 * time.Second, -time.Second},
		{"quiet, and no other member", true, true, 3 * time.Second, -time.Second},
		{"quiet, and another member joins", true, false, 3 * time.Second, handoffPoll},
		{"called a moment ago, and another member joins", true, false, time.Second, time.Second},
	} {
		d := newDrain()
		d.last, d.calls, d.lastCall = c.last, 1, now.Add(-c.called)
		if got := d.restsIn(now, view(c.handedOff)); got != c.want {
			t.Errorf("%s: may stop in %v, want %v", c.name, got, c.want)
		}
	}
}
