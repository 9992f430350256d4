package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/internal/lab"
)

func rulesWithLimit(n int) map[string]string {
	return map[string]string{"app.yaml": fmt.Sprintf("domain: app\ndescriptors:\n  - key: k\n    rate_limit: {unit: hour, requests_per_unit: %d}\n", n)}
}

// TestRulesSwitchTogether changes the files of three members seconds apart: no member switches before all have prepared.
func TestRulesSwitchTogether(t *testing.T) {
	l := newLab(t, lab.Options{Rules: rulesWithLimit(10), Expect: 3})
	start(t, l, names(3)...)
	var clients []rlsv3.RateLimitServiceClient
	for _, s := range l.Sidecars {
		clients = append(clients, dial(t, s.RLS, nil))
	}
	limit := func(i int) uint32 {
		return ask(t, clients[i], peek("app", "k", "x")).Statuses[0].GetCurrentLimit().GetRequestsPerUnit()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	for i, s := range l.Sidecars {
		if err := l.WriteRules(s, rulesWithLimit(20)); err != nil {
			t.Fatal(err)
		}
		if i == 2 {
			break
		}
		// This member has prepared the new version, and still answers by the old one, like the others.
		if err := lab.Await(ctx, s.Name+" to prepare", func(ctx context.Context) error {
			v, err := lab.Cluster(ctx, s.Metrics)
			if err == nil && (v.Rules.Prepared == "" || v.Rules.Prepared == v.Rules.InForce) {
				err = fmt.Errorf("prepared %q, in force %q", v.Rules.Prepared, v.Rules.InForce)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		until := time.Now().Add(2 * time.Second)
		for ; time.Now().Before(until); steadily(5 * time.Millisecond) {
			for m := range l.Sidecars {
				if got := limit(m); got != 10 {
					t.Fatalf("after %d of 3 files changed, %s answers by a limit of %d", i+1, l.Sidecars[m].Name, got)
				}
			}
		}
	}
	if err := lab.Await(ctx, "the new limit everywhere", func(context.Context) error {
		for m := range l.Sidecars {
			if got := limit(m); got != 20 {
				return fmt.Errorf("%s answers by %d", l.Sidecars[m].Name, got)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	v, err := lab.Cluster(ctx, l.Sidecars[0].Metrics)
	if err != nil || len(v.Rules.Versions) != 2 {
		t.Errorf("versions listed: %+v, %v", v.Rules.Versions, err)
	}
}

// TestBadRulesKeepTheOld breaks a file in every way a file can be broken: the old rules stay, the error is counted.
func TestBadRulesKeepTheOld(t *testing.T) {
	l := newLab(t, lab.Options{Rules: rulesWithLimit(10), Expect: 1})
	start(t, l, "pod-a")
	s := l.Sidecars[0]
	client := dial(t, s.RLS, nil)
	bad := []string{
		"domain: app\ndescriptors: [", "\x00\xff", "domain: app\ndescriptors:\n  - key: k\n    rate_limit: {unit: fortnight, requests_per_unit: 1}\n",
		"domain: ''\n", "domain: app\nnonsense: 1\n", "a: &a [*a]\n", strings.Repeat("[", 100_000), "domain: app\ndescriptors: 5\n",
		"domain: app\ndescriptors:\n  - value: 1.5\n", "- 1\n",
	}
	for i, text := range bad {
		before := value(metrics(t, s.Metrics), "ratelimit_service_config_load_error")
		if err := l.WriteRules(s, map[string]string{"app.yaml": text}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		err := lab.Await(ctx, "the error to be counted", func(context.Context) error {
			if n := value(metrics(t, s.Metrics), "ratelimit_service_config_load_error"); n <= before {
				return fmt.Errorf("config_load_error is %v", n)
			}
			return nil
		})
		cancel()
		if err != nil {
			t.Fatalf("bad file %d: %v", i, err)
		}
		if got := ask(t, client, peek("app", "k", "x")).Statuses[0].GetCurrentLimit().GetRequestsPerUnit(); got != 10 {
			t.Errorf("bad file %d: the limit is now %d", i, got)
		}
	}
	if err := l.WriteRules(s, rulesWithLimit(33)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "the mended file", func(context.Context) error {
		if got := ask(t, client, peek("app", "k", "x")).Statuses[0].GetCurrentLimit().GetRequestsPerUnit(); got != 33 {
			return fmt.Errorf("the limit is %d", got)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestCheckAgainst: a changed amount meets the count, a changed unit begins a new one.
func TestCheckAgainst(t *testing.T) {
	dirs := make([]string, 3)
	for i, rule := range []string{"{unit: hour, requests_per_unit: 5}", "{unit: hour, requests_per_unit: 6}", "{unit: day, requests_per_unit: 5}"} {
		dirs[i] = t.TempDir()
		if err := os.WriteFile(filepath.Join(dirs[i], "a.yaml"), []byte("domain: x\ndescriptors:\n  - key: k\n    rate_limit: "+rule+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		dir  string
		warn bool
	}{{dirs[1], false}, {dirs[2], true}} {
		out, err := exec.Command(filepath.Join(bin(t), "keyward"), "check", c.dir, "--against", dirs[0]).CombinedOutput()
		if err != nil || strings.Contains(string(out), "warning: ") != c.warn {
			t.Errorf("%v, %s", err, out)
		}
	}
}

// TestCheck runs `keyward check` as ratelimit_config_check is run.
func TestCheck(t *testing.T) {
	check := func(files map[string]string) (string, int) {
		dir := t.TempDir()
		for n, text := range files {
			if err := os.WriteFile(filepath.Join(dir, n), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command(filepath.Join(bin(t), "keyward"), "check", dir)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	if out, code := check(rulesWithLimit(3)); code != 0 || !strings.Contains(out, "all rate limit configs ok") {
		t.Errorf("good rules: exit %d, %s", code, out)
	}
	if out, code := check(map[string]string{"a.yaml": "domain: x\ndescriptors:\n  - value: y\n"}); code != 1 || !strings.Contains(out, "a.yaml: descriptor has empty key") {
		t.Errorf("an empty key: exit %d, %s", code, out)
	}
	two := map[string]string{"a.yaml": "domain: x\n---\ndomain: y\n"}
	if out, code := check(two); code != 0 || !strings.Contains(out, "document") {
		t.Errorf("two documents: exit %d, %s", code, out)
	}
	hot := map[string]string{"a.yaml": "domain: x\ndescriptors:\n  - key: generic_key\n    value: all\n    rate_limit: {unit: year, requests_per_unit: 4000000000}\n  - key: generic_key\n    value: busy\n    rate_limit: {unit: second, requests_per_unit: 5000}\n"}
	if out, code := check(hot); code != 0 || !strings.Contains(out, "one member") || !strings.Contains(out, "restart") {
		t.Errorf("one hot owner and a year: exit %d, %s", code, out)
	}
}
