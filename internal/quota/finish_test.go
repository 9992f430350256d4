package quota

import (
	"testing"
	"time"
)

// TestFinish checks that a sidecar that ends before the next window keeps of both windows exactly what Envoys may spend.
func TestFinish(t *testing.T) {
	r := newRig(t, 1500, 10*time.Second)
	r.l.shared = true
	r.first(1)
	for range 3 {
		r.wait(5 * time.Second)
		r.report(1, 300, 300)
	}
	r.until(9500 * time.Millisecond)
	w := r.window()
	a := r.l.allotments[key]
	spends := a.alive() // in the current window or in the next one
	if r.lent[w+1] <= spends || spends == 0 {
		t.Fatalf("%d hits of the next window, of which leases may spend %d", r.lent[w+1], spends)
	}
	r.l.Closed(r.now, 1)
	for _, h := range r.l.Finish(r.now) {
		r.lent[h.Window] -= h.Hits
	}
	equal(t, "hits of this window", r.lent[w], a.charged)
	equal(t, "hits of the next window", r.lent[w+1], spends)
	equal(t, "returned again", len(r.l.Finish(r.now)), 0)
}

// TestFinishAfterTheTurn checks that a sidecar that ends keeps what is charged in the window that has begun since.
func TestFinishAfterTheTurn(t *testing.T) {
	r := newRig(t, 1500, 10*time.Second)
	r.l.shared = true
	r.first(1)
	for range 3 {
		r.wait(5 * time.Second)
		r.report(1, 300, 300)
	}
	r.until(9500 * time.Millisecond)
	a := r.l.allotments[key]
	spends := a.alive()
	r.l.Closed(r.now, 1)
	r.now += int64(time.Second) // without a tick
	for _, h := range r.l.Finish(r.now) {
		r.lent[h.Window] -= h.Hits
	}
	equal(t, "hits of the window", r.lent[r.window()], spends)
}
