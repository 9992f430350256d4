package e2e

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/lab"
)

const reclaimRules = `domain: app
descriptors:
  - key: crash
    rate_limit: {unit: year, requests_per_unit: 2000}
    metadata: {keyward: {mechanism: lease, lease_min: 100, ttl: 1h, reclaim: crash, audit: true}}
  - key: none
    rate_limit: {unit: year, requests_per_unit: 2000}
    metadata: {keyward: {mechanism: lease, lease_min: 100, ttl: 1h, reclaim: none}}
`

// TestReclaimAfterACrash kills a member that holds leases. With reclaim: crash, the owner lends its hits again as soon as
// the cluster has declared the member failed, long before the TTL has passed, and exports how many these are. With
// reclaim: none, they remain charged.
func TestReclaimAfterACrash(t *testing.T) {
	const limit = 2000
	l := newLab(t, lab.Options{
		Rules: map[string]string{"app.yaml": reclaimRules}, Expect: 3, Args: []string{"--detection", "1s", "--decision-timeout", "1s"},
	})
	members, log := names(3), filepath.Join(t.TempDir(), "audit.log")
	for i, n := range members {
		var args []string
		if i == 0 {
			args = []string{"--audit-log", log}
		}
		if _, err := l.AddSidecar(n, args...); err != nil {
			t.Fatal(err)
		}
	}
	awaitRing(t, l, members...)
	owner, holder, other := l.Sidecars[0], l.Sidecars[1], l.Sidecars[2]
	key := ownedBy(t, l, members, "reclaim", owner.Name)
	rules, admitted := []string{"crash", "none"}, map[string]int{}
	spend := func(s *lab.Sidecar, rule string, n int) {
		t.Helper()
		admitted[rule] += admittedOf(t, dial(t, s.RLS, nil), n, rule, key)
	}
	counted := func(rule string) int {
		t.Helper()
		c, err := lab.CounterOf(t.Context(), owner.Metrics, "app", rule, key)
		if err != nil || c.Source != "owner" {
			t.Fatalf("%+v, %v", c, err)
		}
		return int(c.Count)
	}
	await := func(what string, ok func() error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if err := lab.Await(ctx, what, func(context.Context) error { return ok() }); err != nil {
			t.Fatal(err)
		}
	}
	await("leases of "+holder.Name, func() error {
		for _, rule := range rules {
			spend(holder, rule, 1)
			if lent := counted(rule) - admitted[rule]; lent < 20 {
				return fmt.Errorf("rule %s: %d hits are lent", rule, lent)
			}
		}
		return nil
	})
	holder.Kill()
	awaitRing(t, l, owner.Name, other.Name)
	var reclaimed float64
	await("the lease of rule crash", func() error {
		if reclaimed = value(metrics(t, owner.Metrics), "keyward_lease_hits_total", "event", "reclaimed"); reclaimed == 0 {
			return fmt.Errorf("nothing is reclaimed")
		}
		return nil
	})
	lost := counted("none") - admitted["none"]
	if lost < 20 {
		t.Errorf("rule none: %d hits of the lease are charged", lost)
	}
	bound := value(metrics(t, owner.Metrics), "keyward_overadmission_bound_by_cause", "cause", "reclaim")
	if bound != reclaimed {
		t.Errorf("the bound is %v, and %v hits were reclaimed", bound, reclaimed)
	}
	for _, rule := range rules { // the other member leases what it admits
		spend(other, rule, limit)
		spend(owner, rule, limit)
	}
	if n := admitted["crash"]; n < limit || n > limit+int(bound) {
		t.Errorf("reclaim: crash: %d were admitted, want %d, and at most %v more", n, limit, bound)
	}
	if n := admitted["none"]; n != limit-lost {
		t.Errorf("reclaim: none: %d were admitted, want %d without the %d of the lost lease", n, limit, lost)
	}
	if n := value(metrics(t, owner.Metrics), "keyward_lease_hits_total", "event", "reclaimed"); n != reclaimed {
		t.Errorf("%v hits were reclaimed later", n-reclaimed)
	}
	var e api.Explanation
	read(t, owner, "/v1/explain?"+url.Values{"domain": {"app"}, "key": {"crash=" + key}}.Encode(), &e)
	await("a record", func() error {
		for _, r := range auditRecords(t, log) {
			if r.Kind == "reclaim" && r.Hits == uint64(reclaimed) && r.Used > 0 && r.Digest == e.Digest {
				return nil
			}
		}
		return fmt.Errorf("none of %v hits in %+v", reclaimed, auditRecords(t, log))
	})
	t.Logf("%v hits were reclaimed; %d and %d of %d admitted", reclaimed, admitted["crash"], admitted["none"], limit)
}
