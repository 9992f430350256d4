package hotkey

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/ring"
)

func ringNamed(names ...string) *ring.Ring {
	var ms []ring.Member
	for _, n := range names {
		ms = append(ms, ring.Member{ID: ring.ID(n), Weight: 1})
	}
	return ring.New(ms)
}

// town is members with orders that hear each other at once.
type town struct {
	t      *testing.T
	now    int64
	at     *ring.Ring
	skew   map[ring.ID]int64 // of a member's clock
	orders map[ring.ID]*Orders
	said   []Route
}

func newTown(t *testing.T, names ...string) *town {
	w := &town{t: t, now: 1e18, at: ringNamed(names...), skew: map[ring.ID]int64{}, orders: map[ring.ID]*Orders{}}
	for _, n := range names {
		w.orders[ring.ID(n)] = NewOrders(ring.ID(n))
	}
	return w
}

func (w *town) give(by ring.ID, mode Mode, n int) Route {
	w.t.Helper()
	r, err := w.orders[by].Give(w.now+w.skew[by], w.at, ring.Hash, Route{Domain: "d", Owner: "alice", Name: "k=alice", Mode: mode, Limit: 9, Window: 1e9}, n, w.said)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// tick lets a second pass, in which all say what they have to.
func (w *town) tick() []Route {
	w.now += int64(time.Second)
	var all []Route
	for id, o := range w.orders {
		all = append(all, o.Standing(w.now+w.skew[id], w.at, ring.Hash, w.said)...)
	}
	for _, r := range all {
		if err := r.Valid(); err != nil || !r.Manual {
			w.t.Errorf("%+v: %v", r, err)
		}
	}
	w.said = all
	return all
}

func TestOrdersStandUntilCleared(t *testing.T) {
	w := newTown(t, "a", "b", "c", "d")
	r := w.give("a", Spread, 3)
	if len(r.Subs) != 3 || r.By != "a" || r.Ver != w.now || r.Capped() {
		t.Errorf("%+v", r)
	}
	for range 100 {
		w.tick()
	}
	if len(w.said) != 1 || w.said[0].Ver != r.Ver || !slices.Equal(w.said[0].Subs, r.Subs) {
		t.Fatalf("after 100 s %+v, said was %+v", w.said, r)
	}
	w.skew["b"] = -int64(time.Hour)
	if r := w.give("b", Auto, 0); r.Ver <= w.said[0].Ver || len(r.Subs) > 0 {
		t.Errorf("the order to clear is older than what it clears: %+v", r)
	}
	w.tick()
	if w.tick(); len(w.said) != 1 || w.said[0].Mode != Auto || w.said[0].By != "b" {
		t.Errorf("cleared: %+v", w.said)
	}
	for range 31 {
		w.tick()
	}
	if len(w.said) > 0 {
		t.Errorf("said for ever: %+v", w.said)
	}
}

func TestTheNewestOrderStands(t *testing.T) {
	w := newTown(t, "a", "b", "c")
	w.give("a", Spread, 2)
	w.tick()
	w.give("b", Cap, 0)
	w.tick()
	if w.tick(); len(w.said) != 1 || w.said[0].By != "b" || w.said[0].Mode != Cap || !w.said[0].Capped() {
		t.Errorf("%+v", w.said)
	}
	if r := w.give("b", Dedicated, 0); len(r.Subs) != 1 || r.Subs[0].Member == w.at.At(w.at.Owner(ring.Hash("alice"))).ID {
		t.Errorf("pinned to its owner: %+v", r)
	}
	if w.tick(); len(w.said) != 1 || w.said[0].Mode != Dedicated {
		t.Errorf("%+v", w.said)
	}
}

func TestOrdersFollowTheRing(t *testing.T) {
	w := newTown(t, "a", "b", "c", "d", "e")
	old := w.give("a", Spread, 3)
	w.tick()
	gone := old.Subs[0].Member
	if gone == "a" {
		gone = old.Subs[1].Member
	}
	w.at = ringNamed(slices.DeleteFunc([]string{"a", "b", "c", "d", "e"}, func(n string) bool { return n == string(gone) })...)
	w.tick()
	r := w.said[0]
	if len(r.Subs) != 3 || r.Ver <= old.Ver {
		t.Errorf("%+v", r)
	}
	for _, s := range r.Subs {
		if s.Member == gone || w.at.At(w.at.Owner(ring.Hash(s.Key))).ID != s.Member {
			t.Errorf("sub-key %+v", s)
		}
	}
	w.at = ringNamed() // nobody known for a moment
	if w.tick(); len(w.said[0].Subs) != 3 || w.said[0].Ver != r.Ver {
		t.Errorf("without a ring: %+v", w.said)
	}
}

func TestOrdersRefused(t *testing.T) {
	w := newTown(t, "a", "b")
	o := w.orders["a"]
	good := Route{Domain: "d", Owner: "k", Mode: Never}
	alone := ringNamed("a")
	for why, try := range map[string]func() error{
		"no other member": func() error {
			_, err := o.Give(1, alone, ring.Hash, Route{Domain: "d", Owner: "k", Mode: Dedicated}, 0, nil)
			return err
		},
		"cap needs": func() error {
			_, err := o.Give(1, w.at, ring.Hash, Route{Domain: "d", Owner: "k", Mode: Cap}, 0, nil)
			return err
		},
		"owner": func() error {
			_, err := o.Give(1, w.at, ring.Hash, Route{Domain: "d", Owner: strings.Repeat("k", 300), Mode: Never}, 0, nil)
			return err
		},
	} {
		if err := try(); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", why, err)
		}
	}
	if n := len(o.Standing(2, w.at, ring.Hash, nil)); n != 0 {
		t.Fatalf("%d refused orders stand", n)
	}
	for i := range MaxRoutes {
		good.Owner = fmt.Sprint("k", i)
		if _, err := o.Give(1, w.at, ring.Hash, good, 0, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := o.Give(2, w.at, ring.Hash, good, 0, nil); err != nil {
		t.Errorf("one that stands, given again: %v", err)
	}
	good.Owner = "one more"
	if _, err := o.Give(1, w.at, ring.Hash, good, 0, nil); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("one too many: %v", err)
	}
}
