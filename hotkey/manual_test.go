package hotkey

import (
	"slices"
	"strings"
	"testing"

	"github.com/keyward/keyward/ring"
)

func TestManualRoute(t *testing.T) {
	r := ringOf(1, 1, 1, 1, 1)
	order := Route{Domain: "d", Owner: "alice", Name: "k=alice\x1b[2J", Author: "a", Version: 7, Limit: 9, Window: 1e9}
	for mode, want := range map[Mode]int{Auto: 0, Cap: 0, Dedicated: 1, Spread: defaultSubKeys, Never: 0} {
		order.Mode = mode
		got, err := ManualRoute(order, targets(r, nil), 0)
		if err != nil || len(got.Subs) != want || !got.Manual || got.Capped() != (mode == Cap) || strings.Contains(got.Name, "\x1b") {
			t.Errorf("mode %d: %+v %v", mode, got, err)
		}
		if back, err := ParseRoute(AppendRoute(nil, &got)); err != nil || back.Mode != mode {
			t.Errorf("mode %d: decoded as %+v %v", mode, back, err)
		}
		for _, s := range got.Subs {
			if mode == Dedicated && s.Member == r.At(r.Owner(ring.Hash("alice"))).ID {
				t.Error("placed on its owner")
			}
		}
	}
}

func TestManualRouteFollowsTheRing(t *testing.T) {
	before := ringOf(1, 1, 1, 1, 1)
	old, err := ManualRoute(Route{Domain: "d", Owner: "alice", Author: "a", Version: 7, Mode: Spread}, targets(before, nil), 3)
	if err != nil {
		t.Fatal(err)
	}
	if same, err := ManualRoute(old, targets(before, map[ring.ID]float64{old.Subs[0].Member: 1e6}), 3); err != nil || !slices.Equal(same.Subs, old.Subs) {
		t.Errorf("the same ring: %+v %v", same, err)
	}
	var left []ring.Member
	for i := range before.Len() {
		if m := before.At(i); m.ID != old.Subs[0].Member {
			left = append(left, m)
		}
	}
	after := ring.New(left)
	r, err := ManualRoute(old, targets(after, nil), 3)
	if err != nil || len(r.Subs) != 3 {
		t.Fatalf("%+v %v", r, err)
	}
	for _, s := range r.Subs {
		if after.At(after.Owner(ring.Hash(s.Key))).ID != s.Member {
			t.Errorf("%+v", s)
		}
	}
}

func TestManualRouteRefuses(t *testing.T) {
	alone, pair := ringOf(1), ringOf(1, 1)
	good := Route{Domain: "d", Owner: "alice", Author: "a", Version: 7}
	try := func(why string, r *ring.Ring, change func(*Route)) {
		order := good
		change(&order)
		if got, err := ManualRoute(order, targets(r, nil), 0); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %+v %v", why, got, err)
		}
	}
	try("no other member", alone, func(r *Route) { r.Mode = Dedicated })
	try("no other member", alone, func(r *Route) { r.Mode = Spread })
	try("a cap needs", pair, func(r *Route) { r.Mode = Cap })
	try("owner", pair, func(r *Route) { r.Mode, r.Owner = Never, strings.Repeat("k", maxText+1) })
}
