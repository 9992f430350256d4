package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/ring"
)

// Members come, go, pause, cut each other off and ask whom they like, each with a ring of its own age. Whatever is
// admitted on a key in a window is at most the limit and the sum of the bounds the members report.
func TestAdmittedWithinTheReportedBound(t *testing.T) {
	exceeded := 0
	for seed := range uint64(20) {
		exceeded += runCluster(t, seed)
	}
	if exceeded == 0 {
		t.Error("no run ever admitted more than a limit: the test shows nothing")
	}
}

type simulated struct {
	*Node
	id   ring.ID
	due  []change // rings it will adopt
	next int64    // time of its next Tick
}

type change struct {
	at  int64
	r   *ring.Ring
	std Standing
}

func runCluster(t *testing.T, seed uint64) (exceeded int) {
	rnd := random(seed)
	ids := names(5)
	live := 3
	first := ringOf(ids[:live]...)
	var ms []*simulated
	for _, id := range ids {
		m := &simulated{Node: New(Options{Self: id, MaxKeys: 400}), id: id}
		m.SetRing(t0-10*second, first, Standing{NRef: live, Joined: true})
		ms = append(ms, m)
	}
	admitted := twin{}
	now := t0
	for range 20_000 {
		now += rnd.Int64N(second / 100)
		if rnd.IntN(700) == 0 { // the ring changes, and everybody learns it in his own time
			live = 2 + rnd.IntN(4)
			r := ringOf(ids[:live]...)
			for _, m := range ms {
				m.due = append(m.due, change{now + rnd.Int64N(second), r, Standing{NRef: live + rnd.IntN(2), Joined: true}})
			}
		}
		m := ms[rnd.IntN(live)]
		for _, o := range ms {
			o.step(now)
			if rnd.IntN(3000) == 0 {
				o.next += 4 * second // a pause
			}
		}
		q := ask(rnd.IntN(12), 20, []time.Duration{time.Second, 10 * time.Second}[rnd.IntN(2)], 1+rnd.Uint64N(3))
		q.Key[0] ^= uint64(q.Rule.Window)
		q.Degraded = Degraded(rnd.IntN(2) * 2)
		a := m.Take(now, &q)
		if a.Kind == Ask {
			a = askOwner(now, ms, a, m, &q, rnd.IntN(10) == 0)
		}
		if a.Over {
			continue
		}
		sum := admitted.admit(now, &q)
		bound := uint64(0)
		if sum > uint64(q.Rule.Limit) {
			for _, o := range ms {
				bound += o.Facts(now).Bound()
			}
		}
		if sum > uint64(q.Rule.Limit)+bound {
			t.Fatalf("seed %d: admitted %d of %d, bound %d, last by %s: %+v", seed, sum, q.Rule.Limit, bound, m.id, a)
		}
		if sum > uint64(q.Rule.Limit) {
			exceeded++
		}
	}
	return exceeded
}

func (m *simulated) step(now int64) {
	for len(m.due) > 0 && m.due[0].at <= now {
		m.SetRing(now, m.due[0].r, m.due[0].std)
		m.due = m.due[1:]
	}
	if now >= m.next {
		m.Tick(now)
		m.next = now + second/2
	}
}

func askOwner(now int64, ms []*simulated, a Answer, from *simulated, q *Question, lost bool) Answer {
	as := make([]Answer, 1)
	for _, o := range ms {
		if o.id == a.Member && !lost {
			o.Serve(now, from.id, false, []Question{*q}, as)
			if as[0].Kind == Decided {
				from.Observe(now, q, &as[0])
				return as[0]
			}
		}
	}
	return from.Degrade(now, q)
}

// What each part of the bound means, in the small.
func TestMovedBound(t *testing.T) {
	two := ringOf("a", "b")
	mine := ownedBy(t, two, "a", 0)
	n := member(Options{Self: "a"}, t0, "a", "b")
	joined := Standing{NRef: 2, Joined: true}
	q, short := ask(mine, 50, time.Hour, 1), ask(mine, 70, time.Second, 1)
	short.Key[0]++
	// Joining others: their hour is under way.
	take(n, t0+second, q)
	take(n, t0+second, short)
	if f := n.Facts(t0 + second); f.Moved != 70 || f.Bound() != 70 {
		t.Fatalf("joined: %+v", f)
	}
	if f := n.Facts(t0 + 2*second); f.Moved != 50 {
		t.Fatalf("the short window is over: %+v", f)
	}
	hour := t0 + 3600*second
	n.Tick(hour)
	take(n, hour, q)
	if f := n.Facts(hour); f.Moved != 0 {
		t.Fatalf("the next hour: %+v", f)
	}
	// Another member joins: what stays here was here.
	three := ringOf("a", "b", "c")
	stays := ownedBy(t, three, "a", 0)
	n.SetRing(hour+second, three, Standing{NRef: 3, Joined: true})
	take(n, hour+second, ask(stays, 60, time.Hour, 1))
	if f := n.Facts(hour + second); f.Moved != 0 {
		t.Fatalf("a key that stayed: %+v", f)
	}
	// It leaves again: what comes here was charged there.
	comes := 0
	for i := 0; comes == 0; i++ {
		if o := ask(i, 1, time.Second, 1).Owner; two.Owner(o) == 0 && three.Owner(o) == 2 {
			comes = i
		}
	}
	n.SetRing(hour+10*second, two, joined)
	take(n, hour+11*second, ask(comes, 40, time.Hour, 0))
	if f := n.Facts(hour + 11*second); f.Moved != 0 {
		t.Fatalf("nothing was charged: %+v", f)
	}
	take(n, hour+11*second, ask(comes, 40, time.Hour, 1))
	if f := n.Facts(hour + 11*second); f.Moved != 40 {
		t.Fatalf("a key that came: %+v", f)
	}
	// While a member is missing it may stand on a ring of its own.
	n.SetRing(hour+20*second, two, Standing{NRef: 3, Joined: true})
	n.Tick(hour + 100*second)
	take(n, hour+100*second, short)
	if f := n.Facts(hour + 100*second); f.Moved != 70 {
		t.Fatalf("a member is missing: %+v", f)
	}
}

// A look at a key in a new window does not hide that its first charge is still to be judged.
func TestPeekBeforeMoved(t *testing.T) {
	n := New(Options{Self: "a"})
	n.SetRing(t0, ringOf("a"), Standing{NRef: 2, Joined: true})
	q := ask(1, 50, time.Second, 1)
	for now := t0; now < t0+5*second; now += second {
		n.Tick(now - 1) // the last window's entry is still there
		take(n, now, q.op(Peek))
		take(n, now, q.op(Refund))
		if f := n.Facts(now); f.Moved != 0 {
			t.Fatalf("nothing was charged: %+v", f)
		}
		take(n, now, q)
		if f := n.Facts(now); f.Moved != 50 {
			t.Fatalf("%+v", f)
		}
	}
}

func TestAloneOwesNothing(t *testing.T) {
	n := alone(Options{})
	take(n, t0+second, ask(1, 50, time.Hour, 1))
	if f := n.Facts(t0 + second); f.Bound() != 0 {
		t.Errorf("%+v", f)
	}
}

func TestManyRings(t *testing.T) {
	n := member(Options{Self: "a"}, t0, "a")
	var rings [2]*ring.Ring
	for i := range rings {
		rings[i] = ring.New([]ring.Member{{ID: "a", Inst: 1, Ver: uint64(i), Weight: 1}})
	}
	for i := range 70_000 { // more than epochs have numbers
		n.view = n.view.next(t0+int64(i)*second, rings[i%2], "a", Standing{NRef: 1, Joined: true})
		if n.view.epoch == 0 {
			t.Fatal("epoch 0")
		}
	}
	depth := 0
	for v := n.view; v != nil; v = v.prev {
		depth++
	}
	if depth != maxViews {
		t.Errorf("%d views remembered", depth)
	}
	if !n.view.touched(1, t0, 0) {
		t.Error("a window older than all views counts as untouched")
	}
}

func TestPeak(t *testing.T) {
	rnd := random(4)
	for range 300 {
		var p peak
		type item struct {
			end int64
			n   uint64
		}
		var all []item
		now := int64(1000)
		for range 60 {
			now += rnd.Int64N(10)
			x := item{now + 1 + rnd.Int64N(100), rnd.Uint64N(100)}
			p.push(now, x.end, x.n)
			all = append(all, x)
			for _, at := range []int64{now, now + 50, now + 101} {
				want := uint64(0)
				for _, x := range all {
					if x.end > at {
						want = max(want, x.n)
					}
				}
				if got := p.at(at); got < want {
					t.Fatalf("%d at %d, want at least %d", got, at, want)
				}
			}
		}
		if p.at(now+1000) != 0 {
			t.Fatal("never falls to 0")
		}
	}
}
