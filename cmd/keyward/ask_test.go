package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/keyward/keyward/internal/app"
	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/settings"
)

// startSidecar runs a standalone sidecar with rules and flags and returns the address of its rate limit service.
func startSidecar(t *testing.T, rules string, flags ...string) string {
	t.Helper()
	address, err := lab.Ports{}.Addr()
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(address)
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "config"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "config", "rules.yaml"), []byte(rules), 0o644); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{
		"RUNTIME_ROOT": root, "RUNTIME_WATCH_ROOT": "false", "USE_STATSD": "false",
		"GRPC_HOST": "127.0.0.1", "GRPC_PORT": port, "HOST": "127.0.0.1", "PORT": "0", "DEBUG_HOST": "127.0.0.1", "DEBUG_PORT": "0",
	}
	getenv := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	f, err := app.Parse("sidecar", "", append([]string{"--node", "a", "--metrics", "127.0.0.1:0", "--admin", ""}, flags...), func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	s, err := settings.Read(getenv)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		ended <- app.RunSidecar(ctx, app.Setup{Flags: f, Settings: s, Getenv: getenv, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	awaitServing(t, address)
	return address
}

// awaitServing waits until the sidecar at address reports that it is healthy.
func awaitServing(t *testing.T, address string) {
	t.Helper()
	soon := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, MaxDelay: 50 * time.Millisecond, Multiplier: 1.6}}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(soon))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
}

func runAsk(args ...string) (string, error) {
	var out strings.Builder
	root := newRoot()
	root.SetOut(&out)
	root.SetErr(io.Discard)
	root.SetArgs(append([]string{"ask"}, args...))
	err := root.Execute()
	return out.String(), err
}

func TestAsk(t *testing.T) {
	t.Parallel()
	address := startSidecar(t, "{domain: shop, descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 2}}]}")
	args := []string{address, "--domain", "shop", "--key", "user=alice"}

	out, err := runAsk(append(args, "--hits", "0")...)
	if err != nil || !strings.Contains(out, "2 of 2 per hour left") {
		t.Errorf("a look: %v, %q", err, out)
	}
	if _, err := runAsk(append(args, "--times", "3", "--want", "ok,ok,over_limit")...); err != nil {
		t.Error(err)
	}
	if _, err := runAsk(append(args, "--want", "ok")...); err == nil || !strings.Contains(err.Error(), "are over_limit, want ok") {
		t.Errorf("another answer than wanted: %v", err)
	}
	if out, err := runAsk(address, "--domain", "shop", "--key", "other=x"); err != nil || !strings.Contains(out, "no limit") {
		t.Errorf("without a rule: %v, %q", err, out)
	}
	out, err = runAsk(address, "--domain", "shop", "--key", "run=7", "--limit", "5/day", "-o", "json")
	var answers []askAnswer
	if err != nil || json.Unmarshal([]byte(out), &answers) != nil || len(answers) != 1 {
		t.Fatalf("as JSON: %v, %s", err, out)
	}
	if s := answers[0].Statuses[0]; answers[0].Code != "ok" || *s.Limit != 5 || s.Unit != "day" || s.Remaining != 4 {
		t.Errorf("an override: %s", out)
	}
	for _, bad := range [][]string{
		{address, "--domain", "shop"}, {address, "--key", "k=v"}, {address, "--domain", "shop", "--key", "k"},
		append(args, "--limit", "5/eon"), append(args, "--limit", "5"), append(args, "--times", "0"),
		{"127.0.0.1:1", "--domain", "shop", "--key", "k=v", "--timeout", "50ms"},
	} {
		if out, err := runAsk(bad...); err == nil {
			t.Errorf("%q: no error, %q", bad, out)
		}
	}
}
