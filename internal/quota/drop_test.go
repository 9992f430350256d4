package quota

import (
	"testing"
	"time"
)

// TestLateAckOfAbandonedLine has an Envoy acknowledge that an id was abandoned after the window, and the key's allotment, have
// ended, and another Envoy spends the key meanwhile. What the allotment gave back when it ended is not given back again: it would
// be taken from the hits of the other Envoy.
func TestLateAckOfAbandonedLine(t *testing.T) {
	for _, shared := range []bool{false, true} {
		r := newRig(t, 3000, 10*time.Second)
		r.l.shared = shared
		r.first(2)
		r.steadyNextTo(100)
		r.until(8500 * time.Millisecond)
		r.report(1, 350, 0)
		window, end := r.window(), r.now-int64(r.into(r.now))+int64(r.quota.Window)
		r.l.Closed(r.now, 1)
		r.deaf[2] = true
		r.pushes()
		r.report(2, 0, 0)
		r.wait(100 * time.Millisecond)
		abandon := r.one(Abandon)
		a := r.l.list[0]
		if len(a.lines) > 0 || a.next == 0 || len(r.l.streams[2].ending) == 0 {
			t.Fatalf("%d lines, %d hits of the next window, %d leases that end", len(a.lines), a.next, len(r.l.streams[2].ending))
		}
		ahead := min(a.next, a.ahead)
		r.now = end + int64(time.Millisecond)
		r.back = nil
		r.run()
		r.first(3)
		r.wait(100 * time.Millisecond)
		before := r.returned(window + 1)
		b := r.l.allotments[key]
		if b == a || b == nil || b.held == 0 {
			t.Fatalf("%+v is the allotment after the window", b)
		}
		unassigned := r.l.Stats().Unassigned
		r.l.Acked(r.now, 2, abandon.serial)
		r.run()
		equal(t, "returned again", r.returned(window+1)-before, 0)
		equal(t, "counted again as unassigned", r.l.Stats().Unassigned-unassigned, 0)
		if lent := r.lent[window+1]; lent < b.held+ahead {
			t.Errorf("%d hits of the window are charged, and Envoys may spend %d", lent, b.held+ahead)
		}
	}
}

// steadyNextTo brings stream 1 to a steady rate in a minute, while stream 2 reports no hits.
func (r *rig) steadyNextTo(rate float64) {
	r.t.Helper()
	r.first(1)
	for range 13 {
		r.wait(5 * time.Second)
		r.report(1, uint64(5*rate), 0)
		if r.into(r.now) < 5*time.Second && r.l.streams[2].lines[key].quiet < 2 {
			r.report(2, 0, 0)
		}
	}
	r.turn(time.Millisecond)
}

// TestLateAckAfterAChangeOfTheRule has an Envoy acknowledge that an id was abandoned after the key's counter has changed. What
// other Envoys may spend in the next window remains counted.
func TestLateAckAfterAChangeOfTheRule(t *testing.T) {
	r := newRig(t, 3000, 10*time.Second)
	r.first(2)
	r.steadyNextTo(100)
	r.deaf[2] = true
	r.pushes()
	r.report(2, 0, 0)
	r.wait(100 * time.Millisecond)
	abandon := r.pushes()[0]
	a := r.l.allotments[key]
	equal(t, "push", abandon.Kind, Abandon)
	if len(r.l.streams[2].ending) == 0 || r.l.streams[2].ending[0].lease.until <= a.end {
		t.Fatal("the lease does not reach into the next window")
	}
	r.quota.Counter[0]++
	r.report(1, 0, 0)
	ahead := a.ahead
	r.l.Acked(r.now, 2, abandon.serial)
	equal(t, "hits of the next window that Envoys may spend", a.ahead, ahead)
}

// TestKeysWithoutEnvoysAreForgotten has Envoys end in a long window: what is charged for them and not assigned is given back soon,
// and what they may spend stays charged. So ids that clients choose take no memory until the end of their windows.
func TestKeysWithoutEnvoysAreForgotten(t *testing.T) {
	for _, shared := range []bool{false, true} {
		r := newRig(t, 36_000, time.Hour)
		r.l.shared = shared
		r.first(1)
		r.wait(time.Minute)
		a := r.l.allotments[key]
		free := a.free()
		r.l.Closed(r.now, 1)
		r.wait(emptyLife - time.Second)
		if r.l.allotments[key] != a || a.gone == 0 || free == 0 {
			t.Fatalf("%d hits are with the Envoy, and %d are free", a.gone, free)
		}
		r.wait(2 * time.Second)
		equal(t, "keys", len(r.l.list), 0)
		equal(t, "charged", r.lent[r.window()], a.gone)
		r.first(2)
		r.wait(time.Second)
		equal(t, "another Envoy has hits", r.charged() > 0, true)
	}
}
