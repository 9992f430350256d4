package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/keyward/keyward/internal/lab"
)

// TestEnvoyAcceptsWhatIsPrinted lets every Envoy judge every shape that `keyward envoy-config` prints.
func TestEnvoyAcceptsWhatIsPrinted(t *testing.T) {
	l := newLab(t, lab.Options{})
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "app.yaml"), []byte(longRules), 0o644); err != nil {
		t.Fatal(err)
	}
	tls := []string{"--tls-cert", l.CertFile("envoy", ".crt"), "--tls-key", l.CertFile("envoy", ".key"), "--tls-ca", l.CertFile("ca", ".crt")}
	for name, args := range map[string][]string{
		"owner-direct":                {"--shape", "owner-direct", "--xds", "127.0.0.1:18000"},
		"owner-direct by mTLS":        append([]string{"--shape", "owner-direct", "--xds", "127.0.0.1:18000", "--ads", "sotw"}, tls...),
		"owner-direct, fixed members": append([]string{"--shape", "owner-direct", "--member", "a=127.0.0.1:1", "--member", "b=[::1]:2"}, tls...),
		"routes":                      append([]string{"--shape", "routes", "--xds", "127.0.0.1:18000"}, tls...),
		"owner-direct, hot routes":    append([]string{"--shape", "owner-direct", "--xds", "127.0.0.1:18000", "--hot-routes"}, tls...),
		"routes, hot routes":          {"--shape", "routes", "--xds", "127.0.0.1:18000", "--hot-routes"},
		"plain, hot routes":           {"--shape", "plain", "--sidecar", "127.0.0.1:8081", "--routed", "--hot-routes"},
		"owner-direct, delay":         {"--shape", "owner-direct", "--xds", "127.0.0.1:18000", "--hot-routes", "--delay"},
		"owner-direct, caps":          {"--shape", "owner-direct", "--xds", "127.0.0.1:18000", "--caps", "--hot-filters"},
		"fixed members, caps":         {"--shape", "owner-direct", "--member", "a=127.0.0.1:1", "--caps", "--delay"},
		"owner-direct, hot filters":   append([]string{"--shape", "owner-direct", "--xds", "127.0.0.1:18000", "--hot-filters"}, tls...),
		"routes, caps":                {"--shape", "routes", "--xds", "127.0.0.1:18000", "--caps", "--hot-routes"},
		"plain, caps":                 {"--shape", "plain", "--sidecar", "127.0.0.1:8081", "--caps", "--cap-keys", "4294967295"},
		"plain, hot filters":          {"--shape", "plain", "--sidecar", "127.0.0.1:8081", "--xds", "127.0.0.1:18000", "--hot-filters"},
		"plain, delay":                {"--shape", "plain", "--sidecar", "127.0.0.1:8081", "--delay"},
		"plain":                       {"--shape", "plain", "--sidecar", "127.0.0.1:8081"},
		"plain, routed":               {"--shape", "plain", "--sidecar", "127.0.0.1:8081", "--routed", "--failure-mode-deny"},
	} {
		args = append([]string{"envoy-config", "--rules", dir, "--from", "api_key=header:x-api-key"}, args...)
		text, err := exec.Command(filepath.Join(l.Bin, "keyward"), args...).Output()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		file := filepath.Join(dir, "envoy.yaml")
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
		for version, path := range map[string]string{"1.40.0": envoyBinary(t), "1.38.3": os.Getenv("ENVOY_1_38"), "1.36.4": os.Getenv("ENVOY_1_36")} {
			if path == "" {
				continue
			}
			if out, err := exec.Command(path, "--mode", "validate", "-c", file, "-l", "error").CombinedOutput(); err != nil {
				t.Error(fmt.Errorf("%s, Envoy %s: %w\n%s", name, version, err, out))
			}
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
}
