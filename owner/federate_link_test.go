package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/federation"
)

// A coordinator that replies, but without grants, is away after three requests, as one that does not reply.
func TestRepliesWithoutGrantsAreNone(t *testing.T) {
	w := newRegions(t, 1)
	w.cut[0], w.terms.Outage = true, federation.FailOpen
	q := w.ask(100, time.Hour)
	q.Hits, q.LocalCap = 50, 1000
	n, admitted := w.nodes[0], 0
	for i := range 100 {
		q.Waiter = i
		if res := take(n, w.now, q); res.Kind == Decided && !res.Over {
			admitted++
		} else {
			w.cancel(0, &q)
		}
		w.wait(100)
		w.perform(0, n.StepFederation(w.now, w.terms.Authority, 75*time.Millisecond, nil, false))
	}
	if admitted == 0 {
		t.Error("the outage policy never decided in 10 s")
	}
}
