package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/internal/lab"
)

// TestSoak lives only with `make deep`: KEYWARD_SOAK says for how long members are restarted, killed and stopped under
// load. After each fault all must agree again, and keys that were not used before must be limited exactly.
func TestSoak(t *testing.T) {
	text := os.Getenv("KEYWARD_SOAK")
	if text == "" {
		t.Skip("`make deep` runs it")
	}
	length, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("KEYWARD_SOAK: %v", err)
	}
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": longRules}, Expect: 3, Args: []string{"--decision-timeout", "1s"}})
	members := names(5)
	start(t, l, members...)
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var load sync.WaitGroup
	for i := range 4 {
		client := dial(t, l.Sidecars[4].RLS, nil) // which no fault touches
		load.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				c, stop := context.WithTimeout(context.Background(), 5*time.Second)
				if _, err := client.ShouldRateLimit(c, request("app", 1, "api_key", fmt.Sprintf("load-%d-%d", i, n%5000))); err != nil {
					t.Error(err)
				}
				stop()
			}
		})
	}
	faults := map[string]func(*lab.Sidecar) error{
		"restarted": func(s *lab.Sidecar) error {
			if err := s.Stop(20 * time.Second); err != nil {
				return err
			}
			return l.Restart(s)
		},
		"killed": func(s *lab.Sidecar) error {
			s.Kill()
			return l.Restart(s)
		},
		"silent": func(s *lab.Sidecar) error {
			if err := s.Pause(); err != nil {
				return err
			}
			<-time.After(time.Duration(1+rand.IntN(6)) * time.Second)
			return s.Signal(syscall.SIGCONT)
		},
	}
	kinds := []string{"restarted", "killed", "silent"}
	for round := 0; ctx.Err() == nil; round++ {
		kind, s := kinds[round%3], l.Sidecars[rand.IntN(4)]
		if err := faults[kind](s); err != nil {
			t.Fatal(err)
		}
		awaitRing(t, l, members...)
		// A test of its own closes its connections, so that what memory grows by is the members' own.
		t.Run(fmt.Sprintf("%d %s was %s", round, s.Name, kind), func(t *testing.T) { soakExact(t, l, fmt.Sprintf("fresh-%d", round)) })
		if round%10 == 0 {
			rss, _ := l.Sidecars[4].RSS()
			t.Logf("round %d: %s was %s; %d MiB", round, s.Name, kind, rss>>20)
		}
	}
	load.Wait()
}

// soakExact asks all members for new keys and wants exactly their limits. A member that has only just been reached again
// may be answered for once or twice; each such answer may add a hit, and is counted.
func soakExact(t *testing.T, l *lab.Lab, prefix string) {
	t.Helper()
	const limit = 100 // of longRules
	degraded := sum(t, l, "keyward_degraded_total")
	var admitted [5]int
	for _, s := range l.Sidecars {
		client := dial(t, s.RLS, nil)
		for range 40 { // 5 members x 40 = twice the limit
			for k := range admitted {
				if ask(t, client, request("app", 1, "api_key", fmt.Sprintf("%s-%d", prefix, k))).OverallCode == rlsv3.RateLimitResponse_OK {
					admitted[k]++
				}
			}
		}
	}
	degraded = sum(t, l, "keyward_degraded_total") - degraded
	for k, n := range admitted {
		if n < limit || float64(n) > limit+degraded {
			t.Errorf("%s-%d: %d admitted, limit %d, %v answers were degraded", prefix, k, n, limit, degraded)
		}
	}
}
