package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// changing lists patterns of output that differ from run to run, and their replacements.
var changing = []struct {
	pattern *regexp.Regexp
	changed string
}{
	{regexp.MustCompile(`\d\d:\d\d:\d\d(\.\d\d\d)?`), "TIME"},
	{regexp.MustCompile(`left=\d+/`), "left=N/"},
	{regexp.MustCompile(`x-ratelimit-reset: \d+`), "x-ratelimit-reset: N"},
	{regexp.MustCompile(`\ds +\d+h\S+\n`), "Ns N\n"},
	{regexp.MustCompile(`resets in \d+ s`), "resets in N s"},
}

// TestCommandsOfASidecar runs the commands that read or change a running sidecar, and compares what they print.
func TestCommandsOfASidecar(t *testing.T) {
	var ports lab.Ports
	metrics, err1 := ports.Addr()
	xds, err2 := ports.Addr()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	file := filepath.Join(t.TempDir(), "a.sock")
	address := startSidecar(t, "{domain: shop, descriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 3}},"+
		" {key: tokens, rate_limit: {unit: year, requests_per_unit: 1000}, metadata: {keyward: {reserve: 100}}}]}",
		"--metrics", metrics, "--xds", xds, "--admin", "unix:"+file)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "the admin socket", func(context.Context) error { _, err := os.Stat(file); return err }); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KEYWARD_MEMBERS", metrics)
	t.Setenv("KEYWARD_ADMIN", "unix:"+file)
	ask := []string{"ask", address, "--domain", "shop", "--key", "user=alice", "--times", "2", "--want", "ok,ok"}
	if out, err := run(t, ask...); err != nil {
		t.Fatal(err, out)
	}
	if out, err := run(t, "ask", address, "--domain", "shop", "--key", "tokens=acme"); err != nil {
		t.Fatal(err, out)
	}
	var all strings.Builder
	for _, line := range []string{
		"ring show", "ring plot", "ring diff --to a,b", "keys get shop user=alice", "keys get shop other=x", "explain shop user=alice",
		"keys reset shop user=alice", "keys get shop user=alice", "keys reset shop other=x", "hot list", "keys get shop tokens=acme", "top --once", "budgets", "xds status",
	} {
		out, err := run(t, strings.Fields(line)...)
		fmt.Fprintf(&all, "$ keyward %s\n%s", line, out)
		if err != nil {
			fmt.Fprintf(&all, "error: %v\n", err)
		}
		all.WriteString("\n")
	}
	fmt.Fprintf(&all, "$ keyward tap -n 1\n%s", tapOne(t, address))
	text := strings.NewReplacer(metrics, "METRICS", file, "SOCKET").Replace(all.String())
	for _, c := range changing {
		text = c.pattern.ReplaceAllString(text, c.changed)
	}
	golden(t, "testdata/commands/sidecar.txt", text)
}

// tapOne returns the output of a tap that ends after one decision. It makes calls until the tap has seen one.
func tapOne(t *testing.T, address string) string {
	t.Helper()
	var out string
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		out, err = run(t, "tap", "-n", "1", "--key", "user=bob")
	}()
	for {
		select {
		case <-done:
			if err != nil {
				t.Error(err)
			}
			return out
		default:
			if _, err := run(t, "ask", address, "--domain", "shop", "--key", "user=bob", "--limit", "1000/hour"); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestRingCommands runs the commands that need no member, and compares what they print.
func TestRingCommands(t *testing.T) {
	vectors, err := filepath.Glob("../../internal/ringcheck/testdata/envoy-ring/*.json")
	if err != nil || len(vectors) == 0 {
		t.Fatal("no recorded rings", err)
	}
	var all strings.Builder
	for _, line := range []string{
		"ring owner --members a,b,c alice bob", "ring owner --members a,b,c alice -o json", "ring show --members a,b,c=2", "ring diff --members a,b,c --to a,b",
		"ring diff --members a,b --to a,b", "ring owner --members a,a k", "ring owner --members a=0 k", "ring check absent.json",
	} {
		out, err := run(t, strings.Fields(line)...)
		fmt.Fprintf(&all, "$ keyward %s\n%s", line, out)
		if err != nil {
			fmt.Fprintf(&all, "error: %v\n", err)
		}
		all.WriteString("\n")
	}
	golden(t, "testdata/commands/ring.txt", all.String())
	out, err := run(t, append([]string{"ring", "check"}, vectors...)...)
	if err != nil || !strings.HasSuffix(out, " passed, 0 failed\n") {
		t.Errorf("%v\n%s", err, out)
	}
}
