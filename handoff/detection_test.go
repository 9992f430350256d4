package handoff

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// TestDifferentDetections lets an owner lose one member after the other, for every combination of detection times and
// old versions. No key ever has two owners, and the others take over in the time of the slowest of them.
func TestDifferentDetections(t *testing.T) {
	fast, slow := membership.MinDetection, membership.Detection(9*time.Second)
	kinds := []struct {
		name string
		d    membership.Detection
		old  bool
	}{{"default", 0, false}, {"old", 0, true}, {"fast", fast, false}, {"slow", slow, false}}
	ids := []ring.ID{"a", "b", "c"}
	for n := range len(kinds) * len(kinds) * len(kinds) {
		detection, old, name, longest := map[ring.ID]membership.Detection{}, map[ring.ID]bool{}, "", fast
		for i, rest := 0, n; i < len(ids); i, rest = i+1, rest/len(kinds) {
			k := kinds[rest%len(kinds)]
			detection[ids[i]], old[ids[i]], name = k.d, k.old, name+" "+k.name
			longest = max(longest, k.d.OrDefault())
		}
		t.Run(name[1:], func(t *testing.T) {
			for _, alone := range []time.Duration{0, 300 * time.Millisecond, 2 * time.Second} {
				c := newClusterOf(t, detection, old, ids...)
				c.steady()
				c.cut = func(from, to ring.ID) bool { return from == "b" && to == "a" || from == "a" && to == "b" }
				c.run(alone) // only c confirms a
				c.check(0)
				c.cut = func(from, to ring.ID) bool { return from == "a" || to == "a" }
				c.takeOver("b", "c")
				for end := c.now + int64(longest.TakeoverDelay()) + int64(longest.Heartbeat()); c.now < end; {
					c.run(100 * time.Millisecond)
					c.check(0)
				}
				delete(c.machines, "a")
				c.check(1)
			}
		})
	}
}

// TestHeartbeatsEndSilence requires that no member is silent while all of them send their heartbeats, and that one is
// after two intervals without, with every detection time.
func TestHeartbeatsEndSilence(t *testing.T) {
	for _, d := range []membership.Detection{0, membership.MinDetection, membership.Detection(9 * time.Second), membership.MaxDetection} {
		t.Run(d.String(), func(t *testing.T) {
			c := newClusterOf(t, map[ring.ID]membership.Detection{"a": d, "b": d}, nil, "a", "b")
			a := c.machines["a"]
			for range 100 {
				c.run(time.Duration(100 * ms))
				if a.IsSilent(c.now, "b") {
					t.Fatal("b is silent although it sends heartbeats")
				}
			}
			c.cut = func(from, to ring.ID) bool { return from == "b" }
			c.run(d.Silence() + time.Duration(100*ms))
			if !a.IsSilent(c.now, "b") {
				t.Errorf("b is not silent after %v", d.Silence())
			}
		})
	}
}
