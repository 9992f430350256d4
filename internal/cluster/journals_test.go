package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// journalsOf returns the announcement of a member that has loaded some of the size journals of the last ring.
func journalsOf(size, loaded int) membership.Journals {
	return membership.Journals{Ring: 0xabc, Size: size, At: 1000, Loaded: loaded}
}

// newDataBed returns a testbed whose member has a data directory and has loaded j. It has met n joining members, which
// are all that it expects, and which have no journals.
func newDataBed(n int, j membership.Journals) *testbed {
	b := newBed(n + 1)
	b.data, b.self.Journals, b.others = true, j, members(n)
	b.join = joinStatus{rounds: 1, listed: n + 1}
	return b
}

// placed reports whether this member has a place on the ring.
func placed(v *membership.View) bool { return v.Ring.Index(v.Self) >= 0 }

// A cold start waits until the live members have loaded all journals of the newest ring that one of them announces.
func TestColdStartWaitsForJournals(t *testing.T) {
	stale := membership.Journals{Ring: 0xdef, Size: 3, At: 900, Loaded: 1}
	sameTime := membership.Journals{Ring: 0xabd, Size: 2, At: 1000, Loaded: 1}
	for _, c := range []struct {
		name    string
		self    membership.Journals
		change  func(b *testbed)
		joined  bool
		missing int
	}{
		{"no journals at all", membership.Journals{}, func(*testbed) {}, true, 0},
		{"complete", journalsOf(3, 1), func(b *testbed) { b.others[0].Journals = journalsOf(3, 2) }, true, 0},
		{"incomplete", journalsOf(3, 1), func(b *testbed) { b.others[0].Journals = journalsOf(3, 1) }, false, 1},
		{"complete without this member", membership.Journals{},
			func(b *testbed) { b.others[0].Journals = journalsOf(1, 1) }, true, 0},
		{"incomplete without this member", membership.Journals{},
			func(b *testbed) { b.others[0].Journals = journalsOf(3, 2) }, false, 1},
		{"another has an older ring", journalsOf(1, 1), func(b *testbed) { b.others[0].Journals = stale }, true, 0},
		{"this one has an older ring", stale, func(b *testbed) { b.others[0].Journals = journalsOf(3, 2) }, false, 1},
		{"an older ring is not counted", journalsOf(2, 1), func(b *testbed) { b.others[0].Journals = stale }, false, 1},
		{"two rings at one time", journalsOf(3, 3), func(b *testbed) { b.others[0].Journals = sameTime }, false, 1},
		{"a time without a ring", journalsOf(2, 1), func(b *testbed) { b.others[0].Journals.At = 2000 }, false, 1},
		{"another is loading", journalsOf(1, 1), func(b *testbed) { b.others[0].Loading = true }, false, 0},
		{"this one is loading", membership.Journals{}, func(b *testbed) { b.self.Loading = true }, false, 0},
		{"a leaving member is loading", journalsOf(1, 1),
			func(b *testbed) { b.others[0].Loading, b.others[0].State = true, membership.Leaving }, true, 0},
		{"a leaving member has loaded", journalsOf(2, 1),
			func(b *testbed) { b.others[0].Journals, b.others[0].State = journalsOf(2, 1), membership.Leaving }, false, 1},
		{"observers have no journals", journalsOf(1, 1), func(b *testbed) {
			x := boot("xds", 50)
			x.Role, x.Loading, x.Journals = membership.RoleObserver, true, sameTime
			b.others = append(b.others, x)
		}, true, 0},
		{"without a data directory", membership.Journals{},
			func(b *testbed) { b.data = false; b.others[0].Journals = journalsOf(3, 2) }, false, 1},
		{"a running cluster", journalsOf(3, 1),
			func(b *testbed) { b.others[0].State, b.others[0].Established = membership.Active, true }, true, 0},
		{"a running cluster, while loading", membership.Journals{}, func(b *testbed) {
			b.others[0].State, b.others[0].Established, b.self.Loading = membership.Active, true, true
		}, false, 0},
		{"a cluster that has given up", journalsOf(3, 1),
			func(b *testbed) { b.others[0].State = membership.Active }, true, 2},
	} {
		b := newDataBed(2, c.self)
		c.change(b)
		if v := b.look(time.Second).view; b.joined != c.joined || v.Missing != c.missing {
			t.Errorf("%s: joined %v, missing %d; want %v, %d", c.name, b.joined, v.Missing, c.joined, c.missing)
		}
	}
}

// An observer has no counters: it does not wait for journals, whatever members announce.
func TestObserverDoesNotWaitForJournals(t *testing.T) {
	b := newDataBed(1, membership.Journals{})
	b.data, b.self.Role, b.others[0].Journals = false, membership.RoleObserver, journalsOf(3, 1)
	b.join.others, b.join.reached = []string{b.others[0].Gossip}, []string{b.others[0].Gossip}
	if b.look(0); !b.joined {
		t.Error("waits")
	}
}

// The wait for journals ends after Timing.ColdStart, and then the wait for places after Timing.Places.
func TestWaitForJournalsIsLimited(t *testing.T) {
	for _, data := range []bool{true, false} {
		b := newDataBed(1, membership.Journals{})
		b.data, b.others[0].Journals = data, journalsOf(3, 1)
		b.look(0)
		if v := b.look(b.timing.ColdStart - time.Millisecond).view; placed(v) || v.Missing != 2 {
			t.Errorf("data %v, before the limit: placed %v, missing %d", data, placed(v), v.Missing)
		}
		if v := b.look(time.Millisecond).view; !placed(v) || v.Joined == data || v.Missing != 2 {
			t.Errorf("data %v, after the limit: placed %v, joined %v, missing %d", data, placed(v), v.Joined, v.Missing)
		}
		if v := b.look(b.timing.Places - time.Millisecond).view; v.Joined == data {
			t.Errorf("data %v, one has no place: joined %v", data, v.Joined)
		}
		if v := b.look(time.Millisecond).view; !v.Joined {
			t.Errorf("data %v, after the second limit: not joined", data)
		}
	}
	b := newDataBed(1, journalsOf(2, 1))
	b.look(0)
	b.look(b.timing.ColdStart)
	b.others[0].State = membership.Active
	b.look(time.Second)
	if v := b.look(b.timing.JoinDelay).view; !v.Joined || v.Ring.Len() != 2 {
		t.Errorf("all have places: joined %v, ring of %d", v.Joined, v.Ring.Len())
	}
}

// Journals that are complete just before the limit, or after it because this member has loaded for long, give full
// rights when all have places.
func TestPlacesAfterALateComplete(t *testing.T) {
	for _, after := range []time.Duration{29900 * time.Millisecond, 45 * time.Second} {
		b := newDataBed(1, membership.Journals{})
		b.self.Loading = true
		b.look(0)
		b.look(after)
		b.self.Loading, b.self.Journals, b.others[0].Journals = false, journalsOf(2, 1), journalsOf(2, 1)
		b.look(0)
		if v := b.look(time.Second).view; !placed(v) || v.Joined {
			t.Errorf("after %v: placed %v, joined %v", after, placed(v), v.Joined)
		}
		if v := b.look(b.timing.Places).view; !v.Joined {
			t.Errorf("after %v: not joined", after)
		}
	}
}

// A member that joins because another is active, and does not know of all journals, has full rights on the ring of a
// member that has, or when it has waited for places.
func TestFollowerTrustsAnEstablishedRing(t *testing.T) {
	for _, missing := range []int{0, 1} {
		b := newDataBed(2, membership.Journals{})
		if missing > 0 {
			b.self.Journals = journalsOf(3, 2)
		}
		b.others = b.others[:1] // it has not met the other one, which has a journal
		b.others[0].State = membership.Active
		if v := b.look(0).view; v.Joined || v.Ring.Len() != 2 || v.Missing != missing {
			t.Errorf("joined %v on a ring of %d, %d missing", v.Joined, v.Ring.Len(), v.Missing)
		}
		b.agree()
		if v := b.look(time.Second).view; v.Joined {
			t.Error("joined on the ring of a member that is not established")
		}
		b.others[0].Established, b.others[0].Ring = true, 4711
		if v := b.look(time.Second).view; v.Joined {
			t.Error("joined on another ring than that of the established member")
		}
		b.agree()
		if v := b.look(time.Second).view; !v.Joined {
			t.Error("not joined on the ring of the established member")
		}
	}
	b := newDataBed(2, journalsOf(3, 2))
	b.others = b.others[:1]
	b.others[0].State = membership.Active
	b.look(0)
	if v := b.look(b.timing.Places - time.Millisecond).view; v.Joined {
		t.Error("joined too early")
	}
	if v := b.look(time.Millisecond).view; !v.Joined {
		t.Error("not joined after the limit")
	}
	b = newDataBed(2, journalsOf(2, 1))
	b.others[0].State, b.others[0].Journals, b.others = membership.Active, journalsOf(2, 1), b.others[:1]
	if v := b.look(0).view; !v.Joined {
		t.Error("with all journals: not joined on the complete ring")
	}
	b = newDataBed(2, membership.Journals{})
	b.data, b.others[0].State, b.others = false, membership.Active, b.others[:1]
	if v := b.look(0).view; !v.Joined {
		t.Error("without a data directory: not joined on the complete ring")
	}
}

// The time that a member takes to load its own journals is not a part of its wait for those of the others.
func TestOwnLoadingIsNoPartOfTheWait(t *testing.T) {
	b := newDataBed(1, membership.Journals{})
	b.self.Loading = true
	b.look(0)
	if v := b.look(time.Hour).view; placed(v) || v.Joined {
		t.Fatal("joined while it was loading")
	}
	b.self.Loading, b.self.Journals = false, journalsOf(2, 1)
	b.look(0)
	if v := b.look(b.timing.ColdStart - time.Millisecond).view; placed(v) {
		t.Error("gave up early")
	}
	b.self.Journals.Loaded = 1 // a later call of SetLoaded does not begin another wait
	if v := b.look(time.Millisecond).view; !placed(v) {
		t.Error("waits forever")
	}
}

// The first of a StatefulSet with a data directory starts a cluster at once only if it expects no others and has all
// journals.
func TestFirstOfASetWithJournals(t *testing.T) {
	for _, c := range []struct {
		data     bool
		expect   int
		journals membership.Journals
		placed   bool
	}{
		{true, 3, membership.Journals{}, false},
		{true, 3, journalsOf(1, 1), false},
		{true, 1, membership.Journals{}, true},
		{true, 0, membership.Journals{}, true},
		{true, 0, journalsOf(1, 1), true},
		{true, 0, journalsOf(3, 1), false},
		{false, 3, membership.Journals{}, true},
	} {
		b := newBed(c.expect)
		b.data, b.self.ID, b.self.Journals = c.data, "me-0", c.journals
		b.join = joinStatus{rounds: 1, listed: 3, others: []string{"10.0.0.2:7946", "10.0.0.9:7946"}}
		b.look(0)
		if v := b.look(29 * time.Second).view; placed(v) != c.placed {
			t.Errorf("%+v: placed %v", c, placed(v))
		}
		if v := b.look(time.Second).view; !placed(v) {
			t.Errorf("%+v: not placed after the limit", c)
		}
	}
}

// View.Missing is fixed when a member joins. Later announcements only lower it.
func TestMissingOnlyFalls(t *testing.T) {
	b := newDataBed(2, journalsOf(5, 1))
	b.others[0].Journals = journalsOf(5, 1)
	check := func(what string, want int) {
		t.Helper()
		o := b.look(time.Second)
		if o.view.Missing != want || o.view != b.view {
			t.Errorf("%s: %d missing, want %d", what, o.view.Missing, want)
		}
	}
	check("waiting", 3)
	b.others[1].Journals = journalsOf(5, 1)
	check("one has loaded", 2)
	b.others[1].Journals = membership.Journals{}
	check("it has restarted before this one has joined", 3)
	b.look(b.timing.ColdStart)
	check("joined", 3)
	b.others[1].Journals = journalsOf(5, 2)
	check("one has loaded later", 1)
	b.others[0].Journals = membership.Journals{Ring: 0xfff, Size: 3, At: 5000, Loaded: 1}
	check("one has restarted with a newer ring", 1)
	b.lose(1, false)
	check("one has died", 1)
	late := boot("late", 77)
	late.Journals = journalsOf(5, 9)
	b.others = append(b.others, late)
	check("more than all are loaded", 0)
	b.others = nil
	check("alone", 0)
}

// The log has one line when a member begins to wait for journals, and one when it joins without them.
func TestJournalStages(t *testing.T) {
	b := newDataBed(1, journalsOf(2, 1))
	if b.journals.stage != journalsNotAwaited {
		t.Error("waits before the first step")
	}
	if b.look(0); b.journals.stage != journalsAwaited {
		t.Errorf("waiting: stage %d", b.journals.stage)
	}
	if b.look(b.timing.ColdStart); b.journals.stage != journalsGivenUp {
		t.Errorf("joined: stage %d", b.journals.stage)
	}
	b = newDataBed(1, journalsOf(2, 1))
	b.others[0].Journals = journalsOf(2, 1)
	if b.look(0); b.journals.stage != journalsNotAwaited || !b.joined {
		t.Errorf("complete: stage %d", b.journals.stage)
	}
	b = newDataBed(1, membership.Journals{})
	b.others[0].Loading = true
	if b.look(0); b.journals.stage != journalsNotAwaited {
		t.Errorf("no ring is known: stage %d", b.journals.stage)
	}
	if b.look(b.timing.ColdStart); b.journals.stage != journalsGivenUp {
		t.Errorf("another is loading: stage %d", b.journals.stage)
	}
}

// Members that receive each other's announcements late all wait for the last journal and have full
// rights only on the complete ring.
func TestFleetWaitsForTheLastJournal(t *testing.T) {
	const n, last = 4, 10 * time.Second
	w := &world{now: epoch}
	for i := range n {
		w.add(ring.ID(fmt.Sprint("d-", i+1)))
		b := w.beds[i]
		b.data, b.self.Loading = true, true
	}
	for step := range int(last/(20*time.Millisecond)) + 50 {
		for i, b := range w.beds {
			if step == (i+1)*int(last/(20*time.Millisecond))/n {
				b.self.Loading, b.self.Journals = false, journalsOf(n, 1)
			}
		}
		w.run(1)
		for _, b := range w.beds {
			since := w.now.Sub(epoch)
			if early := since <= last && (placed(b.view) || b.view.Joined); early || b.view.Joined && b.view.Ring.Len() < n {
				t.Fatalf("%s after %v: placed %v, joined %v, ring of %d", b.self.ID, since, placed(b.view),
					b.view.Joined, b.view.Ring.Len())
			}
		}
	}
	for _, b := range w.beds {
		if !b.view.Joined {
			t.Errorf("%s has not joined a second after the last journal", b.self.ID)
		}
	}
}
