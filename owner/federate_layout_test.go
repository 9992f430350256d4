package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
)

const layoutWindow = 10 * time.Second

// placeOf returns the place of region i in a federation with those weights, of epoch 7, whose coordinator is home.
func placeOf(i int, weights ...uint32) FederationPlace {
	return FederationPlace{Schedule: scheduleOf(i, layoutOf(7, "home", "", weights...)), Authorities: []string{"home"}}
}

// layoutOf returns a layout with those weights.
func layoutOf(epoch uint32, coordinator, from string, weights ...uint32) *federation.Layout {
	l := &federation.Layout{Name: "test", Epoch: epoch, Coordinator: coordinator, From: from}
	for i := range weights {
		l.Regions = append(l.Regions, federation.LayoutRegion{Name: regionNames[i], Weight: &weights[i]})
	}
	return l
}

// from returns a time as layouts have it.
func from(at int64) string { return time.Unix(0, at).UTC().Format(time.RFC3339) }

// scheduleOf returns the schedule of region i for those layouts.
func scheduleOf(i int, layouts ...*federation.Layout) *federation.LayoutSchedule {
	s, err := federation.NewLayoutSchedule(regionNames[i], time.Minute, layouts, t0)
	if err != nil {
		panic(err)
	}
	return s
}

// changing returns two regions whose layout changes with the window after the next one: from the coordinator home to next, and
// from equal weights to 1:3. It returns when that window begins.
func changing(t *testing.T) (w *regions, boundary int64) {
	w = newRegions(t, 1, 1)
	boundary = t0/int64(layoutWindow)*int64(layoutWindow) + 2*int64(layoutWindow)
	layouts := []*federation.Layout{layoutOf(7, "home", "", 1, 1), layoutOf(8, "next", from(boundary-int64(time.Second)), 1, 3)}
	w.terms.Authority = federation.DefaultAuthority
	terms := updated(t, 0, layouts).TermOf
	w.pool = federation.NewMemory(terms, 0, func() int64 { return w.now })
	w.pools = map[uint32]*federation.Memory{
		federation.AuthorityID("home"): w.pool,
		federation.AuthorityID("next"): federation.NewMemory(terms, 0, func() int64 { return w.now }),
	}
	for i, n := range w.nodes {
		n.SetFederation(FederationPlace{Schedule: updated(t, i, layouts), Authorities: []string{"home", "next"}})
	}
	return w, boundary
}

// updated returns the schedule of region i after it has read the second layout, early enough.
func updated(t *testing.T, i int, layouts []*federation.Layout) *federation.LayoutSchedule {
	s, late, err := scheduleOf(i, layouts[0]).Update(layouts, t0-int64(time.Hour))
	if err != nil || len(late) > 0 {
		t.Fatal(late, err)
	}
	return s
}

// A window that has begun ends under its layout, and the next one has the new one: with the other coordinator and the other
// weights. Each admits the limit, but for what the transition leaves out.
func TestWindowsEndUnderTheirLayout(t *testing.T) {
	for _, algorithm := range []limit.Algorithm{limit.FixedWindow, limit.SlidingWindow} {
		w, boundary := changing(t)
		q := w.ask(400, layoutWindow)
		q.Rule.Algorithm = algorithm
		admitted := map[int64]int{}
		for w.now < boundary+3*int64(layoutWindow) {
			for i := range w.nodes {
				q.Waiter = w.calls<<8 + i
				if res := take(w.nodes[i], w.now, q); res.Kind == Decided && !res.Over {
					admitted[q.Rule.Index(w.now)]++
				}
			}
			for _, d := range w.wait(25) {
				if !d.Result.Over {
					admitted[q.Rule.Index(w.now)]++
				}
			}
		}
		last := q.Rule.Index(boundary) - 1
		for x := last; x <= last+3; x++ {
			n, least := admitted[x], 390
			if algorithm == limit.SlidingWindow {
				least = 0
			}
			if n > 400 || n < least {
				t.Errorf("%v: %d of 400 admitted in window %d after the change", algorithm, n, x-last-1)
			}
		}
		if algorithm == limit.SlidingWindow && admitted[last]+admitted[last+1] < 400 {
			t.Errorf("%d and %d admitted in sliding windows", admitted[last], admitted[last+1])
		}
		if len(w.lent) != 2 {
			t.Errorf("windows by coordinator: %v", w.lent)
		}
		for id, windows := range w.lent {
			for x := range windows {
				if (x > last) != (id == federation.AuthorityID("next")) {
					t.Errorf("authority %d has lent of window %d after the change", id, x-last-1)
				}
			}
		}
	}
}

// A grant of a window that uses another layout than the request is not spent, although the coordinator has not read that yet.
func TestGrantsOfAnotherLayoutAreNotSpent(t *testing.T) {
	w, boundary := changing(t)
	w.pools[federation.AuthorityID("home")] = federation.NewMemory(federation.Always(7), 0, nil)
	w.ahead = int64(time.Second)
	w.now = boundary - int64(500*time.Millisecond)
	q := w.ask(100, layoutWindow)
	for i := range 2 { // the floor
		if res := take(w.nodes[0], w.now, q); res.Authority != Full {
			t.Fatalf("hit %d: %+v", i, res)
		}
	}
	q.Waiter = 1
	if res := take(w.nodes[0], w.now, q); res.Kind != Pending {
		t.Fatalf("%+v", res)
	}
	for _, d := range w.wait(300) {
		if !d.Result.Over {
			t.Errorf("a hit of a window of the layout before: %+v", d.Result)
		}
	}
	if b, _ := w.nodes[0].EscrowBalance(q.Key); b.Left > 0 || b.Have > 0 {
		t.Errorf("%+v", b)
	}
}

// Shortly before a window of another layout, a floor is the smaller one, as another member may have begun that window.
func TestFloorBeforeTheNextLayout(t *testing.T) {
	for before, want := range map[time.Duration]int{time.Second: 25, limit.ClockTolerance + 1: 25, limit.ClockTolerance: 12, 1: 12, 0: 12} {
		w, boundary := changing(t)
		w.now = boundary - int64(before)
		q := w.ask(1000, layoutWindow)
		n := 0
		for q.Waiter = 0; ; n++ {
			if res := take(w.nodes[0], w.now, q); res.Kind != Decided || res.Over || res.Authority != Full {
				break
			}
		}
		if n != want {
			t.Errorf("%v before the next layout, the floor is %d, not %d", before, n, want)
		}
	}
}

// A cluster lends the pools of windows of layouts by which it coordinates, and refuses other epochs.
func TestClusterLendsByTheLayoutOfTheWindow(t *testing.T) {
	boundary := t0/int64(layoutWindow)*int64(layoutWindow) + int64(layoutWindow)
	layouts := []*federation.Layout{layoutOf(7, "r0", "", 1, 1), layoutOf(8, "r1", from(boundary), 1, 1)}
	for i := range 2 {
		for now, epoch := range map[int64]uint32{boundary - 1: 7, boundary: 8} {
			n := member(Options{Self: "a", BootID: 1001, Federation: FederationPlace{Schedule: scheduleOf(i, layouts[0])}}, t0, "a")
			n.SetFederation(FederationPlace{Schedule: updated(t, i, layouts)})
			for at := t0; at < now; at += int64(100 * time.Millisecond) {
				n.Tick(at)
			}
			n.Tick(now)
			for e := uint32(6); e < 10; e++ {
				r := federation.PoolRequest{
					Key: federation.Key{uint64(e), 2}, Rule: limit.Rule{Window: layoutWindow, Limit: 100}, Pool: 90, Epoch: e, Boot: 1,
					Seq: uint64(now), Tokens: 5,
				}
				res, _ := n.StepPool(now, "r0", &r, nil)
				if want := e == epoch && int(epoch) == 7+i; res.Kind != Decided || res.Lent != want {
					t.Errorf("region %d, %d ns after the change: epoch %d: %+v", i, now-boundary, e, res)
				}
			}
		}
	}
}
