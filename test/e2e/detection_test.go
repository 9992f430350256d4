package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/lab"
)

// TestHandoffDetections kills the member with the longest --detection, or the one with the shortest, under load. No more
// is admitted than after a crash among equal members, and all decisions have full authority again.
func TestHandoffDetections(t *testing.T) {
	flags := map[string][]string{"pod-a": {"--detection", "1s"}, "pod-c": {"--detection", "8s"}}
	for victim, name := range map[int]string{0: "the fastest", 2: "the slowest"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := faultCases[0]
			l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": handoffRules}, Expect: 3})
			f := newFleetOf(t, l, flags, names(3)...)
			announced(t, f.live[1], map[string]string{"pod-a": "1s", "pod-b": "", "pod-c": "8s"})
			ld := startLoad(t, f, 400)
			before := equal("before", c.rule, c.limit, c.hits, c.keys)
			ld.begin(before)
			ld.spent(before, 0.85)
			seen := observe(t, f.live)
			s := f.live[victim]
			f.kill(s)
			killed := time.Now()
			steadily(8 * time.Second) // the slowest member's time
			t.Logf("the last decision without full authority was made %v after the kill", seen.lastNotFull().Sub(killed))
			f.agree()
			f.revive(s) // with the default, as a rolling change does
			f.admit(s)
			f.agree()
			recovered(t, ld, seen, before, func(a *account) float64 { return a.unreplicated() + shares(seen, a, 2, 3) })
		})
	}
}

// announced requires that a member knows the detection times of all members, and warns about those that differ.
func announced(t *testing.T, s *lab.Sidecar, want map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "the members' detection times", func(ctx context.Context) error {
		var c api.ClusterStatus
		body, err := lab.Get(ctx, "http://"+s.Metrics+"/cluster")
		if err == nil {
			err = json.Unmarshal(body, &c)
		}
		if err != nil {
			return err
		}
		for _, m := range c.Members {
			if m.Detection != want[m.ID] {
				return errors.New(m.ID + " has announced " + m.Detection)
			}
		}
		if log := s.Tail(1 << 20); strings.Count(log, "peer has another --detection") != 2 {
			return errors.New("not two warnings")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
