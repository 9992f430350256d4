//go:build !race

package peer

import (
	"math"
	"testing"
	"time"

	"github.com/keyward/keyward/owner"
)

func TestAllocsLocal(t *testing.T) {
	m := newMember(t, "m0").alone()
	qs, as := []owner.Question{question("k", math.MaxUint32, 1)}, make([]owner.Answer, 1)
	for _, stop := range []bool{false, true} {
		if n := testing.AllocsPerRun(1000, func() { m.Decide(time.Now().Add(patience), stop, qs, as) }); n != 0 {
			t.Errorf("stop %v: %v allocations", stop, n)
		}
	}
}

// The figure is that of the whole process: both members, readers and writers.
func TestAllocsForwarded(t *testing.T) {
	for _, tt := range []struct {
		name   string
		adjust func(*Options)
		want   float64
	}{
		{"plain", func(*Options) {}, 0},
		{"tls", tlsOptions(t, demoCA(t), "sidecar"), 2}, // crypto/tls: one for each record read
	} {
		ms := newCluster(t, 2, tt.adjust)
		qs := make([]owner.Question, 0, 8)
		for _, n := range ownedBy(ringOf("m0", "m1"), "m1", cap(qs)) {
			qs = append(qs, question(n, math.MaxUint32, 1))
		}
		as := make([]owner.Answer, len(qs))
		for _, stop := range []bool{false, true} {
			if n := testing.AllocsPerRun(1000, func() { ms[0].Decide(time.Now().Add(patience), stop, qs, as) }); n > tt.want {
				t.Errorf("%s, stop %v: %v allocations, want %v", tt.name, stop, n, tt.want)
			}
		}
	}
}
