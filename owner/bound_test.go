package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/ring"
)

// TestMovedBound tests MovedBound and PartitionBound step by step.
func TestMovedBound(t *testing.T) {
	two := ringOf("a", "b")
	mine := ownedBy(t, two, "a", 0)
	n := New(Options{Self: "a"})
	move(n, t0-second/2, "a", "b")
	req, short := ask(mine, 50, time.Hour, 1), ask(mine, 70, time.Second, 1)
	short.Key[0]++
	// The member joins others in the middle of a window.
	take(n, t0+second, req)
	take(n, t0+second, short)
	if f := n.Stats(t0 + second); f.MovedBound != 70 || f.Bound() != 70 {
		t.Fatalf("joined: %+v", f)
	}
	if f := n.Stats(t0 + 2*second); f.MovedBound != 50 {
		t.Fatalf("the short window is over: %+v", f)
	}
	hour := t0 + 3600*second
	n.Tick(hour)
	take(n, hour, req)
	if f := n.Stats(hour); f.MovedBound != 0 {
		t.Fatalf("the next hour: %+v", f)
	}
	// Another member joins: the keys that stay were here before.
	three := ringOf("a", "b", "c")
	stays := ownedBy(t, three, "a", 0)
	move(n, hour+second, "a", "b", "c")
	take(n, hour+second, ask(stays, 60, time.Hour, 1))
	if f := n.Stats(hour + second); f.MovedBound != 0 {
		t.Fatalf("a key that stayed: %+v", f)
	}
	// It leaves again: the keys that come were charged there.
	comes := 0
	for i := 0; comes == 0; i++ {
		if o := ask(i, 1, time.Second, 1).RingPos; two.Owner(o) == 0 && three.Owner(o) == 2 {
			comes = i
		}
	}
	move(n, hour+10*second, "a", "b")
	take(n, hour+11*second, ask(comes, 40, time.Hour, 0))
	if f := n.Stats(hour + 11*second); f.MovedBound != 0 {
		t.Fatalf("nothing was charged: %+v", f)
	}
	take(n, hour+11*second, ask(comes, 40, time.Hour, 1))
	if f := n.Stats(hour + 11*second); f.MovedBound != 40 {
		t.Fatalf("a key that came: %+v", f)
	}
	// A missing member may have a ring of its own.
	m := standing("a", "a", "b")
	m.NRef = 3
	n.SetMembership(hour+20*second, m)
	n.Tick(hour + 100*second)
	take(n, hour+100*second, short)
	if f := n.Stats(hour + 100*second); f.PartitionBound != 24 || f.Bound() < 24 { // a third of 70
		t.Fatalf("a member is missing: %+v", f)
	}
}

// TestDryRunBeforeMoved requires that a DryRun in a new window does not hide that the first charge there still has to
// be recorded in MovedBound.
func TestDryRunBeforeMoved(t *testing.T) {
	n := New(Options{Self: "a"})
	v := standing("a", "a", "b", "c")
	v.NRef = 4
	n.SetMembership(t0, v)
	n.Tick(t0 + 4*second)
	req := ask(ownedBy(t, ringOf("a", "b", "c"), "a", 0), 50, time.Second, 1)
	for now := t0 + 5*second; now < t0+10*second; now += second {
		n.Tick(now - 1) // the last window's entry is still there
		take(n, now, withOp(req, DryRun))
		take(n, now, withOp(req, Refund))
		if f := n.Stats(now); f.PartitionBound != 0 {
			t.Fatalf("nothing was charged: %+v", f)
		}
		take(n, now, req)
		if f := n.Stats(now); f.PartitionBound != 13 {
			t.Fatalf("%+v", f)
		}
	}
}

func TestAloneOwesNothing(t *testing.T) {
	n := alone(Options{})
	take(n, t0+second, ask(1, 50, time.Hour, 1))
	if f := n.Stats(t0 + second); f.Bound() != 0 {
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
		var p expiringMax
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
