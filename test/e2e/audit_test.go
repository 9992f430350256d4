package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/api"
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
	if err := l.Sidecars[2].Stop(20 * time.Second); err != nil { // this ends the window
		t.Fatal(err)
	}
	var firsts, lasts int
	for _, r := range auditRecords(t, file(members[2])) {
		switch r.Kind {
		case "degraded_first":
			firsts++
		case "degraded_last":
			if lasts++; r.Since == nil || r.Hits == 0 || r.Since.After(r.Time) {
				t.Errorf("%+v", r)
			}
		}
	}
	if firsts == 0 || firsts != lasts {
		t.Errorf("%d records of first and %d of last decisions without the owner", firsts, lasts)
	}
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
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b = b[:bytes.LastIndexByte(b, '\n')+1] // the rest is being written
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		var r audit.Record
		if err := json.Unmarshal(s.Bytes(), &r); err != nil {
			t.Fatalf("%s: %v", s.Bytes(), err)
		}
		all = append(all, r)
	}
	return all
}

const movesRules = `domain: app
descriptors:
  - key: audited
    rate_limit: {unit: year, requests_per_unit: 100000}
    metadata: {keyward: {audit: true}}
  - key: plain
    rate_limit: {unit: year, requests_per_unit: 100000}
`

// TestAuditOfMoves requires that an owner writes one record of each audited key that it releases to a member that joins,
// and that the members that take over the keys of a killed one write one of each.
func TestAuditOfMoves(t *testing.T) {
	l := newLab(t, lab.Options{
		Rules: map[string]string{"app.yaml": movesRules}, Expect: 2, Env: []string{"LOG_LEVEL=error"}, Args: []string{"--detection", "1s"},
	})
	dir, members := t.TempDir(), names(3)
	file := func(name string) string { return filepath.Join(dir, name+".audit") }
	add := func(name string) *lab.Sidecar {
		s, err := l.AddSidecar(name, "--audit-log", file(name))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first := add(members[0])
	add(members[1])
	awaitRing(t, l, members[:2]...)
	client := dial(t, first.RLS, nil)
	keys := distinctKeys("m", 60)
	for _, k := range keys {
		ask(t, client, request("app", 1, "plain", k))
		ask(t, client, request("app", 1, "audited", k))
	}
	joined := add(members[2])
	awaitRing(t, l, members...)

	// Of each key that moves, by its digest: the member that releases it, which also takes it over.
	before, after := owners(t, l, members[:2], keys), owners(t, l, members, keys)
	want := map[string]string{}
	var moved []string
	for _, k := range keys {
		if after[k] == joined.Name {
			var e api.Explanation
			read(t, first, "/v1/explain?"+url.Values{"domain": {"app"}, "key": {"audited=" + k}}.Encode(), &e)
			want[e.Digest] = before[k]
			moved = append(moved, k)
		}
	}
	if len(want) < 5 {
		t.Fatalf("only %d keys move", len(want))
	}
	await := func(kind string, again func()) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if err := lab.Await(ctx, "records of kind "+kind, func(context.Context) error {
			again()
			got := map[string]string{}
			for _, n := range members {
				for _, r := range auditRecords(t, file(n)) {
					switch {
					case r.Kind != kind:
						continue
					case got[r.Digest] != "" || r.Peer != joined.Name || r.Used == 0 || r.Limit != 100000:
						t.Fatalf("%+v: twice, or of another event", r)
					}
					got[r.Digest] = n
				}
			}
			if !maps.Equal(got, want) {
				return fmt.Errorf("%d of %d", len(got), len(want))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	await("transfer", func() {})
	awaitReplicas(t, joined)
	joined.Kill()
	awaitRing(t, l, members[:2]...)
	await("takeover", func() {
		for _, k := range moved {
			ask(t, client, request("app", 1, "audited", k))
		}
	})
	want = map[string]string{} // of pod-b, which leaves, all keys go to pod-a
	for _, k := range keys {
		if before[k] == members[1] {
			var e api.Explanation
			read(t, first, "/v1/explain?"+url.Values{"domain": {"app"}, "key": {"audited=" + k}}.Encode(), &e)
			want[e.Digest] = members[0]
		}
	}
	if err := l.Sidecars[1].Stop(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, r := range auditRecords(t, file(members[1])) {
		if r.Kind == "transfer" && r.Peer == members[0] {
			got[r.Digest] = r.Peer
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("%d records of a member that leaves, want %d", len(got), len(want))
	}
	for _, s := range l.Sidecars[:1] {
		if lost := value(metrics(t, s.Metrics), "keyward_audit_records_total", "result", "lost"); lost != 0 {
			t.Errorf("%s has lost %v records", s.Name, lost)
		}
	}
}
