package cluster

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

func TestColdStart(t *testing.T) {
	joining, active := boot("other", 2), boot("other", 2)
	active.State = membership.Active
	observer := boot("xds", 3)
	observer.Role, observer.State = membership.RoleObserver, membership.Active
	one := joinStatus{rounds: 1, listed: 2, others: []string{"10.0.0.2:7946"}}
	two := joinStatus{rounds: 1, listed: 3, others: []string{"10.0.0.2:7946", "10.0.0.9:7946"}}
	cases := []struct {
		name    string
		id      ring.ID
		expect  int
		after   time.Duration
		contact joinStatus
		others  []membership.Member
		joined  bool
		nref    int
	}{
		{"nothing tried yet", "me-1", 0, 5 * time.Second, joinStatus{}, nil, false, 1},
		{"no address, soon", "me-1", 0, 2 * time.Second, joinStatus{rounds: 1, listed: 1}, nil, false, 1},
		{"no address, 3 s", "me-1", 0, 3 * time.Second, joinStatus{rounds: 3, listed: 1}, nil, true, 1},
		{"no address, but expected", "me-1", 3, 29 * time.Second, joinStatus{rounds: 9, listed: 1}, nil, false, 3},
		{"expected in vain", "me-1", 3, 30 * time.Second, joinStatus{rounds: 9, listed: 1}, nil, true, 3},
		{"silent address", "me-1", 0, 29 * time.Second, one, nil, false, 2},
		{"more resolved than expected", "me-1", 2, 0, two, nil, false, 3},
		{"first of a set, none tried", "me-0", 3, 0, joinStatus{}, nil, false, 3},
		{"first of a set, none answers", "me-0", 3, 0, two, nil, true, 3},
		{"first of a set, no DNS", "me-0", 3, 0, joinStatus{rounds: 1, listed: 1, blind: true}, nil, false, 3},
		{"first of a set, one answers", "me-0", 3, 0, two, []membership.Member{joining}, false, 3},
		{"all resolved joined", "me-1", 0, 0, one, []membership.Member{joining}, true, 2},
		{"some resolved joined, none runs", "me-1", 0, 0, two, []membership.Member{joining}, false, 3},
		{"some resolved joined, one runs", "me-1", 0, 0, two, []membership.Member{active}, true, 1},
		{"found by a running cluster", "me-1", 0, 0, joinStatus{rounds: 1, listed: 2, others: []string{"10.9.9.9:1"}}, []membership.Member{active}, true, 1},
		{"expected seen", "me-1", 2, 0, joinStatus{}, []membership.Member{joining}, true, 2},
		{"observers are not expected", "me-1", 2, 0, joinStatus{}, []membership.Member{observer}, false, 2},
		{"answer of an address that is only self", "me-1", 0, 0,
			joinStatus{rounds: 1, listed: 2, others: []string{"10.9.9.9:1"}, reached: []string{"10.9.9.9:1"}}, nil, false, 2},
		{"answer through a shared address", "me-1", 0, 0,
			joinStatus{rounds: 1, listed: 2, others: []string{"10.9.9.9:1"}, reached: []string{"10.9.9.9:1"}}, []membership.Member{joining}, true, 2},
	}
	for _, c := range cases {
		b := newBed(c.expect)
		b.self.ID, b.join, b.others = c.id, c.contact, c.others
		v := b.look(c.after).view
		// A member on the ring is not established before all the others have their places.
		alone := slices.ContainsFunc(c.others, func(m membership.Member) bool {
			return m.Role == membership.RoleMember && m.State == membership.Joining
		})
		if want := c.joined && !alone; v.Joined != want {
			t.Errorf("%s: joined %v, want %v", c.name, v.Joined, want)
		}
		if (v.Ring.Index(c.id) >= 0) != c.joined {
			t.Errorf("%s: on the ring %v", c.name, v.Ring.Index(c.id) >= 0)
		}
		if want := max(c.nref, v.Ring.Len()); v.NRef != want {
			t.Errorf("%s: N_ref %d, want %d", c.name, v.NRef, want)
		}
	}
}

// Three members that start together see each other before all are on the ring. Until then, each divides by the number
// expected. A member that never takes its place delays the others no longer than a cold start.
func TestJoinedWhenAllHaveTheirPlaces(t *testing.T) {
	for _, stuck := range []bool{false, true} {
		b := newBed(3)
		b.others = []membership.Member{boot("other-0", 10), boot("other-1", 11)}
		if v := b.look(0).view; v.Joined || v.Ring.Len() != 1 || v.NRef != 3 {
			t.Fatalf("first: joined %v, ring of %d, N_ref %d", v.Joined, v.Ring.Len(), v.NRef)
		}
		b.others[0].State = membership.Active
		b.look(0)
		if v := b.look(time.Second).view; v.Joined || v.Ring.Len() != 2 || v.NRef != 3 {
			t.Fatalf("second: joined %v, ring of %d, N_ref %d", v.Joined, v.Ring.Len(), v.NRef)
		}
		if stuck {
			if v := b.look(30 * time.Second).view; !v.Joined || v.NRef != 2 {
				t.Fatalf("after the cold start: joined %v, N_ref %d", v.Joined, v.NRef)
			}
			continue
		}
		b.others[1].State = membership.Active
		b.look(0)
		if v := b.look(time.Second).view; !v.Joined || v.Ring.Len() != 3 || v.NRef != 3 {
			t.Fatalf("third: joined %v, ring of %d, N_ref %d", v.Joined, v.Ring.Len(), v.NRef)
		}
		b.others = append(b.others, boot("late", 12))
		if !b.look(time.Second).view.Joined {
			t.Fatal("a late joiner makes it not established again")
		}
	}
}

func TestJoinedRemains(t *testing.T) {
	b := newBed(0)
	b.fill(2)
	if !b.look(0).view.Joined {
		t.Fatal("not joined")
	}
	b.others, b.join = nil, joinStatus{rounds: 2, listed: 3, others: []string{"10.0.0.10:7946"}}
	if !b.look(time.Second).view.Joined {
		t.Error("not joined any more after a partition")
	}
}

func TestRingFollowsAtOnceButWaitsForMoreJoins(t *testing.T) {
	b := newBed(0)
	b.fill(2)
	if o := b.look(0); o.view.Ring.Len() != 3 || !o.ringChanged {
		t.Fatalf("first ring has %d members", o.view.Ring.Len())
	}
	late := boot("late", 7)
	late.State = membership.Active
	b.others = append(b.others, late)
	o := b.look(0)
	if o.view.Ring.Len() != 3 || o.wake != b.timing.JoinDelay {
		t.Errorf("a join: %d members, wake %v; want 3 and the join delay", o.view.Ring.Len(), o.wake)
	}
	if _, ok := o.view.Find("late"); !ok {
		t.Error("a member that is not on the ring yet should be in the view")
	}
	if o = b.look(b.timing.JoinDelay); o.view.Ring.Len() != 4 || o.wake != 0 {
		t.Errorf("after the join delay: %d members, wake %v", o.view.Ring.Len(), o.wake)
	}
	later := boot("later", 8)
	later.State = membership.Active
	b.others = append(b.others, later)
	b.lose(0, false)
	if o = b.look(0); o.view.Ring.Len() != 4 || len(o.ringChange.died) != 1 || o.view.Ring.Index("later") < 0 {
		t.Errorf("a death with a join: %d members, %d died; want both at once", o.view.Ring.Len(),
			len(o.ringChange.died))
	}
}

func TestRestartReplacesAtOnce(t *testing.T) {
	b := newBed(0)
	b.fill(2)
	b.look(0)
	again := b.others[0]
	again.BootID, again.StartedAt = 99, 99 // same address, newer boot; the death of the old one is not known
	b.others = append(b.others, again)
	o := b.look(0)
	if i := o.view.Ring.Index(again.ID); i < 0 || o.view.Ring.At(i).BootID != 99 {
		t.Errorf("the old boot is still on the ring")
	}
	if len(o.view.Members) != 3 || o.view.NRef != 3 {
		t.Errorf("%d members, N_ref %d; want 3 and 3", len(o.view.Members), o.view.NRef)
	}
}

func TestNRef(t *testing.T) {
	start := func(n int) *testbed {
		b := newBed(0)
		b.fill(n - 1)
		b.look(0)
		b.agree()
		b.look(0)
		return b
	}
	check := func(t *testing.T, b *testbed, what string, want int) {
		t.Helper()
		if got := b.look(0).view.NRef; got != want {
			t.Errorf("%s: N_ref %d, want %d", what, got, want)
		}
	}
	t.Run("a death that all others agree about", func(t *testing.T) {
		b := start(5)
		check(t, b, "whole", 5)
		b.lose(0, false)
		b.look(0)
		b.agree()
		check(t, b, "two of five still divide by five", 5)
		b.look(59 * time.Second)
		check(t, b, "before the decay", 5)
		b.look(time.Second)
		check(t, b, "after the decay", 4)
	})
	t.Run("minority", func(t *testing.T) {
		b := start(5)
		for range 3 {
			b.lose(0, false)
		}
		b.look(0)
		b.agree()
		check(t, b, "2 of 5", 5)
		b.look(59 * time.Second)
		check(t, b, "before the decay", 5)
		b.look(time.Second)
		check(t, b, "after the decay", 2)
	})
	t.Run("exact half is no majority", func(t *testing.T) {
		b := start(2)
		b.lose(0, false)
		check(t, b, "1 of 2", 2)
		b.look(time.Minute)
		check(t, b, "after the decay", 1)
	})
	t.Run("leave", func(t *testing.T) {
		b := start(5)
		b.others[0].State = membership.Leaving
		check(t, b, "leaving", 4)
		b.lose(0, true)
		check(t, b, "left", 4)
		b.others[0].State = membership.Leaving
		b.lose(0, true)
		check(t, b, "left between two steps", 3)
	})
	t.Run("leave during a partition", func(t *testing.T) {
		b := start(5)
		for range 3 {
			b.lose(0, false)
		}
		b.look(0)
		b.others[0].State = membership.Leaving
		check(t, b, "one of our two leaves", 4)
	})
	t.Run("received, but not echoed", func(t *testing.T) {
		b := start(3)
		b.others[0].NRef = 9
		check(t, b, "heard", 9)
		if b.nref.peak != 3 {
			t.Errorf("announces %d, has seen 3", b.nref.peak)
		}
		b.others[0].NRef = 3
		check(t, b, "unheard", 3)
		b.others[0].NRef, b.others[0].State = 9, membership.Leaving
		check(t, b, "of a leaver", 2)
		watcher := boot("xds", 50)
		watcher.Role, watcher.NRef = membership.RoleObserver, 12
		b.others = append(b.others, watcher)
		check(t, b, "of an observer", 2)
	})
}

func TestCapacity(t *testing.T) {
	b := newBed(0)
	b.capacity = 4
	b.fill(3)
	b.self.StartedAt = 100
	o := b.look(0)
	if o.self.State != membership.Joining || o.view.Ring.Len() != 3 ||
		!strings.Contains(o.view.Problem, "ring is full") {
		t.Errorf("above capacity: %v, ring of %d, problem %q", o.self.State, o.view.Ring.Len(), o.view.Problem)
	}
	b.lose(0, true)
	if o = b.look(time.Second); o.self.State != membership.Active || o.view.Problem != "" {
		t.Errorf("with room again: %v, problem %q", o.self.State, o.view.Problem)
	}
	// Two joins at the same time: all members agree which of them has a place, and the youngest steps back.
	b.look(time.Second)
	early := boot("early", 3)
	early.State = membership.Active
	b.others = append(b.others, early)
	o = b.look(time.Second)
	if o.self.State != membership.Joining || o.view.Ring.Index("early") < 0 || o.view.Ring.Index("me-1") >= 0 {
		t.Errorf("after a race: %v, early at %d, self at %d", o.self.State, o.view.Ring.Index("early"),
			o.view.Ring.Index("me-1"))
	}
}

func TestResolveNames(t *testing.T) {
	mk := func(inst uint64, s membership.MemberState, at string, pod uint64) membership.Member {
		m := boot("x", inst)
		m.State, m.Gossip, m.Pod = s, at, pod
		return m
	}
	cases := []struct {
		name   string
		a, b   membership.Member
		winner uint64
	}{
		{"restart at the same address", mk(1, membership.Active, "a:1", 0), mk(2, membership.Joining, "a:1", 0), 2},
		{"restart in the same pod", mk(1, membership.Active, "a:1", 7), mk(2, membership.Joining, "b:1", 7), 2},
		{"newcomer elsewhere", mk(1, membership.Active, "a:1", 7), mk(2, membership.Joining, "b:1", 8), 1},
		{"newcomer whose clock is behind", mk(9, membership.Active, "a:1", 7), mk(2, membership.Joining, "b:1", 8), 9},
		{"two that started apart", mk(1, membership.Active, "a:1", 7), mk(2, membership.Active, "b:1", 8), 1},
		{"two that start together", mk(1, membership.Joining, "a:1", 0), mk(2, membership.Joining, "b:1", 0), 1},
		{"unknown pods are not the same", mk(1, membership.Active, "a:1", 0), mk(2, membership.Active, "b:1", 0), 1},
	}
	for _, c := range cases {
		for _, order := range [][2]membership.Member{{c.a, c.b}, {c.b, c.a}} {
			self := boot("me-1", 55)
			got, rival := resolveNames(&self, order[:])
			if len(got) != 2 || got[1].BootID != c.winner || rival != nil {
				t.Errorf("%s: %+v winner", c.name, got)
			}
			_, rival = resolveNames(&order[0], order[1:])
			if isLost := order[0].BootID != c.winner; isLost != (rival != nil) {
				t.Errorf("%s: boot %d sees rival %+v", c.name, order[0].BootID, rival)
			}
		}
	}
}

func TestNameConflictStaysOffTheRing(t *testing.T) {
	b := newBed(0)
	b.fill(2)
	b.others[0].ID = "me-1"
	o := b.look(0)
	if o.self.State != membership.Joining || o.nameConflict == nil ||
		!strings.Contains(o.view.Problem, "10.0.0.10:7946") || !strings.Contains(o.view.Problem, "10.0.0.1:7946") {
		t.Errorf("%v, rival %v, problem %q", o.self.State, o.nameConflict, o.view.Problem)
	}
	if i := o.view.Ring.Index("me-1"); i < 0 || o.view.Ring.At(i).BootID != 10 {
		t.Error("the older boot should be on the ring")
	}
	b.lose(0, false)
	if o = b.look(time.Second); o.nameConflict != nil || o.self.State != membership.Active {
		t.Errorf("after it died: %v, conflict %v", o.self.State, o.nameConflict)
	}
}

func TestObserver(t *testing.T) {
	b := newBed(0)
	b.fill(2)
	b.self.Role = membership.RoleObserver
	v := b.look(0).view
	if v.Ring.Len() != 2 || !v.Joined || v.NRef != 2 || v.SelfMember().Role != membership.RoleObserver {
		t.Errorf("as self: ring of %d, joined %v, N_ref %d", v.Ring.Len(), v.Joined, v.NRef)
	}
	c := newBed(0)
	c.fill(2)
	c.others[1].Role = membership.RoleObserver
	v = c.look(0).view
	if v.Ring.Len() != 2 || v.NRef != 2 {
		t.Errorf("as another: ring of %d, N_ref %d", v.Ring.Len(), v.NRef)
	}
	c.others[1].ID = "me-1" // an observer's name does not conflict
	if o := c.look(time.Second); o.nameConflict != nil || o.view.SelfMember().Role != membership.RoleMember {
		t.Errorf("conflict %+v", o.nameConflict)
	}
}

func TestViewIsTheSameUntilSomethingChanges(t *testing.T) {
	b := newBed(0)
	b.fill(2)
	b.look(0)
	b.agree()
	first := b.look(time.Second)
	second := b.look(time.Second)
	if second.viewChanged || second.view != first.view {
		t.Error("a new view of the same cluster")
	}
	b.others[0].InForce = 4
	third := b.look(time.Second)
	if !third.viewChanged || third.view.Ring != first.view.Ring {
		t.Errorf("after new rules: fresh %v", third.viewChanged)
	}
}
