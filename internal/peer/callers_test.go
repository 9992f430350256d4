package peer

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// inquiryRun is a callers without a network.
type inquiryRun struct {
	t     *testing.T
	c     callers
	links map[ring.ID]*link
	now   int64
}

func newInquiryRun(t *testing.T, ids ...ring.ID) *inquiryRun {
	r := &inquiryRun{t: t, c: callers{patience: memberDead}, now: 1}
	r.see(ids...)
	return r
}

// see makes ids the members in the view.
func (r *inquiryRun) see(ids ...ring.ID) {
	r.links = map[ring.ID]*link{}
	for _, id := range ids {
		r.links[id] = &link{to: id}
	}
	r.c.setMembers(r.links, r.now, r.now)
}

// expect requires that the messages due after d are of that kind and to these members.
func (r *inquiryRun) expect(d time.Duration, kind callerKind, to ...ring.ID) {
	r.t.Helper()
	r.now += int64(d)
	r.c.takeDead(r.now)
	out, _ := r.c.due(r.links, r.now)
	got := map[ring.ID]bool{}
	for _, o := range out {
		if o.m.kind != kind {
			r.t.Fatalf("a message of kind %d to %s, want %d", o.m.kind, o.to.to, kind)
		}
		got[o.to.to] = true
	}
	if ids := slices.Sorted(maps.Keys(got)); !slices.Equal(ids, to) {
		r.t.Fatalf("messages to %v, want %v", ids, to)
	}
}

func (r *inquiryRun) reply(from ring.ID, kind callerKind) {
	r.c.reply(from, callerMessage{kind: kind, caller: 7, before: 5})
}

// TestInquiry requires that a caller is dead when all members have no connection of it, and that members are notified until
// all have confirmed it.
func TestInquiry(t *testing.T) {
	r := newInquiryRun(t, "a", "b")
	r.c.begin(7, 5, r.now, false)
	r.expect(0, callerAsk, "a", "b")
	r.expect(callerRepeat/2, callerAsk)
	r.reply("a", callerNone)
	r.expect(callerRepeat, callerAsk, "b")
	r.see("a", "b", "c") // it may have an older connection, too
	r.reply("b", callerNone)
	r.expect(callerRepeat, callerAsk, "c")
	r.reply("c", callerNone)
	r.expect(0, callerDead, "a", "b", "c")
	r.reply("a", callerDone)
	r.reply("c", callerDone)
	r.expect(callerRepeat, callerDead, "b")
	r.see("a", "c") // a member that has left needs not confirm
	r.expect(callerRepeat, callerDead)
	if len(r.c.inquiries) != 0 {
		t.Error("the inquiry has not ended")
	}
}

// TestInquiryOfACallerThatLives requires that one older connection ends an inquiry.
func TestInquiryOfACallerThatLives(t *testing.T) {
	r := newInquiryRun(t, "a", "b")
	r.c.begin(7, 5, r.now, false)
	r.expect(0, callerAsk, "a", "b")
	r.reply("a", callerNone)
	r.reply("b", callerHere)
	r.expect(time.Minute, callerAsk)
	if len(r.c.inquiries) != 0 {
		t.Error("the inquiry has not ended")
	}
}

// TestUnreachableMemberCounts requires that a member without a reply counts as having a connection until it has been
// absent for 10 s, and that this begins again when it comes back.
func TestUnreachableMemberCounts(t *testing.T) {
	r := newInquiryRun(t, "a", "b")
	r.c.begin(7, 5, r.now, false)
	r.expect(0, callerAsk, "a", "b")
	r.reply("a", callerNone)
	r.expect(time.Minute, callerAsk, "b")
	r.see("a")
	r.expect(memberDead-1, callerAsk)
	r.see("a", "b")
	r.expect(time.Second, callerAsk, "b")
	r.see("a")
	r.expect(memberDead-1, callerAsk)
	r.expect(1, callerDead, "a")
}

// TestDeadMember requires that a member is reported dead once, after 10 s, with the time at which it became absent.
func TestDeadMember(t *testing.T) {
	r := newInquiryRun(t, "a", "b")
	r.see("a")
	left := r.now
	for _, c := range []struct {
		after time.Duration
		want  []deadMember
	}{{memberDead - 1, nil}, {memberDead, []deadMember{{"b", left}}}, {time.Hour, nil}} {
		if dead := r.c.takeDead(left + int64(c.after)); !slices.Equal(dead, c.want) {
			t.Errorf("after %v: %v", c.after, dead)
		}
	}
}

func TestCallerOnTheWire(t *testing.T) {
	want := callerMessage{kind: callerDead, caller: 1 << 50, before: -3}
	typ, payload, _, ok, err := nextFrame(appendCaller(nil, want, 9))
	got, sent, parseErr := parseCaller(payload)
	if !ok || err != nil || parseErr != nil || typ != frameCaller || got != want || sent != 9 {
		t.Errorf("%+v at %d, %v, %v", got, sent, err, parseErr)
	}
	for n := range payload {
		if _, _, err := parseCaller(payload[:n]); err == nil {
			t.Errorf("%d bytes were read", n)
		}
	}
}

// door is one member's knowledge of a caller's connections.
type door struct{ has atomic.Bool }

// newDoors starts n members whose doors know one caller.
func newDoors(t *testing.T, n int) (ms []*member, doors []*door) {
	ms = newCluster(t, n, func(o *Options) {
		d := &door{}
		doors = append(doors, d)
		o.HasCaller = func(uint64, time.Duration) bool { return d.has.Load() }
	})
	for _, m := range ms {
		m.callers.mu.Lock()
		m.callers.patience = 300 * time.Millisecond
		m.callers.mu.Unlock()
	}
	return ms, doors
}

// takeSlots takes a slot of each of n ids for caller, and returns a request of their key.
func takeSlots(t *testing.T, m *member, name string, caller uint64, n int) owner.Request {
	t.Helper()
	q := newRequest(name, 100, 1)
	q.Rule.Algorithm, q.Rule.Window, q.Op = limit.InFlight, time.Hour, owner.Reserve
	for i := range n {
		q.Hold = &owner.Hold{ID: claim.Ident{caller, uint64(i)}, TTL: time.Hour, Caller: caller, Flags: claim.InFlight}
		if a := m.decideOne(patience, q); a.Over || a.Path == owner.Fallback {
			t.Fatalf("%+v", a)
		}
	}
	return q
}

// slots returns what the owner of q's key has recorded.
func slots(ms []*member, q owner.Request) uint64 {
	r := ringOf(ids(ms)...)
	m := memberOf(ms, r.At(r.Owner(q.RingPos)).ID)
	return m.node.RecordedUsage(m.Now(), &q)
}

// TestDeadCallersSlots requires that a caller's slots come back when the last member that had a connection of it sees
// its end, and those of another caller stay.
func TestDeadCallersSlots(t *testing.T) {
	ms, doors := newDoors(t, 3)
	names := setNames(ms)
	dying, other := owner.CallerOf(5, ""), owner.CallerOf(6, "")
	var keys []owner.Request
	for i, name := range names {
		keys = append(keys, takeSlots(t, ms[i], name, dying, 4))
		takeSlots(t, ms[i], name, other, 2)
	}
	doors[1].has.Store(true)
	ms[0].CallerGone(owner.Who(dying), 0)
	await(t, "the inquiry to end", func() bool {
		ms[0].callers.mu.Lock()
		defer ms[0].callers.mu.Unlock()
		return len(ms[0].callers.inquiries) == 0
	})
	for _, q := range keys {
		if n := charged(ms[0], q); n != 6 {
			t.Fatalf("%d slots while the caller lives", n)
		}
	}
	doors[1].has.Store(false)
	ms[1].CallerGone(owner.Who(dying), 0)
	for _, q := range keys {
		await(t, "the slots to come back", func() bool { return charged(ms[0], q) == 2 })
	}
}

// TestDeadMembersCallers requires that the slots of callers behind a dead member come back.
func TestDeadMembersCallers(t *testing.T) {
	ms, _ := newDoors(t, 3)
	q := takeSlots(t, ms[2], setNames(ms)[0], owner.CallerOf(5, "m2"), 3)
	takeSlots(t, ms[1], setNames(ms)[0], owner.CallerOf(5, "m1"), 2)
	ms[2].Close()
	for _, m := range ms[:2] {
		m.setMembers(ms[:2])
	}
	await(t, "the slots of the dead member's callers", func() bool { return slots(ms[:2], q) == 2 })
}

// TestDeadCallerWhileOwnersDie requires that the slots come back although the owner of their key dies meanwhile, and then
// the next one.
func TestDeadCallerWhileOwnersDie(t *testing.T) {
	ms, _ := newDoors(t, 4)
	name := mortalName(ms)
	dying, other := owner.CallerOf(5, ""), owner.CallerOf(6, "")
	q := takeSlots(t, ms[0], name, dying, 5)
	takeSlots(t, ms[0], name, other, 2)
	for len(ms) > 2 {
		r := ringOf(ids(ms)...)
		here, next := r.At(r.Owner(q.RingPos)).ID, r.At(r.Successor(q.RingPos)).ID
		await(t, "the next owner to know the slots", func() bool {
			_, one := memberOf(ms, here).node.HeldHits(q.Key)
			_, two := memberOf(ms, next).node.HeldHits(q.Key)
			return one == two && one > 0
		})
		if len(ms) == 4 {
			ms[0].CallerGone(owner.Who(dying), 0)
		}
		memberOf(ms, here).Close()
		ms = slices.DeleteFunc(slices.Clone(ms), func(m *member) bool { return m.id == here })
		for _, m := range ms {
			m.setMembers(ms)
		}
		await(t, "the next owner to own its keys", func() bool { return memberOf(ms, next).node.Progress().Complete() })
	}
	await(t, "the slots of the dead caller", func() bool { return slots(ms, q) == 2 })
}

func memberOf(ms []*member, id ring.ID) *member {
	return ms[slices.IndexFunc(ms, func(m *member) bool { return m.id == id })]
}

// mortalName returns the name of a key that m0 owns neither in the ring of ms, nor in that without its owner.
func mortalName(ms []*member) string {
	for i := 0; ; i++ {
		name, left := fmt.Sprint("mortal ", i), slices.Clone(ms)
		for len(left) > 2 {
			r := ringOf(ids(left)...)
			dead := r.At(r.Owner(ring.Hash(name))).ID
			if dead == "m0" {
				break
			}
			left = slices.DeleteFunc(left, func(m *member) bool { return m.id == dead })
		}
		if len(left) == 2 {
			return name
		}
	}
}
