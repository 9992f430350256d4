package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/lab"
)

// TestBurstAtANonOwner asks the member that is neither owner nor heir 60,000 times at once, one in 60 about a key that is spent
// and as many about one that is not. Nothing fails, so no answer may come from a share of the limit, however late it is.
func TestBurstAtANonOwner(t *testing.T) {
	const limit, burst = 1000, 60_000
	rules := fmt.Sprintf("domain: app\ndescriptors:\n  - key: k\n    rate_limit: {unit: year, requests_per_unit: %d}\n", limit)
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": rules}, Expect: 3})
	members := names(3)
	start(t, l, members...)
	for _, c := range []struct {
		name  string
		wait  time.Duration // 0: as long as it takes
		least int           // of the new key, of 1000 that are asked for
	}{
		{"no deadline", 0, 950},
		{"5 s", 5 * time.Second, 950},
		{"the default of Envoy", 20 * time.Millisecond, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			spent, fresh := twoOfOneOwner(t, l, members, c.name)
			owner, asked := strangerTo(t, l, members, spent)
			if res := ask(t, dial(t, owner.RLS, nil), request("app", limit, "k", spent)); res.OverallCode != rlsv3.RateLimitResponse_OK {
				t.Fatalf("%v", res)
			}
			admitted, answered := storm(t, asked.RLS, burst, c.wait, func(i int) string {
				switch i % 60 {
				case 0:
					return spent
				case 1:
					return fresh
				}
				return fmt.Sprintf("%s-%d", c.name, i%5000)
			})
			t.Logf("%d of %d answered; admitted: spent %d, fresh %d; shed %v, shares %v", answered, burst, admitted[spent], admitted[fresh],
				sum(t, l, "keyward_authority_total", "authority", "shed"), sum(t, l, "keyward_authority_total", "authority", "share"))
			if admitted[spent] > 0 {
				t.Errorf("%d more of a key that was spent", admitted[spent])
			}
			if n := admitted[fresh]; n > limit || n < c.least {
				t.Errorf("%d admitted of a new key, want %d to %d", n, c.least, limit)
			}
		})
	}
	if n := sum(t, l, "keyward_authority_total", "authority", "share"); n > 0 {
		t.Errorf("%v answers from shares, although all members are alive", n)
	}
}

// twoOfOneOwner are two keys with the same owner and the same heir.
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
	t.Fatal("no two keys of one owner and one heir")
	return "", ""
}

// strangerTo are the owner of key and the member that is neither its owner nor its heir.
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

// storm asks about key(0) to key(n-1) at once over eight connections, and counts what was admitted of each.
func storm(t *testing.T, addr string, n int, wait time.Duration, key func(int) string) (admitted map[string]int, answered int64) {
	t.Helper()
	clients := make([]rlsv3.RateLimitServiceClient, 8)
	for i := range clients {
		clients[i] = dial(t, addr, nil)
		ask(t, clients[i], request("app", 1, "k", fmt.Sprint("warm-", i)))
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var done atomic.Int64
	admitted = map[string]int{}
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
			done.Add(1)
			if res.OverallCode == rlsv3.RateLimitResponse_OK {
				mu.Lock()
				admitted[key(i)]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return admitted, done.Load()
}
