package assign

import (
	"testing"
	"time"

	"github.com/keyward/keyward/envoy/rlqs"
	"github.com/keyward/keyward/internal/assign/lots"
	"github.com/keyward/keyward/owner"
)

// TestRetire has a member leave while its Envoy's lease reaches into the next window: it ends with this one, and
// nothing of the next window stays charged. Without the Envoy's acknowledgement, what it may spend does. The demands are withdrawn.
func TestRetire(t *testing.T) {
	for _, answers := range []bool{true, false} {
		r := newRig(t, 1000*aMinute+int64(51500*time.Millisecond), 1000)
		r.Opened(r.cluster.now(), 1, rlqs.EnvoyStream{Name: "one"})
		r.report(1, 0, 5, 0)
		r.await(t, rlqs.AssignPair, 1)
		next := func() uint64 {
			q := r.request
			q.Op = owner.DryRun
			return r.node.Decide(r.clock.Load()+int64(10*time.Second), &q).After
		}
		for range 200 { // until the next window is charged, and the lease reaches into it
			r.clock.Add(int64(20 * time.Millisecond))
			r.node.Tick(r.clock.Load())
			r.step(func(int64) {})
			_, acks := r.sent.take()
			for _, serial := range acks {
				r.Acked(r.cluster.now(), 1, serial)
			}
			time.Sleep(time.Millisecond)
		}
		if next() == 0 {
			t.Fatal("nothing is charged to the next window")
		}
		r.give(100)
		retired := make(chan struct{})
		go func() {
			r.Retire(200 * time.Millisecond)
			close(retired)
		}()
		if answers {
			p := r.await(t, rlqs.AssignSame, 1)
			if end := r.clock.Load() + int64(p.TTL); end > 1001*aMinute {
				t.Errorf("the lease ends %v after the window", time.Duration(end-1001*aMinute))
			}
			_, acks := r.sent.take()
			for _, serial := range acks {
				r.Acked(r.cluster.now(), 1, serial)
			}
		}
		<-retired
		if n := next(); (n == 0) != answers {
			t.Errorf("the Envoy answers: %v; %d hits of the next window are charged", answers, n)
		}
		if n, _ := r.notesOf(lots.DemandRequest(&r.request, owner.DryRun, lots.Note{})); n != 0 {
			t.Errorf("%d demands remain", n)
		}
	}
}
