package quota

import (
	"testing"
	"time"
)

// retiring returns a rig with an Envoy whose lease reaches into the next window, some time before the window ends.
func retiring(t *testing.T, change func(r *rig)) (r *rig, l *line) {
	t.Helper()
	r = newRig(t, 1000, 10*time.Second)
	change(r)
	l = r.steady(50)[0]
	r.until(4 * time.Second)
	if a := l.allotment; l.endsAt <= a.end || a.ahead == 0 || a.next == 0 {
		t.Fatalf("a lease until %v into the window, %d of %d hits of the next window", r.into(l.endsAt), a.ahead, a.next)
	}
	r.pushes()
	r.back = nil
	return r, l
}

// returned returns the hits of a window that were given back.
func (r *rig) returned(window int64) (hits uint64) {
	for _, h := range r.back {
		if h.Window == window {
			hits += h.Hits
		}
	}
	return hits
}

// TestRetire has a sidecar leave: its Envoy's lease ends with the window, and keeps what it has until then.
func TestRetire(t *testing.T) {
	r, l := retiring(t, func(*rig) {})
	next, free, size := l.allotment.next, l.allotment.free(), l.size
	r.l.Retire(r.now)
	r.run()
	p := r.one(Same)
	equal(t, "tokens", uint64(p.Tokens), size)
	equal(t, "TTL", p.TTL, 5*time.Second)
	equal(t, "retired before the Envoy has acknowledged", r.l.Retired(), false)
	equal(t, "hits that it may spend in the next window", l.allotment.ahead > 0, true)
	r.wait(2 * time.Millisecond)
	equal(t, "retired", r.l.Retired(), true)
	r.l.Leave(r.now)
	r.run()
	equal(t, "returned of the next window", r.returned(r.window()+1), next)
	equal(t, "returned of this one", r.returned(r.window()), free)
	r.report(1, 250, 0)
	r.wait(20 * time.Second)
	r.none()
	equal(t, "asks", len(r.demands), 0)
}

// TestRetireWithoutAnswer keeps the charge for an Envoy that does not acknowledge the end of its lease, also if its stream ends.
func TestRetireWithoutAnswer(t *testing.T) {
	for _, closed := range []bool{false, true} {
		r, l := retiring(t, func(*rig) {})
		a := l.allotment
		next, ahead := a.next, a.ahead
		r.deaf[1] = true
		r.l.Retire(r.now)
		r.run()
		r.one(Same)
		if r.wait(100 * time.Millisecond); closed {
			r.l.Closed(r.now, 1)
		}
		equal(t, "retired", r.l.Retired(), closed)
		r.l.Leave(r.now)
		r.run()
		equal(t, "returned of the next window", r.returned(r.window()+1), next-ahead)
	}
}

// TestRetireLate keeps the charge for a lease whose end is acknowledged so late that it may reach into the next window.
func TestRetireLate(t *testing.T) {
	r, l := retiring(t, func(*rig) {})
	next, ahead := l.allotment.next, l.allotment.ahead
	r.deaf[1] = true
	r.l.Retire(r.now)
	r.run()
	p := r.one(Same)
	r.wait(1200 * time.Millisecond)
	r.l.Acked(r.now, 1, p.serial)
	equal(t, "retired", r.l.Retired(), true)
	r.l.Leave(r.now)
	r.run()
	equal(t, "returned of the next window", r.returned(r.window()+1), next-ahead)
}

// TestRetireReadLate keeps the charge for a lease that should end with the window, but that the Envoy has read so late that it may not.
func TestRetireReadLate(t *testing.T) {
	r, l := retiring(t, func(*rig) {})
	a := l.allotment
	l.endsAt, l.usedAt = a.end-int64(endMargin), r.now
	l.ttl = time.Duration(a.end-r.now) + time.Second
	a.settle(l)
	equal(t, "ahead, if the lease ends as early as it may", a.ahead, 0)
	next, alive := a.next, l.alive()
	r.deaf[1] = true
	r.l.Retire(r.now)
	r.run()
	r.one(Same)
	r.l.Leave(r.now)
	r.run()
	equal(t, "returned of the next window", r.returned(r.window()+1), next-alive)
}

// TestRetireKeepsLeases leaves assignments as they are if Envoys would admit everything after their end, and returns the rest.
func TestRetireKeepsLeases(t *testing.T) {
	r, l := retiring(t, func(r *rig) { r.quota.Outlasts = true })
	next, ahead := l.allotment.next, l.allotment.ahead
	r.l.Retire(r.now)
	r.run()
	r.none()
	equal(t, "retired", r.l.Retired(), true)
	r.l.Leave(r.now)
	r.run()
	equal(t, "returned of the next window", r.returned(r.window()+1), next-ahead)
}

// TestRetireReturnsLateGrants gives back what the holder grants after the sidecar has left.
func TestRetireReturnsLateGrants(t *testing.T) {
	r, _ := retiring(t, func(*rig) {})
	r.l.Retire(r.now)
	r.wait(2 * time.Millisecond)
	r.l.Leave(r.now)
	r.run()
	r.back = nil
	r.l.Granted(r.now, AskResult{WindowHits{key, r.window() + 1, 7}, 0})
	r.run()
	equal(t, "returned", r.returned(r.window()+1), 7)
}
