package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

const zoneRules = `domain: app
descriptors:
  - key: client
    rate_limit: {unit: year, requests_per_unit: 1000}
`

// TestLossOfAZone kills both members of one of three zones at once, and reads what the next owners count of 60 of their
// keys. With --zone, that is all that was admitted, except U. Without it, the counters of some keys are lost.
func TestLossOfAZone(t *testing.T) {
	const charged, u = 900, 10 // u is 1 % of the limit
	members := names(6)
	for _, zones := range []bool{true, false} {
		t.Run(fmt.Sprintf("zones %v", zones), func(t *testing.T) {
			l := newLab(t, lab.Options{
				Rules: map[string]string{"app.yaml": zoneRules}, Expect: 6,
				Args: []string{"--detection", "1s", "--nref-decay", "1s", "--lost-state", "full"},
			})
			for i, n := range members {
				var args []string
				if zones {
					args = []string{"--zone", fmt.Sprintf("zone-%d", i/2)}
				}
				if _, err := l.AddSidecar(n, args...); err != nil {
					t.Fatal(err)
				}
			}
			awaitRing(t, l, members...)
			keys := keysOf(t, l, members, 60, "pod-a", "pod-b")
			client := dial(t, l.Sidecars[2].RLS, nil)
			for _, key := range keys {
				ask(t, client, request("app", charged-u, "client", key))
				ask(t, client, request("app", u, "client", key)) // no second member needs to have these before the reply
			}
			l.Sidecars[0].Kill()
			l.Sidecars[1].Kill()
			awaitRing(t, l, members[2:]...)
			lost := 0
			for _, key := range keys {
				count := countAfterTakeover(t, l.Sidecars[2], key)
				if count > charged {
					t.Errorf("key %s: %d counted, %d charged", key, count, charged)
				}
				if count < charged-u {
					lost++
				}
			}
			t.Logf("the counts of %d of %d keys are lost", lost, len(keys))
			if zones && lost > 0 {
				t.Errorf("%d keys lack more than U", lost)
			}
			if !zones && lost == 0 {
				t.Error("no count is lost, so this tests nothing")
			}
		})
	}
}

// keysOf returns n keys of the given owners.
func keysOf(t *testing.T, l *lab.Lab, members []string, n int, of ...string) (keys []string) {
	t.Helper()
	all := distinctKeys("zone", 10*n)
	by := owners(t, l, members, all)
	for _, key := range all {
		for _, owner := range of {
			if by[key] == owner && len(keys) < n {
				keys = append(keys, key)
			}
		}
	}
	if len(keys) < n {
		t.Fatalf("%d of %d keys", len(keys), n)
	}
	return keys
}

// countAfterTakeover returns the count of a key by its new owner. It waits until there is one.
func countAfterTakeover(t *testing.T, s *lab.Sidecar, key string) (count uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "an owner of "+key, func(ctx context.Context) error {
		c, err := lab.CounterOf(ctx, s.Metrics, "app", "client", key)
		if err == nil && c.Source != "owner" {
			err = fmt.Errorf("source %q", c.Source)
		}
		count = c.Count
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return count
}
