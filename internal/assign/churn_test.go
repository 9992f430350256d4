package assign

import (
	"strconv"
	"testing"
	"time"

	"github.com/keyward/keyward/envoy/rlqs"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner"
)

// TestIDsThatClientsChooseAreForgotten has Envoys come and go with ids of a long window: soon nothing of them is kept, and what
// they have left behind is charged no longer.
func TestIDsThatClientsChooseAreForgotten(t *testing.T) {
	const ids = 50
	r := newRig(t, 1000*int64(24*time.Hour)+aMinute, 1000)
	us := make([]rlqs.BucketUsage, ids)
	var all uint64
	for i := range us {
		q := owner.Request{Key: owner.Key{uint64(i), 2}, Rule: limit.Rule{Limit: 1000, Window: 24 * time.Hour}}
		us[i] = rlqs.BucketUsage{Denied: 1, Bucket: &rlqs.QuotaBucket{
			Key: strconv.Itoa(i), Fit: rlqs.FitLimited, Match: config.Match{Limit: q.Rule}, Request: q,
		}}
	}
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
