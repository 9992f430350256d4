package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/internal/lab"
)

// TestBurstAtANonOwner asks the member that is neither owner nor successor 60,000 times at once, one in 60 about a key that is spent
// and as many about one that is not. Nothing fails, so no answer may come from a share of the limit, however late it is.
func TestBurstAtANonOwner(t *testing.T) {
	const limit, burst = 1000, 60_000
	rules := fmt.Sprintf("domain: app\ndescriptors:\n  - key: k\n    rate_limit: {unit: year, requests_per_unit: %d}\n", limit)
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": rules}, Expect: 3})
	members := names(3)
	start(t, l, members...)
	for _, c := range []struct {
		name   string
		wait   time.Duration // 0: as long as it takes
		shares bool          // a member that gets no processor for a quarter of a second is not known to be alive
	}{
		{"no deadline", 0, false},
		{"5 s", 5 * time.Second, false},
		{"the default of Envoy", 20 * time.Millisecond, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			spent, fresh := twoOfOneOwner(t, l, members, c.name)
			owner, asked := strangerTo(t, l, members, spent)
			if res := ask(t, dial(t, owner.RLS, nil), request("app", limit, "k", spent)); res.OverallCode != rlsv3.RateLimitResponse_OK {
				t.Fatalf("%v", res)
			}
			got := storm(t, asked.RLS, burst, c.wait, func(i int) string {
				switch i % 60 {
				case 0:
					return spent
				case 1:
					return fresh
				}
				return fmt.Sprintf("%s/other-%d", c.name, i%5000)
			})
			shares := sum(t, l, "keyward_authority_total", "authority", "share")
			t.Logf("spent: %+v, fresh: %+v; %v were shed, %v answers from shares", *got[spent], *got[fresh], sum(t, l, "keyward_authority_total", "authority", "shed"), shares)
			if got[fresh].admitted > limit {
				t.Errorf("%d admitted of %d", got[fresh].admitted, limit)
			}
			if c.shares {
				return
			}
			if shares > 0 || got[spent].admitted > 0 {
				t.Errorf("%v answers from shares, %d more of a key that was spent", shares, got[spent].admitted)
			}
			if f := got[fresh]; f.admitted < f.answered*95/100 { // as many are asked for as there are
				t.Errorf("%d admitted of %d", f.admitted, f.answered)
			}
		})
	}
}

// twoOfOneOwner are two keys with the same owner and the same successor.
func twoOfOneOwner(t *testing.T, l *lab.Lab, members []string, prefix string) (a, b string) {
	t.Helper()
	keys := envoyKeys(prefix, 200)
	first := owners(t, l, members, keys)
	without := slices.DeleteFunc(slices.Clone(members), func(m string) bool { return m == first[keys[0]] })
	second := owners(t, l, without, keys)
	for _, k := range keys[1:] {
		if first[k] == first[keys[0]] && second[k] == second[keys[0]] {
			return keys[0], k
		}
	}
	t.Fatal("no two keys of one owner and one successor")
	return "", ""
}

// strangerTo are the owner of key and the member that is neither its owner nor its successor.
func strangerTo(t *testing.T, l *lab.Lab, members []string, key string) (owner, stranger *lab.Sidecar) {
	t.Helper()
	rest := members
	for range 2 {
		o := owners(t, l, rest, []string{key})[key]
		rest = slices.DeleteFunc(slices.Clone(rest), func(m string) bool { return m == o })
		if owner == nil {
			owner = sidecar(l, o)
		}
	}
	return owner, sidecar(l, rest[0])
}

func sidecar(l *lab.Lab, name string) *lab.Sidecar {
	return l.Sidecars[slices.IndexFunc(l.Sidecars, func(s *lab.Sidecar) bool { return s.Name == name })]
}

// outcome counts the results of the calls for one key.
type outcome struct{ answered, admitted int }

// storm asks about key(0) to key(n-1) at once over eight connections.
func storm(t *testing.T, addr string, n int, wait time.Duration, key func(int) string) map[string]*outcome {
	t.Helper()
	clients := make([]rlsv3.RateLimitServiceClient, 8)
	for i := range clients {
		clients[i] = dial(t, addr, nil)
		ask(t, clients[i], request("app", 1, "k", fmt.Sprint("warm-", i)))
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	got := map[string]*outcome{}
	for i := range n {
		got[key(i)] = &outcome{}
	}
	for i := range n {
		wg.Go(func() {
			ctx := t.Context()
			if wait > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, wait)
				defer cancel()
			}
			res, err := clients[i%len(clients)].ShouldRateLimit(ctx, request("app", 1, "k", key(i)))
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			o := got[key(i)]
			o.answered++
			if res.OverallCode == rlsv3.RateLimitResponse_OK {
				o.admitted++
			}
		})
	}
	wg.Wait()
	return got
}
