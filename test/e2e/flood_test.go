package e2e

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/internal/lab"
)

const floodRules = `domain: app
descriptors:
  - {key: client, rate_limit: {unit: day, requests_per_unit: 10}}
`

// TestFloodOfKeys asks one member about two million keys, ten with KEYWARD_LONG, once each; it has room for half a million. Its memory stays
// where the table's size puts it, and what was counted before stays counted to the hit: keys that were over stay over, and
// keys that were not have what they had left. Keys beyond the table may be refused without cause; it says how many.
func TestFloodOfKeys(t *testing.T) {
	const (
		limit, spent, room = 10, 7, 500_000
		known              = 1000
		most               = 400 << 20 // bytes: 60 MB of table, a sketch, the garbage of requests of 250 descriptors
	)
	n := 2_000_000 // four times what it has room for
	if long() {
		n = 10_000_000
	}
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": floodRules}, Expect: 1, Args: []string{"--max-keys", fmt.Sprint(room), "--domain-quota", fmt.Sprint(room)}})
	start(t, l, "pod-a")
	s := l.Sidecars[0]
	client := dial(t, s.RLS, nil)
	ctx := t.Context()
	if over := askAbout(ctx, t, client, "before", 0, known, spent); over > 0 {
		t.Fatalf("%d of %d keys are over before", over, known)
	}
	if over := askAbout(ctx, t, client, "over", 0, known, limit+1); over != known {
		t.Fatalf("%d of %d keys are over", over, known)
	}

	began := time.Now()
	refused := flood(ctx, t, client, n)
	took := time.Since(began)
	rss, err := s.RSS()
	if err != nil {
		t.Fatal(err)
	}
	fam := metrics(t, s.Metrics)
	kept, overflowed := value(fam, "keyward_keys", "table", "owned"), value(fam, "keyward_overflow_keys_total")
	t.Logf("%d keys in %v; %.0f counted exactly, at least %.0f by sketch, %d refused without cause (%.3f %%); %d MiB resident",
		n, took.Round(100*time.Millisecond), kept, overflowed, refused, 100*float64(refused)/float64(n), rss>>20)
	if kept > room {
		t.Errorf("%v counters in a table for %d", kept, room)
	}
	if rss > most {
		t.Errorf("%d MiB resident", rss>>20)
	}
	if over := askAbout(ctx, t, client, "over", 0, known, 1); over != known {
		t.Errorf("%d of %d keys that were over are so after the flood", over, known)
	}
	if over := askAbout(ctx, t, client, "before", 0, known, limit-spent); over > 0 {
		t.Errorf("%d of %d keys have less left than before the flood", over, known)
	}
	if over := askAbout(ctx, t, client, "before", 0, known, 1); over != known {
		t.Errorf("%d of %d keys are over when their limit is spent", over, known)
	}
}

// flood asks once about each of n keys and returns how many were refused.
func flood(ctx context.Context, t *testing.T, client rlsv3.RateLimitServiceClient, n int) int {
	t.Helper()
	const each = 250
	var next, refused atomic.Int64
	var asking sync.WaitGroup
	for range 8 {
		asking.Go(func() {
			for !t.Failed() {
				first := int(next.Add(each)) - each
				if first >= n {
					return
				}
				refused.Add(int64(askAbout(ctx, t, client, "flood", first, min(each, n-first), 1)))
			}
		})
	}
	asking.Wait()
	return int(refused.Load())
}

// askAbout asks about a number of keys for so many hits each, many in a request, and returns how many are over.
func askAbout(ctx context.Context, t *testing.T, client rlsv3.RateLimitServiceClient, prefix string, first, n int, hits uint32) (over int) {
	t.Helper()
	for n > 0 {
		req := &rlsv3.RateLimitRequest{Domain: "app", HitsAddend: hits}
		k := min(n, 250)
		for i := range k {
			req.Descriptors = append(req.Descriptors, &ratelimitv3.RateLimitDescriptor{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{
				{Key: "client", Value: prefix + "-" + strconv.Itoa(first+i)},
			}})
		}
		first, n = first+k, n-k
		c, cancel := context.WithTimeout(ctx, 10*time.Second)
		res, err := client.ShouldRateLimit(c, req)
		cancel()
		if err != nil {
			t.Error(err)
			return over
		}
		for _, st := range res.Statuses {
			if st.Code == rlsv3.RateLimitResponse_OVER_LIMIT {
				over++
			}
		}
	}
	return over
}
