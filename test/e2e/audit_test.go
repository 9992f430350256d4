package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/audit"
	"github.com/keyward/keyward/internal/lab"
)

const auditRules = `domain: app
descriptors:
  - key: audited
    rate_limit: {unit: day, requests_per_unit: 100000}
    metadata: {keyward: {mechanism: lease, audit: true}}
  - key: plain
    rate_limit: {unit: day, requests_per_unit: 100000}
    metadata: {keyward: {mechanism: lease}}
`

// TestAuditLog requires that members write a record of each lease and of a window without owner to their audit logs, at
// the lowest log level, and only for rules with audit: true.
func TestAuditLog(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": auditRules}, Expect: 3, Env: []string{"LOG_LEVEL=error"}})
	dir, members := t.TempDir(), names(3)
	file := func(name string) string { return filepath.Join(dir, name+".audit") }
	for _, n := range members {
		if _, err := l.AddSidecar(n, "--audit-log", file(n)); err != nil {
			t.Fatal(err)
		}
	}
	awaitRing(t, l, members...)
	victim, asked := l.Sidecars[0], l.Sidecars[1]
	keys := []string{}
	for k, o := range owners(t, l, members, distinctKeys("a", 60)) {
		if o == victim.Name {
			keys = append(keys, k)
		}
	}
	client := dial(t, asked.RLS, nil)
	send := func() {
		for _, rule := range []string{"plain", "audited"} {
			ask(t, client, request("app", 1, rule, keys[0]))
		}
	}
	await := func(name, kind, peer string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := lab.Await(ctx, kind+" in the audit log of "+name, func(context.Context) error {
			send()
			for _, r := range auditRecords(t, file(name)) {
				if r.Kind == kind && r.Peer == peer && r.Member == name {
					return nil
				}
			}
			return fmt.Errorf("no such record")
		}); err != nil {
			t.Fatal(err)
		}
	}
	await(victim.Name, "lease", asked.Name)
	victim.Kill()
	client = dial(t, l.Sidecars[2].RLS, nil) // it has no lease
	await(l.Sidecars[2].Name, "degraded_first", "")
	plain := 0
	for _, n := range members {
		for _, r := range auditRecords(t, file(n)) {
			if r.Key == "plain="+keys[0] {
				plain++
			}
		}
	}
	if plain > 0 {
		t.Errorf("%d records of a rule without audit logs", plain)
	}
}

// auditRecords returns the records of an audit log.
func auditRecords(t *testing.T, path string) (all []audit.Record) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var r audit.Record
		if err := json.Unmarshal(s.Bytes(), &r); err != nil {
			t.Fatalf("%s: %v", s.Bytes(), err)
		}
		all = append(all, r)
	}
	return all
}
