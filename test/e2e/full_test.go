package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/internal/lab"
)

// fullRules allow two hits, by each kind of state that a counter may have.
const fullRules = `domain: %s
descriptors:
  - key: fixed
    rate_limit: {unit: year, requests_per_unit: 2}
  - key: log
    rate_limit: {unit: year, requests_per_unit: 2}
    metadata: {keyward: {algorithm: sliding_log}}
  - key: bucket
    rate_limit: {unit: year, requests_per_unit: 2}
    metadata: {keyward: {algorithm: token_bucket}}
`

// TestFullTablesRestart restarts every member of a cluster whose tables are nearly full, full, or more than that. Of keys that
// were spent before no request is admitted again.
func TestFullTablesRestart(t *testing.T) {
	type size struct{ members, fill int }
	sizes, rounds := []size{{3, 72}, {3, 110}}, 1
	if long() {
		sizes, rounds = nil, 3
		for _, members := range []int{3, 5} {
			for _, fill := range []int{50, 72, 90, 110} {
				sizes = append(sizes, size{members, fill})
			}
		}
	}
	for _, s := range sizes {
		for round := range rounds {
			t.Run(fmt.Sprintf("%d members, %d %%, round %d", s.members, s.fill, round+1), func(t *testing.T) { restartFull(t, s.members, s.fill) })
		}
	}
}

func restartFull(t *testing.T, members, fill int) {
	const most = 2000
	l := newLab(t, lab.Options{
		Rules:  map[string]string{"a.yaml": fmt.Sprintf(fullRules, "a"), "b.yaml": fmt.Sprintf(fullRules, "b")},
		Expect: members, Args: []string{"--max-keys", fmt.Sprint(most), "--decision-timeout", "1s"},
	})
	f := newFleet(t, l, names(members)...)
	keys := members * most * fill / 100
	first, second := f.spend(keys), f.spend(keys)
	if spent := first + second; spent > 2*keys || fill <= 90 && spent < 2*keys*95/100 {
		t.Errorf("%d of %d hits are admitted", spent, 2*keys)
	}
	if n := f.spend(keys); n > 0 {
		t.Fatalf("%d of %d keys are not spent", n, keys)
	}
	for _, s := range slices.Clone(f.live) {
		f.restart(s)
	}
	if n := f.spend(keys); n > 0 {
		t.Errorf("%d of %d spent keys are admitted again, over-admission bound %v", n, keys, f.sum("keyward_overadmission_bound"))
	}
	refused := 2*keys - first - second
	t.Logf("%d keys: %d hits refused early; %v keys without a counter, %v sketches", keys, refused, f.sum("keyward_overflow_keys_total"), f.sum("keyward_overflow_sketches"))
	if refused > 0 && f.sum("keyward_authority_total", "authority", "overflow") == 0 {
		t.Errorf("%d hits refused early, and no metric says so", refused)
	}
}

// spend asks for one hit of each of n keys, over members in turn, and returns how many are admitted.
func (f *fleet) spend(n int) (admitted int) {
	f.t.Helper()
	const batch = 100
	kinds, domains := []string{"fixed", "log", "bucket"}, []string{"a", "b"}
	for i := 0; i < n; i += batch {
		r := &rlsv3.RateLimitRequest{Domain: domains[i/batch%2], HitsAddend: 1}
		for k := i; k < min(n, i+batch); k++ {
			r.Descriptors = append(r.Descriptors, request("", 1, kinds[k%3], fmt.Sprint("key-", k)).Descriptors...)
		}
		ctx, cancel := context.WithTimeout(f.t.Context(), 10*time.Second)
		res, err := f.pick().client.ShouldRateLimit(ctx, r)
		cancel()
		if err != nil {
			f.t.Fatal(err)
		}
		for _, s := range res.Statuses {
			if s.Code == rlsv3.RateLimitResponse_OK {
				admitted++
			}
		}
	}
	return admitted
}
