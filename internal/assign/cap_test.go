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

// deniedUsages returns reports of n ids, each with a request that Envoy has refused.
func deniedUsages(n int, window time.Duration) []rlqs.BucketUsage {
	us := make([]rlqs.BucketUsage, n)
	for i := range us {
		q := owner.Request{Key: owner.Key{uint64(i), 2}, Rule: limit.Rule{Limit: 1000, Window: window}}
		us[i] = rlqs.BucketUsage{Denied: 1, Bucket: &rlqs.QuotaBucket{
			Key: strconv.Itoa(i), Fit: rlqs.FitLimited, Match: config.Match{Limit: q.Rule}, Request: q,
		}}
	}
	return us
}

// TestDeclinedIDsTakeNoMemory has an Envoy report more ids than it may have, as when clients choose them: what the ledger
// declines is not kept.
func TestDeclinedIDsTakeNoMemory(t *testing.T) {
	const ids = 5000
	r := newRig(t, 1000*aMinute+int64(time.Second), 1000)
	r.Opened(r.cluster.now(), 1, rlqs.EnvoyStream{Name: "one"})
	us := deniedUsages(ids, time.Minute)
	r.Reported(r.cluster.now(), 1, us)
	declined := 0
	for i := range us {
		if us[i].Declined {
			declined++
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if declined == 0 || len(r.keys) != ids-declined {
		t.Errorf("%d ids are kept, %d of %d were declined", len(r.keys), declined, ids)
	}
}
