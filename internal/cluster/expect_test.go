package cluster

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// members returns n other members that are joining.
func members(n int) []membership.Member {
	var all []membership.Member
	for i := range n {
		all = append(all, boot(ring.ID(fmt.Sprintf("other-%d", i)), uint64(i+10)))
	}
	return all
}

// A member that has not met as many members as it expects divides limits by that number, however long it waits. Once
// it has met them, this does not change, however few remain.
func TestExpectHolds(t *testing.T) {
	for _, id := range []string{"me-1", "me-0"} {
		b := newBed(3)
		b.self.ID, b.join = ring.ID(id), joinStatus{rounds: 1, listed: 1}
		for _, after := range []time.Duration{0, 29 * time.Second, time.Second, time.Hour} {
			if v := b.look(after).view; v.NRef != 3 {
				t.Fatalf("%s alone after %v: N_ref %d, want 3", id, b.now.Sub(epoch), v.NRef)
			}
		}
		if v := b.view; !v.Joined || v.SelfMember().State != membership.Active {
			t.Errorf("%s alone for an hour: joined %v, %v: it answers from its share", id, v.Joined,
				v.SelfMember().State)
		}
		b.others = members(1)
		if v := b.look(time.Second).view; v.NRef != 3 {
			t.Fatalf("%s with one other: N_ref %d, want 3", id, v.NRef)
		}
		b.others = members(2)
		b.others[0].State, b.others[1].State = membership.Active, membership.Active
		b.look(time.Second)
		if v := b.look(time.Second).view; v.NRef != 3 || v.Ring.Len() != 3 || !v.SelfMember().MetExpected {
			t.Fatalf("%s with all: N_ref %d, ring of %d, met %v", id, v.NRef, v.Ring.Len(),
				v.SelfMember().MetExpected)
		}
		b.others[0].State = membership.Leaving
		b.look(time.Second)
		b.lose(0, true)
		if v := b.look(time.Second).view; v.NRef != 2 {
			t.Errorf("%s after one left: N_ref %d, want 2", id, v.NRef)
		}
		b.lose(0, false)
		b.look(time.Second)
		if v := b.look(time.Minute).view; v.NRef != 1 {
			t.Errorf("%s a minute after the other died: N_ref %d, want 1", id, v.NRef)
		}
	}
}

// ExpectTimeout ends the wait for this member only: it does not announce that it has met others.
func TestExpectTimeout(t *testing.T) {
	b := newBed(3)
	b.expectTimeout, b.join = time.Minute, joinStatus{rounds: 1, listed: 1}
	b.look(0)
	if v := b.look(time.Minute - time.Second).view; v.NRef != 3 {
		t.Errorf("before the timeout: N_ref %d", v.NRef)
	}
	if v := b.look(time.Second).view; v.NRef != 1 || v.SelfMember().MetExpected {
		t.Errorf("after the timeout: N_ref %d, met %v", v.NRef, v.SelfMember().MetExpected)
	}
}

// A member that joins a running cluster relies on a member that has met as many as it expected: the cluster may have
// been scaled down since, or may be scaled up now. It does not rely on a member that leaves, or that has never met
// them.
func TestExpectIsMetByARunningCluster(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(x *membership.Member)
		nref   int
	}{
		{"met", func(*membership.Member) {}, 2},
		{"met more", func(x *membership.Member) { x.Expect = 9 }, 2},
		{"met fewer", func(x *membership.Member) { x.Expect = 2 }, 2},
		{"not met", func(x *membership.Member) { x.MetExpected = false }, 3},
		{"leaves", func(x *membership.Member) { x.State = membership.Leaving }, 3},
	} {
		b := newBed(3)
		b.fill(1)
		x := &b.others[0]
		x.Established, x.MetExpected, x.Expect, x.NRef = true, true, 3, 1
		c.change(x)
		b.look(0)
		b.agree()
		b.look(time.Minute)
		if v := b.look(time.Second).view; v.NRef != c.nref {
			t.Errorf("%s: N_ref %d, want %d", c.name, v.NRef, c.nref)
		}
	}
}

// A member that expects itself only still looks for others before it takes its place.
func TestExpectOneLooksFirst(t *testing.T) {
	b := newBed(1)
	b.join = joinStatus{}
	if v := b.look(time.Second).view; v.Joined || v.SelfMember().State != membership.Joining {
		t.Errorf("before the first attempt: joined %v, %v", v.Joined, v.SelfMember().State)
	}
	b.join = joinStatus{rounds: 1, listed: 2, others: []string{"10.0.0.9:7946"}}
	if v := b.look(time.Second).view; !v.Joined || v.NRef != 1 {
		t.Errorf("after an attempt in vain: joined %v, N_ref %d", v.Joined, v.NRef)
	}
}

// A newcomer that expects one member is never active or joined on a ring of its own while another member is running.
func TestExpectOneWithARunningMember(t *testing.T) {
	virtual(t, func(t *testing.T) {
		o := options("a-0")
		o.Expect = 1
		a := up(t, o)
		eventually(t, "one alone", func() bool { return whole(a) })
		var alone atomic.Bool
		o = options("b", a.Gossip())
		o.Expect = 1
		o.OnView = func(v *membership.View) {
			if v.Ring.Len() == 1 && v.Ring.Index("b") >= 0 {
				alone.Store(true)
			}
		}
		b := up(t, o)
		eventually(t, "two on one ring", func() bool { return whole(a, b) })
		if alone.Load() {
			t.Error("b was on a ring of its own")
		}
	})
}
