package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/federation/remote"
	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/limit"
)

// asCoordinator is the environment variable that makes the test binary a coordinator.
const asCoordinator = "KEYWARD_TEST_AS_COORDINATOR"

func TestMain(m *testing.M) {
	if os.Getenv(asCoordinator) != "" {
		main()
	}
	os.Exit(m.Run())
}

const layout = `
name: prod
epoch: 7
coordinator: global
regions: [{name: a}, {name: b}]
`

// process is a running coordinator.
type process struct {
	*lab.Process
	t               *testing.T
	listen, metrics string
}

// launch starts a coordinator that ends with the test.
func launch(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{t: t}
	for _, a := range []*string{&p.listen, &p.metrics} {
		var err error
		if *a, err = (lab.Ports{}).Addr(); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "federation.yaml")
	if err := os.WriteFile(file, []byte(layout), 0o644); err != nil {
		t.Fatal(err)
	}
	var err error
	p.Process, err = lab.StartProcess(dir, lab.Spec{
		Name: "coordinator", Path: os.Args[0], Dir: dir,
		Args: append([]string{"--listen", p.listen, "--federation", file}, args...),
		Env:  []string{asCoordinator + "=1", "KEYWARD_METRICS=" + p.metrics, "LOG_LEVEL=info"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("log:\n%s", p.Tail(10_000))
		}
	})
	return p
}

// get requests a page.
func (p *process) get(path string) (status int, body string) {
	res, err := http.Get("http://" + p.metrics + path)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(b)
}

// await waits until a page has a status.
func (p *process) await(path string, want int) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Second)
	defer cancel()
	err := lab.Await(ctx, path, func(context.Context) error {
		if status, body := p.get(path); status != want {
			return fmt.Errorf("%d %s", status, body)
		}
		return nil
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

// lease sends a request of region a.
func (p *process) lease(c *remote.CoordinatorClient, window time.Duration, seq, tokens uint64) federation.PoolGrant {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 5*time.Second)
	defer cancel()
	gs, err := c.Lease(ctx, "a", []federation.PoolRequest{{
		Key: federation.Key{1, uint64(window)}, Rule: limit.Rule{Limit: 1000, Window: window}, Pool: 1000, Epoch: 7,
		Boot: 1, Seq: seq, Tokens: tokens,
	}})
	if err != nil || len(gs) != 1 {
		p.t.Fatal(gs, err)
	}
	return gs[0]
}

// terminate sends SIGTERM, which must end the process in order.
func (p *process) terminate() {
	p.t.Helper()
	if err := p.Stop(5 * time.Second); err != nil || p.ExitCode() != 0 || !strings.Contains(p.Tail(10_000), "coordinator stopped") {
		p.t.Errorf("exit code %d: %v", p.ExitCode(), err)
	}
}

const year = 365 * 24 * time.Hour

// TestProcess starts a coordinator, leases from it and ends it.
func TestProcess(t *testing.T) {
	t.Parallel()
	p := launch(t, "--store", "memory", "--insecure", "--init")
	p.await("/readyz", http.StatusOK)
	p.await("/healthz", http.StatusOK)
	c := remote.Dial(remote.DialOptions{Address: p.listen, Region: "a", Epoch: epochSeven})
	defer c.Close()
	if g := p.lease(c, year, 1, 300); g.Total != 300 || g.Usable != 1000 {
		t.Errorf("%+v", g)
	}
	r := federation.PoolRequest{Epoch: 8, Rule: limit.Rule{Limit: 1, Window: time.Hour}, Seq: 1}
	if gs, err := c.Lease(t.Context(), "a", []federation.PoolRequest{r}); err != nil || len(gs) != 0 {
		t.Errorf("of another layout: %+v %v", gs, err)
	}
	status, metrics := p.get("/metrics")
	for _, want := range []string{
		`keyward_coordinator_requests_total{region="a"} 2`, `keyward_coordinator_requests_total{region="b"} 0`,
		`keyward_coordinator_grants_hits_total{region="a"} 300`, `keyward_coordinator_refused_total{region="a"} 1`,
		`keyward_coordinator_connections{region="a"} 1`, "keyward_coordinator_store_errors_total 0",
		"keyward_coordinator_store_seconds_count 2", "keyward_coordinator_up 1", "keyward_build_info",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("status %d: the metrics do not contain %s:\n%s", status, want, metrics)
		}
	}
	p.terminate()
	if log := p.Tail(10_000); !strings.Contains(log, "shutdown requested") || !strings.Contains(log, "--insecure is set") {
		t.Error("the log lacks a line")
	}
}

// TestMemoryLendsTheRest requires that a coordinator which has just started lends only the rest of windows.
func TestMemoryLendsTheRest(t *testing.T) {
	t.Parallel()
	p := launch(t, "--store", "memory", "--insecure")
	p.await("/readyz", http.StatusOK)
	c := remote.Dial(remote.DialOptions{Address: p.listen, Region: "a", Epoch: epochSeven})
	defer c.Close()
	g := p.lease(c, year, 1, 1000)
	rest := float64(g.Left) / float64(year) * 1000
	if off := float64(g.Usable) - rest; off < -2 || off > 2 || g.Total != g.Usable {
		t.Errorf("%+v, want about %.0f", g, rest)
	}
	p.terminate()
}

// TestStoreIsAway requires that a coordinator without its store runs, is not ready, and hides the password.
func TestStoreIsAway(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"redis://u:hidden@127.0.0.1:1", "postgres://u:hidden@127.0.0.1:1/x?sslmode=disable"} {
		file := filepath.Join(t.TempDir(), "url")
		if err := os.WriteFile(file, []byte(url+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		p := launch(t, "--store", "@"+file, "--insecure")
		p.await("/healthz", http.StatusOK)
		p.await("/readyz", http.StatusServiceUnavailable)
		c := remote.Dial(remote.DialOptions{Address: p.listen, Region: "a", Epoch: epochSeven})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		err := c.Healthy(ctx)
		cancel()
		c.Close()
		_, page := p.get("/readyz")
		_, metrics := p.get("/metrics")
		if err == nil || !strings.Contains(metrics, "keyward_coordinator_up 0") {
			t.Errorf("%s: healthy", url)
		}
		p.terminate()
		if all := fmt.Sprint(err, page, p.Tail(10_000)); strings.Contains(all, "hidden") || !strings.Contains(all, "refused") {
			t.Error(all)
		}
		p = launch(t, "--store", url, "--insecure", "--init")
		<-p.Exited()
		if log := p.Tail(10_000); p.ExitCode() != 1 || !strings.Contains(log, "--init: ") || strings.Contains(log, "hidden") {
			t.Errorf("exit code %d: %s", p.ExitCode(), log)
		}
	}
}

// TestCertificateWithoutRegion requires that the certificates of the flags are used: a client whose certificate is of the
// CA, and of no region, is refused.
func TestCertificateWithoutRegion(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := certs.MakeDemo(dir, certs.DemoOptions{}); err != nil {
		t.Fatal(err)
	}
	f := certs.DemoFiles(dir, "sidecar")
	p := launch(t, "--store", "memory", "--tls-cert", f.Cert, "--tls-key", f.Key, "--tls-ca", f.CA)
	p.await("/readyz", http.StatusOK)
	config, err := certs.Client(f, certs.ClientOptions{ServerName: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	c := remote.Dial(remote.DialOptions{Address: p.listen, Region: "a", Epoch: epochSeven, TLS: config})
	defer c.Close()
	err = c.Healthy(t.Context())
	if err == nil || !strings.Contains(err.Error(), "the certificate has no URI name that ends in /keyward/region/a") {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "the refusal to be counted", func(context.Context) error { // after the client has learned of it
		if _, metrics := p.get("/metrics"); !strings.Contains(metrics, `keyward_refused_total{reason="region",surface="coordinator"} `) {
			return errors.New("not counted")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	p.terminate()
}

// TestFaultyStart requires that all faults are reported at once, each with its flag, and no password.
func TestFaultyStart(t *testing.T) {
	t.Parallel()
	p := launch(t, "--federation", "/nonexistent.yaml", "--store", "redis://u:hidden@x?speed=9", "--tls-cert", "a", "--listen", "x", "postgres://u:hidden@x")
	<-p.Exited()
	log := p.Tail(10_000)
	for _, want := range []string{
		"cannot start:", "unexpected arguments: postgres://...", `--listen "x": want host:port`, "--tls-cert, --tls-key and --tls-ca belong together",
		"--federation: open /nonexistent.yaml", "--store: open redis: unknown parameter speed",
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the error does not contain %q", want)
		}
	}
	if p.ExitCode() != 1 || strings.Contains(log, "hidden") {
		t.Errorf("exit code %d: %s", p.ExitCode(), log)
	}
}

func epochSeven() uint32 { return 7 }
