package admin

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/keyward/keyward/ring"
)

func TestRingMapSaysWhoOwnsWhat(t *testing.T) {
	r := ring.New([]ring.Member{{ID: "b", Weight: 2}, {ID: "a", Weight: 1}, {ID: "c", Weight: 1}})
	m := NewRingMap(r, "f")
	if len(m.Members) != 3 || len(m.Sectors) != Sectors || m.Members[0].ID != "a" || m.Members[1].Weight != 2 {
		t.Fatalf("%+v", m)
	}
	// A member's sectors are a sample of what it owns: 720 of them are within a few percent of its share.
	seen, sum := [3]float64{}, 0.0
	for _, i := range m.Sectors {
		seen[i] += 1.0 / Sectors
	}
	for i, x := range m.Members {
		if sum += x.Share; math.Abs(seen[i]-x.Share) > 0.06 {
			t.Errorf("%s has a share of %.3f and %.3f of the sectors", x.ID, x.Share, seen[i])
		}
	}
	if math.Abs(sum-1) > 1e-9 || math.Abs(m.Members[1].Share-0.5) > 0.05 {
		t.Errorf("shares add up to %v: %+v", sum, m.Members)
	}
	for i, owner := range m.Sectors {
		if h := uint64((float64(i) + 0.5) / Sectors * math.Exp2(64)); r.Owner(h) != owner {
			// The product above is rounded: it may lie on the other side of a point, but hardly twice.
			if r.Owner(h-1<<12) != owner && r.Owner(h+1<<12) != owner {
				t.Errorf("sector %d: %d, want %d", i, owner, r.Owner(h))
			}
		}
	}
}

func TestEmptyRingMap(t *testing.T) {
	text, err := json.Marshal(NewRingMap(&ring.Ring{}, ""))
	if want := `{"fingerprint":"","members":[],"sectors":[]}`; err != nil || string(text) != want {
		t.Errorf("%s %v, want %s", text, err, want)
	}
}
