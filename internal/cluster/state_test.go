package cluster

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// late returns a testbed whose member joins n established members.
func late(n int) *testbed {
	b := newBed(0)
	b.handoff = true
	b.fill(n)
	for i := range b.others {
		b.others[i].Established = true
	}
	b.look(0)
	b.finish()
	return b
}

// finish makes all others complete the ring of b.
func (b *testbed) finish() {
	b.agree()
	for i := range b.others {
		b.others[i].CompleteRing = b.ring.Fingerprint()
	}
}

func TestJoinerWaitsForReplicas(t *testing.T) {
	b := late(2)
	o := b.look(9 * time.Second)
	if o.self.State != membership.Joining || o.self.AwaitsTurn || !o.view.Joined || o.view.Ring.Len() != 2 {
		t.Fatalf("cold: %v, waits %v, joined %v, ring of %d", o.self.State, o.self.AwaitsTurn, o.view.Joined,
			o.view.Ring.Len())
	}
	b.status.progress.Prefetched = true
	if o = b.look(0); o.self.State != membership.Joining || !o.self.AwaitsTurn || o.wake != b.timing.JoinDelay {
		t.Fatalf("warm: %v, waits %v, wake %v; others must learn of it first", o.self.State, o.self.AwaitsTurn, o.wake)
	}
	if o = b.look(o.wake); o.self.State != membership.Active || o.self.AwaitsTurn {
		t.Fatalf("its turn: %v, waits %v", o.self.State, o.self.AwaitsTurn)
	}
	if o = b.look(o.wake); o.view.Ring.Len() != 3 {
		t.Fatalf("ring of %d", o.view.Ring.Len())
	}
}

func TestJoinerWaitsForItsTurn(t *testing.T) {
	first, second := boot("first", 1), boot("second", 99)
	first.ID, first.AwaitsTurn, second.AwaitsTurn = "a-first", true, true // self has boot ID 1, too, and the name "me-1"
	cases := []struct {
		name  string
		upset func(b *testbed)
		waits bool
	}{
		{"no other change", func(*testbed) {}, false},
		{"one is not complete", func(b *testbed) { b.others[1].CompleteRing = 5 }, true},
		{"one uses another ring", func(b *testbed) { b.others[1].Ring = 5 }, true},
		{"one without support for handoff", func(b *testbed) { b.others[1].CompleteRing, b.others[1].ProtocolMax = 0, 1 }, false},
		{"another started earlier", func(b *testbed) { b.others = append(b.others, first) }, true},
		{"another started later", func(b *testbed) { b.others = append(b.others, second) }, false},
		{"another started earlier and is not ready", func(b *testbed) { first := first; first.AwaitsTurn = false; b.others = append(b.others, first) }, false},
		{"a change is about to be adopted", func(b *testbed) { m := boot("x", 50); m.State = membership.Active; b.others = append(b.others, m) }, true},
	}
	for _, c := range cases {
		b := late(2)
		b.status.progress.Prefetched = true
		b.look(0)
		b.look(b.timing.JoinDelay - time.Millisecond)
		c.upset(b)
		o := b.look(time.Millisecond)
		if (o.self.State == membership.Joining) != c.waits {
			t.Errorf("%s: %v", c.name, o.self.State)
		}
	}
}

func TestEveryWaitOfAJoinerIsLimited(t *testing.T) {
	stuck := func() *testbed {
		b := late(2)
		b.others[0].CompleteRing = 5
		return b
	}
	b := stuck()
	b.look(b.timing.PrefetchTimeout) // no replicas arrived
	if o := b.look(b.timing.JoinTurn - time.Millisecond); o.self.State != membership.Joining {
		t.Errorf("before the bound: %v", o.self.State)
	}
	if o := b.look(time.Millisecond); o.self.State != membership.Active {
		t.Errorf("after the bounds: %v", o.self.State)
	}
	// A queue that makes progress has more time, but not forever.
	b = stuck()
	b.status.progress.Prefetched = true
	b.look(0)
	for i := range 60 {
		m := boot(ring.ID(fmt.Sprint("q", i)), uint64(200+i))
		m.State = membership.Active
		b.others = append(b.others, m)
		o := b.look(time.Second)
		if b.look(time.Second / 2); o.self.State == membership.Active {
			if i < 30 {
				t.Errorf("went after %d changes", i)
			}
			return
		}
	}
	t.Error("waits forever")
}

func TestLeaverWaitsForTheLastChange(t *testing.T) {
	b := late(2)
	b.status.progress.Prefetched = true
	b.look(0)
	b.look(b.timing.JoinDelay)
	if o := b.look(b.timing.JoinDelay); o.view.Ring.Len() != 3 {
		t.Fatal("not on the ring")
	}
	b.status.draining, b.status.drainingSince = true, b.now
	if o := b.look(b.timing.LeaveTurn - time.Millisecond); o.self.State != membership.Active {
		t.Errorf("others are not complete: %v", o.self.State)
	}
	if o := b.look(time.Millisecond); o.self.State != membership.Leaving || o.self.HandedOff ||
		o.view.Ring.Len() != 2 || o.view.SelfMember().State != membership.Leaving {
		t.Errorf("after the bound: %v, ring of %d", o.self.State, o.view.Ring.Len())
	}
	b.status.progress.HandedOff = true
	if o := b.look(0); !o.self.HandedOff || o.self.State != membership.Leaving {
		t.Error("handed off, but not announced")
	}

	b = late(2)
	b.status.progress.Prefetched = true
	b.look(0)
	b.look(b.timing.JoinDelay)
	b.look(b.timing.JoinDelay)
	b.status.progress.CompleteRing = b.ring.Fingerprint()
	b.finish()
	b.look(0)
	b.status.draining, b.status.drainingSince = true, b.now
	if o := b.look(0); o.self.State != membership.Leaving {
		t.Errorf("no change in progress: %v", o.self.State)
	}
}

func TestLeftRemembersHandoffs(t *testing.T) {
	start := func() *testbed {
		b := newBed(0)
		b.fill(3)
		b.look(0)
		return b
	}
	b := start()
	b.others[0].State = membership.Leaving
	b.look(0)
	b.lose(0, true)
	if v := b.look(0).view; !slices.Equal(v.Left, []ring.ID{"other-0"}) || v.NRef != 3 {
		t.Errorf("left: %v, N_ref %d", v.Left, v.NRef)
	}
	if v := b.look(b.timing.LeftMemory - time.Second).view; len(v.Left) != 1 {
		t.Errorf("forgotten early")
	}
	if o := b.look(time.Second); len(o.view.Left) != 0 || !o.viewChanged {
		t.Errorf("remembered forever: %v", o.view.Left)
	}

	b = start()
	m := b.others[0]
	b.others[0].State = membership.Leaving
	b.look(0)
	b.lose(0, true)
	b.look(0)
	m.BootID, m.StartedAt, m.State = 90, 90, membership.Active // restarts
	b.others = append(b.others, m)
	b.look(time.Second)
	if v := b.look(time.Second).view; v.Ring.Index(m.ID) < 0 || len(v.Left) != 1 {
		t.Errorf("with a new boot of it: %v", v.Left)
	}
	b.lose(len(b.others)-1, false)
	if v := b.look(0).view; len(v.Left) != 0 {
		t.Errorf("the new boot crashed: %v", v.Left)
	}

	b = start()
	b.others[0].State = membership.Leaving // and ends without a complete handoff
	b.look(0)
	b.departed[b.others[0].BootID] = departure{id: b.others[0].ID, graceful: true}
	b.others = b.others[1:]
	if v := b.look(0).view; len(v.Left) != 0 {
		t.Errorf("left: %v", v.Left)
	}
}

func TestNewBootShowsACrash(t *testing.T) {
	b := newBed(0)
	b.fill(3)
	b.look(0)
	again := b.others[0]
	again.BootID, again.StartedAt, again.State = 90, 90, membership.Joining // at the same place
	b.others = append(b.others, again)
	o := b.look(0)
	if o.view.Ring.Index(again.ID) >= 0 || o.view.NRef != 4 || o.ringChange.crashed != 1 ||
		len(o.ringChange.left) != 0 {
		t.Errorf("ring of %d, N_ref %d, %+v", o.view.Ring.Len(), o.view.NRef, o.ringChange)
	}
	b.departed[b.others[0].BootID] = departure{id: again.ID} // memberlist notices at last
	b.others = b.others[1:]
	if o = b.look(time.Second); o.ringChanged || o.view.NRef != 4 {
		t.Errorf("again: ring changed %v, N_ref %d", o.ringChanged, o.view.NRef)
	}
}

func TestFlapping(t *testing.T) {
	b := newBed(0)
	b.fill(2)
	b.look(0)
	cluster := slices.Clone(b.others)
	flap := func(company int) outcome {
		b.agree()
		b.look(time.Second)
		for len(b.others) > 0 {
			b.lose(0, false)
		}
		b.look(time.Second)
		b.others = slices.Clone(cluster[:company])
		for i := range b.others {
			b.others[i].Ring = 4711
		}
		return b.look(time.Second)
	}
	var before time.Duration
	for i := range 8 {
		o := flap(2)
		if o.self.State != membership.Joining || o.view.Problem == "" || o.view.Ring.Index("me-1") >= 0 {
			t.Fatalf("flap %d: %v, problem %q", i, o.self.State, o.view.Problem)
		}
		least := min(b.timing.FlapHold<<i, maxHold) * 4 / 5
		if o.wake < least || o.wake > least*3/2 || o.wake < before {
			t.Errorf("flap %d: held for %v, before for %v", i, o.wake, before)
		}
		before = o.wake
		if o = b.look(o.wake); o.self.State != membership.Active {
			t.Fatalf("flap %d: %v after being held", i, o.self.State)
		}
	}
	b.look(flapMemory + maxHold)
	if o := flap(2); o.wake > b.timing.FlapHold*6/5 {
		t.Errorf("after flapMemory: held for %v", o.wake)
	}
	b.look(time.Minute)
	if o := flap(1); o.self.State != membership.Active {
		t.Errorf("two that lost each other: %v; both would wait", o.self.State)
	}
}

// world has several machines that receive each other's announcements three steps late, and complete a ring ten steps
// after adopting it.
type world struct {
	now               time.Time
	beds              []*testbed
	past              [][]membership.Member // announcements of all members, the newest last
	changes, overlaps int
}

func (w *world) add(id ring.ID) {
	b := newBed(0)
	b.handoff, b.start, b.now = true, w.now, w.now
	b.self = boot(id, uint64(len(w.beds)+1))
	b.self.StartedAt = w.now.UnixMilli()
	if len(w.beds) == 0 {
		b.self.ID = "m-0"
	}
	w.beds = append(w.beds, b)
}

func (w *world) run(steps int) {
	for range steps {
		w.now = w.now.Add(20 * time.Millisecond)
		var seen []membership.Member
		if n := len(w.past); n > 3 {
			seen = w.past[n-4]
		}
		var all []membership.Member
		for _, b := range w.beds {
			b.others = slices.DeleteFunc(slices.Clone(seen),
				func(m membership.Member) bool { return m.BootID == b.self.BootID })
			b.join = joinStatus{rounds: 1, listed: 1 + len(b.others)}
			for _, m := range b.others {
				b.join.others = append(b.join.others, m.Gossip)
			}
			b.status.progress.Prefetched = w.now.Sub(b.start) > 300*time.Millisecond
			if b.ring != nil && w.now.Sub(b.ringAdoptedAt) >= 200*time.Millisecond {
				b.status.progress.CompleteRing = b.ring.Fingerprint()
			}
			before, busy := b.self.State, w.busy()
			b.now = w.now
			o := b.look(0)
			if o.self.State != before {
				w.changes++
				if busy && o.self.State != membership.Joining {
					w.overlaps++
				}
			}
			all = append(all, b.self)
		}
		w.past = append(w.past, all)
	}
}

// busy reports whether any member on the ring has not completed it.
func (w *world) busy() bool {
	for _, b := range w.beds {
		if b.self.State == membership.Active && b.ring != nil && b.self.CompleteRing != b.ring.Fingerprint() {
			return true
		}
	}
	return false
}
