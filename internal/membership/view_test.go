package membership

import (
	"strings"
	"testing"

	"github.com/keyward/keyward/ring"
)

// newView returns the view of member a in a cluster of a, b, a leaving member c and an observer, all on one complete ring.
func newView() *View {
	r := ring.New([]ring.Member{{ID: "a", Weight: 1}, {ID: "b", Weight: 1}})
	f := r.Fingerprint()
	return &View{
		Self: "a", BootID: 1, Ring: r, NRef: 2, Joined: true,
		Members: []Member{
			{ID: "a", BootID: 1, State: Active, Ring: f, CompleteRing: f, ProtocolMax: ProtocolMax},
			{ID: "b", BootID: 3, State: Active, Ring: f, CompleteRing: f, ProtocolMax: ProtocolMax},
			{ID: "c", BootID: 5, State: Leaving, ProtocolMax: ProtocolMax},
			{ID: "x", BootID: 7, State: Active, Role: RoleObserver},
		},
	}
}

func TestFind(t *testing.T) {
	v := newView()
	if m, ok := v.Find("b"); !ok || m.BootID != 3 {
		t.Errorf("b: %+v, %v", m, ok)
	}
	if _, ok := v.Find("x"); ok {
		t.Error("found an observer")
	}
	if m := v.SelfMember(); m.ID != "a" || m.State != Active {
		t.Errorf("self: %+v", m)
	}
	v.BootID = 9 // another boot has its place
	if m := v.SelfMember(); m.ID != "a" || m.BootID != 9 || m.State != Joining {
		t.Errorf("self without a place: %+v", m)
	}
}

// Only active members matter for the agreement on the ring.
func TestRingAgreement(t *testing.T) {
	for name, c := range map[string]struct {
		change                func(*View)
		differing, incomplete int
	}{
		"all agree":                  {func(*View) {}, 0, 0},
		"b uses another ring":        {func(v *View) { v.Members[1].Ring = 5 }, 1, 0},
		"b is not complete":          {func(v *View) { v.Members[1].CompleteRing = 5 }, 0, 1},
		"b has no handoff":           {func(v *View) { v.Members[1].CompleteRing, v.Members[1].ProtocolMax = 5, 1 }, 0, 0},
		"a, itself, is not complete": {func(v *View) { v.Members[0].CompleteRing = 5 }, 0, 1},
		"b is joining":               {func(v *View) { v.Members[1].Ring, v.Members[1].State = 5, Joining }, 0, 0},
	} {
		v := newView()
		c.change(v)
		if d, i := v.DifferingRings(), v.IncompleteMembers(); d != c.differing || i != c.incomplete {
			t.Errorf("%s: %d differing, %d incomplete; want %d, %d", name, d, i, c.differing, c.incomplete)
		}
	}
}

func TestEqual(t *testing.T) {
	v, w := newView(), newView()
	w.Ring = v.Ring
	if !v.Equal(w) || v.Equal(nil) {
		t.Error("equal views differ, or a view equals nil")
	}
	for name, change := range map[string]func(*View){
		"ring": func(v *View) { v.Ring = ring.New(nil) }, "N_ref": func(v *View) { v.NRef++ },
		"members": func(v *View) { v.Members = v.Members[:3] }, "left": func(v *View) { v.Left = []ring.ID{"d"} },
		"problem": func(v *View) { v.Problem = "the ring is full" }, "joined": func(v *View) { v.Joined = false },
		"missing": func(v *View) { v.Missing++ },
	} {
		changed := *v
		change(&changed)
		if v.Equal(&changed) {
			t.Errorf("a change of %s is not noticed", name)
		}
	}
}

func TestCheckID(t *testing.T) {
	for id, ok := range map[ring.ID]bool{"pod-1": true, "ü": true, "a*": false, "a/b": false, "a\n": false, "\xff": false} {
		if err := CheckID(id); (err == nil) != ok {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func TestValidate(t *testing.T) {
	good := Member{ID: "a", ProtocolMin: 1, ProtocolMax: 2}
	if err := good.Validate(); err != nil || good.Weight != 1 {
		t.Errorf("%v, weight %d", err, good.Weight)
	}
	for name, m := range map[string]Member{
		"no name":     {ProtocolMin: 1, ProtocolMax: 2},
		"long name":   {ID: ring.ID(strings.Repeat("x", MaxID+1)), ProtocolMin: 1, ProtocolMax: 2},
		"heavy":       {ID: "a", Weight: MaxWeight + 1, ProtocolMin: 1, ProtocolMax: 2},
		"no protocol": {ID: "a"},
		"min > max":   {ID: "a", ProtocolMin: 3, ProtocolMax: 2},
	} {
		if m.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if m := (Member{ProtocolMin: ProtocolMax + 1, ProtocolMax: ProtocolMax + 1}); m.SharesProtocol() {
		t.Error("shares a later protocol only")
	}
}
