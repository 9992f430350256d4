package assign

import (
	"testing"
	"time"

	"github.com/keyward/keyward/envoy/rlqs"
	"github.com/keyward/keyward/internal/assign/lots"
	"github.com/keyward/keyward/owner"
)

// TestCloseGivesBack checks that a member that ends leaves at the owner what its Envoys may spend, and no demand.
func TestCloseGivesBack(t *testing.T) {
	r := newRig(t, 1000*aMinute+int64(40*time.Second), 6000)
	r.Opened(r.cluster.now(), 1, rlqs.EnvoyStream{Name: "one"})
	r.report(1, 0, 5, 0)
	tokens := r.await(t, rlqs.AssignPair, 1).Tokens
	r.give(3000)
	r.mu.Lock()
	c := &caller{request: r.request, rate: 50, seenAt: r.clock.Load()}
	r.callers[r.request.Key] = c
	r.announceCalls(r.clock.Load(), c, lots.NewNote(&c.request, c.demand(), r.clock.Load(), newIdent()))
	r.mu.Unlock()
	if used := r.used(r.request); used <= uint64(tokens) {
		t.Fatalf("%d hits are charged, and %d assigned", used, tokens)
	}
	r.Closed(r.cluster.now(), 1)
	r.Close()
	if used := r.used(r.request); used != uint64(tokens) {
		t.Errorf("%d hits stay charged, of which the Envoy may spend %d", used, tokens)
	}
	if returned, unreturned := r.Ended(); returned == 0 || unreturned != 0 {
		t.Errorf("%d hits were returned, and %d were not", returned, unreturned)
	}
	if n, parts := r.demandsOf(); n != 0 {
		t.Errorf("%d demands of %d parts remain", n, parts)
	}
	if n, parts := r.notesOf(lots.CallsRequest(&r.request, owner.DryRun, lots.Note{})); n != 0 {
		t.Errorf("%d demands of calls of %d parts remain", n, parts)
	}
}
