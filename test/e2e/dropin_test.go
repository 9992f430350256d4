package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/keyward/keyward/internal/lab"
)

const dropinRules = `domain: another
descriptors:
  - key: key2
    rate_limit: {unit: minute, requests_per_unit: 20}
  - key: key3
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: key4
    rate_limit: {unit: day, requests_per_unit: 50, name: four}
    shadow_mode: false
`

// ratelimit starts the binary as /bin/ratelimit is started: no flags, only the original's environment.
func ratelimit(t *testing.T, extra ...string) (p *lab.Process, grpcAddr, httpAddr, debugAddr, promAddr string) {
	t.Helper()
	dir := t.TempDir()
	conf := filepath.Join(dir, "ratelimit", "config")
	if err := os.MkdirAll(conf, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(conf, "another.yaml"), []byte(dropinRules), 0o644); err != nil {
		t.Fatal(err)
	}
	var ports lab.Ports
	addrs := make([]string, 4)
	for i := range addrs {
		a, err := ports.Addr()
		if err != nil {
			t.Fatal(err)
		}
		addrs[i] = a
	}
	p, err := lab.StartProcess(dir, lab.Spec{Name: "ratelimit", Path: filepath.Join(bin(t), "ratelimit"), Env: append([]string{
		"RUNTIME_ROOT=" + dir, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false", "LOG_LEVEL=debug", "USE_STATSD=false",
		"HOST=127.0.0.1", "PORT=" + port(addrs[1]), "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=" + port(addrs[2]), "GRPC_HOST=127.0.0.1", "GRPC_PORT=" + port(addrs[0]),
		"USE_PROMETHEUS=true", "PROMETHEUS_ADDR=" + addrs[3], "KEYWARD_METRICS=" + addrs[3],
		"REDIS_URL=redis:6379", "REDIS_SOCKET_TYPE=tcp", "REDIS_AUTH=secret",
	}, extra...)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(10 * time.Second); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(p.Tail(4000))
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "health", func(ctx context.Context) error {
		_, err := lab.Get(ctx, "http://"+addrs[1]+"/healthcheck")
		return err
	}); err != nil {
		t.Fatalf("%v\n%s", err, p.Tail(4000))
	}
	return p, addrs[0], addrs[1], addrs[2], addrs[3]
}

func TestDropIn(t *testing.T) {
	p, grpcAddr, httpAddr, debugAddr, promAddr := ratelimit(t, "LIMIT_RESPONSE_HEADERS_ENABLED=true")
	client := dial(t, grpcAddr, nil)

	t.Run("unknown domain", func(t *testing.T) {
		res := ask(t, client, request("foo", 1, "hello", "world"))
		if res.OverallCode != rlsv3.RateLimitResponse_OK || len(res.Statuses) != 1 || res.Statuses[0].CurrentLimit != nil {
			t.Errorf("%v", res)
		}
	})
	t.Run("sequence", func(t *testing.T) {
		for i := range 25 {
			res := ask(t, client, request("another", 1, "key2", "rand"))
			want, left := rlsv3.RateLimitResponse_OK, uint32(max(0, 19-i))
			if i >= 20 {
				want = rlsv3.RateLimitResponse_OVER_LIMIT
			}
			if res.OverallCode != want || res.Statuses[0].LimitRemaining != left || len(res.ResponseHeadersToAdd) != 3 {
				t.Errorf("hit %d: %v", i, res)
			}
		}
	})
	t.Run("JSON", func(t *testing.T) {
		body := `{"domain":"another","descriptors":[{"entries":[{"key":"key4","value":"json"}]}]}`
		res, err := http.Post("http://"+httpAddr+"/json", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var answer struct {
			OverallCode string
			Statuses    []struct {
				LimitRemaining int
				CurrentLimit   struct{ Name, Unit string }
			}
		}
		if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || res.StatusCode != http.StatusOK || answer.OverallCode != "OK" ||
			answer.Statuses[0].LimitRemaining != 49 || answer.Statuses[0].CurrentLimit.Name != "four" {
			t.Errorf("%s %+v %v", res.Status, answer, err)
		}
	})
	t.Run("debug", func(t *testing.T) {
		b, err := lab.Get(t.Context(), "http://"+debugAddr+"/rlconfig")
		if err != nil || !strings.Contains(string(b), "another.key2: unit=MINUTE requests_per_unit=20, shadow_mode: false, quota_mode: false\n") {
			t.Errorf("/rlconfig: %v\n%s", err, b)
		}
	})
	t.Run("statistics", func(t *testing.T) {
		fam := metrics(t, promAddr)
		for name, want := range map[string]float64{"total_hits": 25, "over_limit": 5, "near_limit": 4, "within_limit": 20} {
			if got := value(fam, "ratelimit_service_rate_limit_"+name, "domain", "another", "key1", "key2"); got != want {
				t.Errorf("%s is %v, not %v", name, got, want)
			}
		}
		if got := value(fam, "ratelimit_service_config_load_success"); got != 1 {
			t.Errorf("config_load_success is %v", got)
		}
		if got := value(fam, "keyward_standalone"); got != 1 {
			t.Errorf("keyward_standalone is %v", got)
		}
	})
	t.Run("health", func(t *testing.T) {
		conn, err := grpc.NewClient("passthrough:///"+grpcAddr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		hc := healthpb.NewHealthClient(conn)
		for _, name := range []string{"", "ratelimit"} {
			if res, err := hc.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name}); err != nil || res.Status != healthpb.HealthCheckResponse_SERVING {
				t.Errorf("health of %q: %v, %v", name, res, err)
			}
		}
		if _, err := hc.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "other"}); status.Code(err) != codes.NotFound {
			t.Errorf("health of another service: %v", err)
		}
	})
	t.Run("errors", func(t *testing.T) {
		_, err := client.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "another"})
		if status.Code(err) != codes.Unknown || !strings.Contains(err.Error(), "rate limit descriptor list must not be empty") {
			t.Error(err)
		}
	})
	if log := p.Tail(1 << 20); strings.Count(log, "REDIS_") == 0 || strings.Contains(log, "secret") {
		t.Errorf("the log does not warn of REDIS_*, or contains the secret:\n%s", log)
	}
}

// TestUnixSocketAndRefusedStart: a socket in place of a port; and every fault of the environment in one message.
func TestUnixSocketAndRefusedStart(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "rls.sock")
	ratelimit(t, "GRPC_UDS="+sock)
	conn, err := grpc.NewClient("unix://"+sock, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ask(t, rlsv3.NewRateLimitServiceClient(conn), request("another", 1, "key2", "x"))

	cmd := exec.Command(filepath.Join(bin(t), "sidecar"), "--gossip", "nowhere", "--expect", "x")
	cmd.Env = []string{"PORT=eighty", "NEAR_LIMIT_RATIO=often", "KEYWARD_WEIGHT=-1", "POD_NAME=a"}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() == 0 {
		t.Errorf("it started: %v", err)
	}
	for _, want := range []string{"PORT", "NEAR_LIMIT_RATIO"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the error does not name %s:\n%s", want, out)
		}
	}
	cmd = exec.Command(filepath.Join(bin(t), "sidecar"), "--join", "127.0.0.1:1")
	cmd.Env = []string{"POD_NAME=a"}
	out, _ = cmd.CombinedOutput()
	if !strings.Contains(string(out), "--gossip-key-file") || !strings.Contains(string(out), "--insecure") {
		t.Errorf("join without a key:\n%s", out)
	}
}

// TestRulesOverXDS takes the rules from an xDS server that reads them from files, and follows its changes.
func TestRulesOverXDS(t *testing.T) {
	l := newLab(t, lab.Options{Rules: rulesWithLimit(10), Insecure: true})
	start(t, l, "pod-a")
	feeder := l.Sidecars[0] // every sidecar serves its rules to any client, also to one of its own cluster
	l.Env = []string{"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=" + feeder.XDS, "CONFIG_GRPC_XDS_NODE_ID=test"}
	taker, err := l.AddSidecar("pod-b")
	if err != nil {
		t.Fatal(err)
	}
	client := dial(t, taker.RLS, nil)
	await := func(want uint32) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if err := lab.Await(ctx, fmt.Sprintf("a limit of %d", want), func(ctx context.Context) error {
			res, err := client.ShouldRateLimit(ctx, peek("app", "k", "x"))
			if err != nil {
				return err
			}
			if got := res.Statuses[0].GetCurrentLimit().GetRequestsPerUnit(); got != want {
				return fmt.Errorf("the limit is %d", got)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	await(10)
	if err := l.WriteRules(feeder, rulesWithLimit(25)); err != nil {
		t.Fatal(err)
	}
	await(25)
}

// TestCertificatesReload replaces the door's certificate and CA while it runs: old clients are refused, new ones let in.
func TestCertificatesReload(t *testing.T) {
	dir := t.TempDir()
	certs := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(filepath.Join(bin(t), "keyward"), append([]string{"certs", "--dir", dir}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	certs()
	file := func(n string) string { return filepath.Join(dir, n) }
	env := []string{
		"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=" + file("sidecar.crt"), "GRPC_SERVER_TLS_KEY=" + file("sidecar.key"),
		"GRPC_CLIENT_TLS_CACERT=" + file("ca.crt"), "GRPC_CLIENT_TLS_SAN=spiffe://keyward.demo/envoy",
	}
	_, grpcAddr, _, _, _ := ratelimit(t, env...)
	l := &lab.Lab{Options: lab.Options{Dir: t.TempDir()}}
	if err := os.Symlink(dir, filepath.Join(l.Dir, "certs")); err != nil {
		t.Fatal(err)
	}
	try := func(who string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := dial(t, grpcAddr, clientTLS(t, l, who)).ShouldRateLimit(ctx, request("another", 1, "key2", "x"))
		return err
	}
	if err := try("envoy"); err != nil {
		t.Fatal(err)
	}
	if err := try("xds"); err == nil {
		t.Error("a certificate of another name was let in")
	}
	old := clientTLS(t, l, "envoy")
	certs("--overwrite")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "the new certificates", func(context.Context) error { return try("envoy") }); err != nil {
		t.Fatal(err)
	}
	short, stop := context.WithTimeout(t.Context(), 3*time.Second)
	defer stop()
	if _, err := dial(t, grpcAddr, old).ShouldRateLimit(short, request("another", 1, "key2", "x")); err == nil {
		t.Error("a client of the old CA was let in")
	}
}

// TestSignals: SIGTERM leaves in order and ends with exit code 0.
func TestSignals(t *testing.T) {
	p, _, httpAddr, _, _ := ratelimit(t)
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Exited():
	case <-time.After(15 * time.Second):
		t.Fatal("it did not leave")
	}
	if p.ExitCode() != 0 {
		t.Errorf("exit code %d\n%s", p.ExitCode(), p.Tail(2000))
	}
	if res, err := http.Get("http://" + httpAddr + "/healthcheck"); err == nil {
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		t.Errorf("it still answers: %s", res.Status)
	}
}
