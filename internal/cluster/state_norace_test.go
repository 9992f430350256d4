//go:build !race

package cluster

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// Members that receive each other's announcements late join and leave at random. All reach their final state, and a
// change hardly ever begins during another one.
func TestChangesAreSequential(t *testing.T) {
	const step = 20 * time.Millisecond
	changes, overlaps := 0, 0
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 7))
		w := &world{now: epoch}
		w.add("m-0") // starts the cluster
		w.run(50)
		for i := range 6 {
			w.add(ring.ID(fmt.Sprint("j-", i)))
		}
		for range 40 {
			w.run(r.IntN(20))
			if i := 1 + r.IntN(6); r.IntN(3) == 0 && !w.beds[i].status.draining {
				w.beds[i].status.draining, w.beds[i].status.drainingSince = true, w.now
			}
		}
		w.run(int(20 * time.Second / step))
		for _, b := range w.beds {
			want := membership.Active
			if b.status.draining {
				want = membership.Leaving
			}
			if b.self.State != want || b.ring.Fingerprint() != w.beds[0].ring.Fingerprint() {
				t.Fatalf("seed %d: %s is %v, want %v", seed, b.self.ID, b.self.State, want)
			}
		}
		changes, overlaps = changes+w.changes, overlaps+w.overlaps
	}
	if changes < 80 || overlaps*10 > changes {
		t.Errorf("%d of %d changes began while another was on", overlaps, changes)
	}
	t.Logf("%d of %d changes began while another was on", overlaps, changes)
}
