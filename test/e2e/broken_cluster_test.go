package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// ailing is something that is wrong with a cluster whose members are all ready.
type ailing struct {
	name, what    string
	check, finds  string // of the doctor
	alert, metric string // "-": none; the metric is above 0 at some member
}

func (x *ailing) judge(t *testing.T, members ...*lab.Sidecar) {
	t.Helper()
	var pages []string
	for _, s := range members {
		pages = append(pages, s.Metrics)
	}
	p := plant{x.name, x.check, "", x.finds, ""}
	p.awaitWrong(t, "--member", strings.Join(pages, ","))
	if x.metric == "-" {
		return
	}
	alertsOn(t, x.alert, x.metric)
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	if err := lab.Await(ctx, x.name+": "+x.metric, func(context.Context) error {
		total := 0.0
		for _, s := range members {
			total += value(metrics(t, s.Metrics), x.metric)
		}
		if total <= 0 {
			return fmt.Errorf("it is %v", total)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// awaitWrong is await for a finding that is a warning or a failure.
func (p *plant) awaitWrong(t *testing.T, args ...string) {
	t.Helper()
	end := time.Now().Add(40 * time.Second)
	for {
		all, _ := examine(t.Context(), t, args...)
		if slices.ContainsFunc(all, func(d diagnosis) bool {
			return d.Check == p.check && d.Level != "ok" && strings.Contains(d.Text, p.text) && d.Advice != ""
		}) {
			return
		}
		if time.Now().After(end) {
			t.Errorf("doctor does not find %s: %+v", p.name, all)
			return
		}
		steadily(500 * time.Millisecond)
	}
}

// sidecarBuild builds a sidecar that is another one, and returns the folder of its binaries.
func sidecarBuild(t *testing.T, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("go", append(append([]string{"build", "-trimpath", "-o", filepath.Join(dir, "sidecar")}, flags...), "../../cmd/sidecar")...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// TestAilingClusters breaks clusters in ways that leave all members ready, because ending one would not help, and requires that the doctor and a metric show it.
func TestAilingClusters(t *testing.T) {
	skewed := ailing{"clock", "a member's clock is 3 s ahead", "clocks", "the clock of odd is 3", "KeywardSkew", "keyward_peer_skew_seconds"}
	version := ailing{"version", "members of different versions", "versions", "versions differ", "-", "-"}
	full := ailing{"full", "a full table", "memory", "had no room for", "KeywardOverflow", "keyward_overflow_keys_total"}
	cut := ailing{"cut", "a partition", "ring", "members use different rings", "KeywardMemberMissing", "keyward_cluster_missing"}
	t.Run("odd", func(t *testing.T) {
		l := newLab(t, lab.Options{Expect: 3, Rules: map[string]string{"app.yaml": brokenRules}})
		start(t, l, "pod-a", "pod-b")
		usual := l.Bin
		l.Bin = sidecarBuild(t, "-tags", "skewed", "-ldflags", "-X github.com/keyward/keyward/internal/app.Version=v0.0.1")
		odd, err := l.AddSidecar("odd", "--max-keys", "64")
		l.Bin = usual
		if err != nil {
			t.Fatal(err)
		}
		awaitPage(t, odd.Metrics)
		skewed.judge(t, l.Sidecars...)
		version.judge(t, l.Sidecars...)
		client := dial(t, odd.RLS, nil)
		for i := range 600 {
			ask(t, client, request("app", 1, "user", fmt.Sprint("full-", i)))
		}
		full.judge(t, l.Sidecars...)
	})
	t.Run("cut", func(t *testing.T) {
		needsNamespaces(t)
		l := newLab(t, lab.Options{Expect: 3, Rules: map[string]string{"app.yaml": brokenRules}})
		network := newNetwork(t, l)
		networkFleet(t, l, network, names(3))
		if err := network.Cut([]string{"pod-c"}, []string{"pod-a", "pod-b"}); err != nil {
			t.Fatal(err)
		}
		cut.judge(t, l.Sidecars...)
	})
	var b strings.Builder
	fmt.Fprintln(&b, "| trouble | doctor | metric | alert |\n|---|---|---|---|")
	for _, x := range []ailing{skewed, version, full, cut} {
		metric, alert := "-", "-"
		if x.metric != "-" {
			metric, alert = "`"+x.metric+"`", fmt.Sprintf("[%s](runbooks/%s.md)", x.alert, x.alert)
		}
		fmt.Fprintf(&b, "| %s | %s: `%s` | %s | %s |\n", x.what, x.check, x.finds, metric, alert)
	}
	compareTable(t, "TestAilingClusters", b.String())
}
