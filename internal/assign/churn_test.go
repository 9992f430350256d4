package assign

import (
	"testing"
	"time"

	"github.com/keyward/keyward/envoy/rlqs"
)

// TestIDsThatClientsChooseAreForgotten has Envoys come and go with ids of a long window: soon nothing of them is kept, and what
// they have left behind is charged no longer.
func TestIDsThatClientsChooseAreForgotten(t *testing.T) {
	const ids = 50
	r := newRig(t, 1000*int64(24*time.Hour)+aMinute, 1000)
	us := deniedUsages(ids, 24*time.Hour)
	var all uint64
	pass := func(d time.Duration) {
		for range d / time.Second {
			r.clock.Add(int64(time.Second))
			r.node.Tick(r.clock.Load())
			r.step(func(now int64) { r.sweep(now) })
			r.awaitRequests()
		}
	}
	for s := range uint64(3) {
		r.Opened(r.cluster.now(), s+1, rlqs.EnvoyStream{Name: "one"})
		r.Reported(r.cluster.now(), s+1, us)
		pass(5 * time.Second)
		r.Closed(r.cluster.now(), s+1)
	}
	r.mu.Lock()
	for _, k := range r.ledger.Keys() {
		all += k.Charged
	}
	r.mu.Unlock()
	pass(2 * time.Minute)
	r.mu.Lock()
	if n := len(r.keys) + len(r.ledger.Keys()); n > 0 {
		t.Errorf("%d keys are kept", n)
	}
	r.mu.Unlock()
	charged := uint64(0)
	for i := range us {
		charged += r.used(us[i].Bucket.Request)
	}
	if charged > all {
		t.Errorf("%d hits are charged, and Envoys may have spent %d", charged, all)
	}
}
