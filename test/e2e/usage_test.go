package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/lab"
)

const usageRules = `domain: app
descriptors:
  - key: usage
    rate_limit: {unit: day, requests_per_unit: 1000}
`

// TestUsageNeverFalls kills the owner of a key while another member is asked for the key's usage all the time: the
// number never falls, whether the owner, a replica or an earlier answer is its source.
func TestUsageNeverFalls(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": usageRules}, Expect: 3})
	members := names(3)
	start(t, l, members...)
	victim, asked := l.Sidecars[0], l.Sidecars[1]
	key := ""
	for k, o := range owners(t, l, members, distinctKeys("u", 60)) {
		if o == victim.Name {
			key = k
		}
	}
	client := dial(t, asked.RLS, nil)
	ask(t, client, request("app", 40, "usage", key))
	ask(t, dial(t, victim.RLS, nil), request("app", 20, "usage", key))
	awaitReplicas(t, victim)
	var last api.CounterStatus
	sources := map[string]int{}
	read := func() api.CounterStatus {
		c, err := lab.CounterOf(t.Context(), asked.Metrics, "app", "usage", key)
		if err != nil {
			t.Fatal(err)
		}
		if c.Window == last.Window && c.Count < last.Count {
			t.Errorf("usage fell from %d (%s by %s) to %d (%s by %s)", last.Count, last.Source, last.Owner, c.Count, c.Source, c.Owner)
		}
		last = c
		sources[c.Source]++
		return c
	}
	if c := read(); c.Count != 60 || c.Authority != "full" || c.Source != "owner" {
		t.Errorf("before: %+v", c)
	}
	victim.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	degraded := false
	if err := lab.Await(ctx, "a new owner", func(context.Context) error {
		c := read()
		if degraded = degraded || c.Authority != "full"; c.Authority != "full" || c.Owner == victim.Name {
			return fmt.Errorf("%+v", c)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	ask(t, client, request("app", 5, "usage", key))
	if c := read(); c.Count < 65 || c.Source != "owner" {
		t.Errorf("after: %+v", c)
	}
	if !degraded || sources["owner"] == 0 || len(sources) < 2 {
		t.Errorf("the owner was never away: %v", sources)
	}
	t.Logf("%d readings by source: %v", sources["owner"]+sources["recorded"]+sources["last_answer"], sources)
}
