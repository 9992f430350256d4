package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/internal/lab"
)

// durableRules have windows that are in the journal, and a limit of which U, the hits that one member may have recorded
// alone, is durableU.
const durableRules = `domain: app
descriptors:
  - key: async
    rate_limit: {unit: month, requests_per_unit: 400}
    metadata: {keyward: {degraded: fail_closed}}
  - key: strict
    rate_limit: {unit: month, requests_per_unit: 400}
    metadata: {keyward: {degraded: fail_closed, durability: strict}}
`

const (
	durableLimit = 400
	durableU     = durableLimit / 100
	durableKeys  = 20 // of each rule
)

// quotas is the load on the keys of durableRules: how many hits were admitted of each.
type quotas struct {
	rules    []string
	admitted map[string]*atomic.Int64 // by rule and key
}

func newQuotas(rules ...string) *quotas {
	q := &quotas{rules: rules, admitted: map[string]*atomic.Int64{}}
	for _, r := range rules {
		for i := range durableKeys {
			q.admitted[name(r, i)] = new(atomic.Int64)
		}
	}
	return q
}

func name(rule string, i int) string { return fmt.Sprintf("%s/%d", rule, i) }

// spend sends hits to all keys through the given clients, from several goroutines, until until or until every key has
// had n hits. Hits that fail are not counted.
func (q *quotas) spend(t testing.TB, clients []rlsv3.RateLimitServiceClient, n int, until <-chan struct{}) {
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := w; i < n*durableKeys; i += 4 {
				select {
				case <-until:
					return
				default:
				}
				for _, r := range q.rules {
					key := i % durableKeys
					res, err := clients[i%len(clients)].ShouldRateLimit(t.Context(), request("app", 1, r, fmt.Sprint(key)))
					if err == nil && res.OverallCode == rlsv3.RateLimitResponse_OK {
						q.admitted[name(r, key)].Add(1)
					}
				}
			}
		})
	}
	wg.Wait()
}

// killAll ends all sidecars at once, as the loss of a node pool does.
func killAll(l *lab.Lab) {
	var wg sync.WaitGroup
	for _, s := range l.Sidecars {
		wg.Go(s.Kill)
	}
	wg.Wait()
}

// clientsOf connects to all sidecars.
func clientsOf(t testing.TB, l *lab.Lab) (cs []rlsv3.RateLimitServiceClient) {
	t.Helper()
	for _, s := range l.Sidecars {
		cs = append(cs, dial(t, s.RLS, nil))
	}
	return cs
}

// restartAll starts all sidecars again.
func restartAll(t testing.TB, l *lab.Lab) {
	t.Helper()
	var all []string
	for _, s := range l.Sidecars {
		if err := l.Restart(s, dataOf(l, s.Name)...); err != nil {
			t.Fatal(err)
		}
		all = append(all, s.Name)
	}
	awaitRing(t, l, all...)
}

func dataOf(l *lab.Lab, name string) []string {
	if os.Getenv("KEYWARD_NO_DATA") != "" {
		return nil
	}
	return []string{"--data", filepath.Join(l.Dir, "data", name)}
}

// TestKillAll kills all members under load, and starts them again. Every key keeps its count.
func TestKillAll(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": durableRules}, Expect: 3})
	for _, n := range names(3) {
		if _, err := l.AddSidecar(n, dataOf(l, n)...); err != nil {
			t.Fatal(err)
		}
	}
	awaitRing(t, l, names(3)...)
	q := newQuotas("async", "strict")
	stop := make(chan struct{})
	time.AfterFunc(1500*time.Millisecond, func() { killAll(l); close(stop) })
	q.spend(t, clientsOf(t, l), durableLimit, stop)
	for k, n := range q.admitted {
		t.Log(k, n.Load())
	}
	restartAll(t, l)
	q.spend(t, clientsOf(t, l), durableLimit+20, nil)
	for _, r := range q.rules {
		for i := range durableKeys {
			n := q.admitted[name(r, i)].Load()
			t.Log(name(r, i), n)
		}
	}
}
