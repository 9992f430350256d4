package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/ring"
)

// Members of an old version come, go, pause, cut each other off and ask whom they like, each with a ring of its own age.
// Whatever is admitted on a key in a window is at most the limit and the sum of the bounds the members report.
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
	due  []adoption
	next int64 // time of its next Tick
}

// adoption is a ring that a member will adopt.
type adoption struct {
	at  int64
	ids []ring.ID
	n   int
}

func runCluster(t *testing.T, seed uint64) (exceeded int) {
	rnd := random(seed)
	ids := names(5)
	live := 3
	var ms []*simulated
	for _, id := range ids {
		m := &simulated{Node: New(Options{Self: id, MaxKeys: 400}), id: id}
		move(m.Node, t0-10*second, ids[:live]...)
		ms = append(ms, m)
	}
	admitted := twin{}
	now := t0
	for range 20_000 {
		now += rnd.Int64N(second / 100)
		if rnd.IntN(700) == 0 { // the ring changes, and everybody learns it in his own time
			live = 2 + rnd.IntN(4)
			for _, m := range ms {
				m.due = append(m.due, adoption{now + rnd.Int64N(second), ids[:live], live + rnd.IntN(2)})
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
		if a.Kind == Wait {
			m.Cancel(a.Ticket)
			a = m.Degrade(now, &q)
		}
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
		st := standing(m.id, m.due[0].ids...)
		st.NRef = m.due[0].n
		m.SetRing(now, ringOf(m.due[0].ids...), st)
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
			if as[0].Kind == Wait {
				o.Cancel(as[0].Ticket)
			}
		}
	}
	return from.Degrade(now, q)
}

// What each part of the bound means, in the small.
func TestMovedBound(t *testing.T) {
	two := ringOf("a", "b")
	mine := ownedBy(t, two, "a", 0)
	n := New(Options{Self: "a"})
	move(n, t0-second/2, "a", "b")
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
	move(n, hour+second, "a", "b", "c")
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
	move(n, hour+10*second, "a", "b")
	take(n, hour+11*second, ask(comes, 40, time.Hour, 0))
	if f := n.Facts(hour + 11*second); f.Moved != 0 {
		t.Fatalf("nothing was charged: %+v", f)
	}
	take(n, hour+11*second, ask(comes, 40, time.Hour, 1))
	if f := n.Facts(hour + 11*second); f.Moved != 40 {
		t.Fatalf("a key that came: %+v", f)
	}
	// While a member is missing it may stand on a ring of its own.
	st := standing("a", "a", "b")
	st.NRef = 3
	n.SetRing(hour+20*second, two, st)
	n.Tick(hour + 100*second)
	take(n, hour+100*second, short)
	if f := n.Facts(hour + 100*second); f.Parted != 24 || f.Bound() < 24 { // a third of 70
		t.Fatalf("a member is missing: %+v", f)
	}
}

// A look at a key in a new window does not hide that its first charge is still to be judged.
func TestPeekBeforeMoved(t *testing.T) {
	n := New(Options{Self: "a"})
	n.SetRing(t0, ringOf("a", "b", "c"), handoff.Standing{NRef: 4, Joined: true, Peers: standing("a", "a", "b", "c").Peers})
	n.Tick(t0 + 4*second)
	q := ask(ownedBy(t, ringOf("a", "b", "c"), "a", 0), 50, time.Second, 1)
	for now := t0 + 5*second; now < t0+10*second; now += second {
		n.Tick(now - 1) // the last window's entry is still there
		take(n, now, q.op(Peek))
		take(n, now, q.op(Refund))
		if f := n.Facts(now); f.Parted != 0 {
			t.Fatalf("nothing was charged: %+v", f)
		}
		take(n, now, q)
		if f := n.Facts(now); f.Parted != 13 {
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
	n := New(Options{Self: "a"})
	for i := range 3 * maxChanges {
		move(n, t0+int64(i)*10*second, []ring.ID{"a", "b", "c"}[:2+i%2]...)
	}
	if c := n.serial.view.changes; len(c) != maxChanges {
		t.Errorf("%d changes remembered", len(c))
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
