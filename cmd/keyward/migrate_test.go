package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/keyward/keyward/internal/ops/migrate"
)

const movedManifest = "../../internal/ops/migrate/testdata/kubernetes.yaml"

func TestMigrate(t *testing.T) {
	out, err := run(t, "migrate", "-f", movedManifest)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Deployment/ratelimit, 3 replicas: envoyproxy/ratelimit:9d8d70a8 becomes ghcr.io/keyward/keyward:", "2 rules of 1 files stay as they are",
		"goes away  REDIS_URL", "debug (ConfigMap ratelimit-env)", "kubectl -n edge apply -f keyward.yaml", "kubectl -n edge delete service ratelimit-gossip",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	out, err = run(t, "migrate", "-f", movedManifest, "-o", "json", "--all")
	var r migrate.MigrationPlan
	if err != nil || json.Unmarshal([]byte(out), &r) != nil || len(r.Variables) < 100 || len(r.Steps) < 5 {
		t.Errorf("%v %d variables", err, len(r.Variables))
	}
}

func TestMigrateWrites(t *testing.T) {
	dir := t.TempDir()
	patch, values := filepath.Join(dir, "keyward.yaml"), filepath.Join(dir, "values.yaml")
	if out, err := run(t, "migrate", "-f", movedManifest, "--patch", patch, "--values", values, "--image", "example.org/keyward:1"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range [][2]string{
		{patch, "image: example.org/keyward:1 # pinned on purpose"}, {values, "replicaCount: 3"},
		{values, "networkPolicy:\n    envoyFrom:\n        - namespaceSelector:\n            matchLabels:\n                kubernetes.io/metadata.name: ingress\n"},
	} {
		if b, err := os.ReadFile(want[0]); err != nil || !strings.Contains(string(b), want[1]) {
			t.Errorf("%s: %v, no %q", want[0], err, want[1])
		}
	}
	out, err := run(t, "migrate", "-f", movedManifest, "--patch", "-", "--replicas", "1")
	if err != nil || !strings.HasPrefix(out, "# The rate limit service of the edge.\n") || strings.Contains(out, "KEYWARD_JOIN") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestMigrateOfAnEnvironment(t *testing.T) {
	dir := t.TempDir()
	env, rules := filepath.Join(dir, "old.env"), filepath.Join(dir, "rules")
	if err := os.MkdirAll(rules, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{env: "BACKEND_TYPE=memcache\nMEMCACHE_HOST_PORT=m:11211\n", filepath.Join(rules, "a.yaml"): "domain: a\ndescriptors: [{key: k, rate_limit: {unit: eon, requests_per_unit: 1}}]\n"} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out, err := run(t, "migrate", "--env-file", env, "--rules", rules)
	if err == nil || !strings.Contains(err.Error(), "the rules do not load") || !strings.Contains(out, "With memcached, the service counts after it responds") || !strings.Contains(out, "# image: ") {
		t.Errorf("%v\n%s", err, out)
	}
	if !strings.Contains(out, "1. Name the Envoys.") || !strings.Contains(out, "# fill in networkPolicy.envoyFrom in values.yaml") {
		t.Errorf("it does not say first that the Envoys are to be named:\n%s", out)
	}
	for want, args := range map[string][]string{
		"what is to be moved": {}, "--patch wants -f": {"--env-file", env, "--patch", "-"}, "want 1 to": {"--env-file", env, "--replicas", "-1"},
		"no such file": {"-f", env + "x"}, "container absent": {"-f", movedManifest, "--container", "absent"},
	} {
		if _, err := run(t, append([]string{"migrate"}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", args, err, want)
		}
	}
}
