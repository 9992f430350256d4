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

	"github.com/keyward/keyward/internal/lab"
)

// TestAbsentFiles: a mapper file that is not there, like every file that is not to be read, keeps nothing from starting: a
// gateway's volume may be optional. The mapper's absence is warned of, and the built-in mapping holds.
func TestAbsentFiles(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "no-volume", "gone")
	env := []string{"PROMETHEUS_MAPPER_YAML=" + gone, "TRACING_ENABLED=true", "OTEL_EXPORTER_OTLP_CERTIFICATE=" + gone, "OTEL_EXPORTER_OTLP_CLIENT_KEY=" + gone}
	for _, name := range []string{
		"GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY", "GRPC_CLIENT_TLS_CACERT", // without GRPC_SERVER_USE_TLS
		"CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", // rules come from files
		"REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY", "REDIS_TLS_CACERT", "MEMCACHE_TLS_CLIENT_CERT", "MEMCACHE_TLS_CLIENT_KEY", "MEMCACHE_TLS_CACERT",
	} {
		env = append(env, name+"="+gone)
	}
	p, addr, _, _, prom := ratelimit(t, env...)
	ask(t, dial(t, addr, nil), request("another", 1, "key2", "x"))
	if log := p.Tail(1 << 20); !strings.Contains(log, "level=WARN msg=\"PROMETHEUS_MAPPER_YAML is ignored: "+gone+" does not exist\"") {
		t.Errorf("no warning in\n%s", log)
	}
	page, err := lab.Get(t.Context(), "http://"+prom+"/metrics")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), `ratelimit_service_rate_limit_total_hits{domain="another",key1="key2"} 1`) {
		t.Errorf("the built-in mapping does not hold:\n%s", page)
	}
}

// TestAbsentFilesThatStop: a file that decides who is let in stops the start when it is not there, by its path; so does a
// mapper file that is there and at fault.
func TestAbsentFilesThatStop(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command(filepath.Join(bin(t), "keyward"), "certs", "--dir", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	gone := filepath.Join(dir, "gone")
	good := map[string]string{
		"GRPC_SERVER_TLS_CERT": filepath.Join(dir, "sidecar.crt"), "GRPC_SERVER_TLS_KEY": filepath.Join(dir, "sidecar.key"),
		"GRPC_CLIENT_TLS_CACERT": filepath.Join(dir, "ca.crt"),
	}
	stops := func(t *testing.T, want string, env ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, filepath.Join(bin(t), "ratelimit"))
		cmd.Env = append([]string{
			"POD_NAME=a", "PORT=0", "DEBUG_PORT=0", "GRPC_PORT=0", "KEYWARD_METRICS=127.0.0.1:0", "USE_STATSD=false", "RUNTIME_ROOT=" + dir,
			"FORCE_START_WITHOUT_INITIAL_CONFIG=true", "KEYWARD_GOSSIP=127.0.0.1:0", "KEYWARD_ADMIN=",
		}, env...)
		out, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(string(out), want) {
			t.Errorf("exit code %d (%v), want 1, and nothing of %s in\n%s", code, err, want, out)
		}
	}
	for absent := range good {
		t.Run(absent, func(t *testing.T) {
			env := []string{"GRPC_SERVER_USE_TLS=true", absent + "=" + gone}
			for name, file := range good {
				if name != absent {
					env = append(env, name+"="+file)
				}
			}
			stops(t, gone, env...)
		})
	}
	t.Run("GRPC_UDS", func(t *testing.T) {
		stops(t, filepath.Join(gone, "rls.sock"), "GRPC_UDS="+filepath.Join(gone, "rls.sock"))
	})
	t.Run("PROMETHEUS_MAPPER_YAML", func(t *testing.T) { stops(t, dir, "PROMETHEUS_MAPPER_YAML="+dir) })
}

// TestAbsentFilesOfXDS: without the files of its TLS to the management server a member has no rules, is not ready and names the file; it is
// ready once the files are there.
func TestAbsentFilesOfXDS(t *testing.T) {
	l := newLab(t, lab.Options{Rules: rulesWithLimit(10)})
	start(t, l, "pod-a")
	volume := filepath.Join(t.TempDir(), "volume")
	l.Env = []string{
		"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=" + l.Sidecars[0].XDS, "CONFIG_GRPC_XDS_NODE_ID=test", "CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
		"CONFIG_GRPC_XDS_CLIENT_TLS_CERT=" + filepath.Join(volume, "sidecar.crt"), "CONFIG_GRPC_XDS_CLIENT_TLS_KEY=" + filepath.Join(volume, "sidecar.key"),
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT=" + filepath.Join(volume, "ca.crt"), "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL=100ms",
		"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true",
	}
	taker, err := l.AddSidecar("pod-b")
	if err != nil {
		t.Fatal(err)
	}
	await := func(what string, cond func(context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if err := lab.Await(ctx, what, cond); err != nil {
			t.Fatal(err)
		}
	}
	ready := func(ctx context.Context) error {
		_, err := lab.Get(ctx, "http://"+taker.Metrics+"/readyz")
		return err
	}
	await("an error", func(context.Context) error {
		if log := taker.Tail(1 << 20); !strings.Contains(log, "cannot load rules") || !strings.Contains(log, filepath.Join(volume, "sidecar.crt")) {
			return fmt.Errorf("the log says\n%s", log)
		}
		return nil
	})
	await("a member on the ring that has no rules", func(ctx context.Context) error {
		if err := ready(ctx); err == nil || !strings.Contains(err.Error(), "rules") {
			return fmt.Errorf("readiness: %w", err)
		}
		return nil
	})
	if err := os.Symlink(filepath.Join(l.Dir, "certs"), volume); err != nil {
		t.Fatal(err)
	}
	await("readiness", ready)
	if got := ask(t, dial(t, taker.RLS, nil), peek("app", "k", "x")).Statuses[0].GetCurrentLimit().GetRequestsPerUnit(); got != 10 {
		t.Errorf("a limit of %d", got)
	}
}
