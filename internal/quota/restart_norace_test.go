//go:build !race

package quota

import (
	"testing"
	"time"
)

// TestRestarts requires that windows after that in which a sidecar starts again use the limit. Its Envoys report at once what
// they have spent, so it knows its demand with the first reports. If it was killed, what it had charged is lost: in windows of 10
// seconds, that is most of its part of the next one.
func TestRestarts(t *testing.T) {
	for _, retires := range []bool{false, true} {
		testRestarts(t, retires)
	}
}

func testRestarts(t *testing.T, retires bool) {
	for _, window := range []time.Duration{10 * time.Second, time.Minute} {
		for _, each := range []int{1, 5} {
			var used [3]float64 // of the windows with a restart, the next ones, and those after them
			const runs, windows = 3, 22
			for seed := range uint64(runs) {
				p := plan{
					seed: seed, limit: 20000, window: window, envoys: 3 * each, load: 1.6, windows: windows, sidecars: 3, skew: 10, restarts: true, retires: retires,
				}
				w := newWorld(t, p)
				for i, u := range w.run() { // from the fifth window on
					used[(i+4)%3] += u / runs / ((windows - 4) / 3)
				}
				if len(w.over) > 0 {
					t.Errorf("%+v: above the limit: %v", p, w.over)
				}
			}
			t.Logf("W %v, %d Envoys each, planned %v: windows of restarts %.4f, the next ones %.4f, those after them %.4f", window, each, retires, used[0], used[1], used[2])
			next := 0.96
			if window < shortWindow && !retires {
				next = 0.6
			}
			if used[0] < 0.9 || used[1] < next || used[2] < 0.98 {
				t.Errorf("W %v, %d Envoys each: %.4f", window, each, used)
			}
		}
	}
}

// restart makes a sidecar forget everything, after it has retired if that is planned. Its Envoys open new streams with their next
// reports.
func (w *world) restart(n int) {
	w.at(w.now+3*int64(w.window), func() { w.restart(n + 1) })
	s := w.sidecars[n%len(w.sidecars)]
	if !w.retires {
		w.forget(s)
		return
	}
	s.ledger.Retire(w.now)
	s.drive()
	w.at(w.now+second/4, func() {
		s.ledger.Leave(w.now)
		s.drive()
		w.forget(s)
	})
}

func (w *world) forget(s *sidecar) {
	s.ledger = NewLedger(Options{Shared: true})
	s.ledger.SetMembers(len(w.sidecars))
	for _, e := range w.envoys {
		if e.sidecar == s && e.stream != 0 {
			e.cut = true
			e.proxy.EndStream(w.now)
			e.after()
		}
	}
}
