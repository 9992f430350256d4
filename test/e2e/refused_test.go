package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// TestRefusedByEnvoy serves a cluster to an Envoy that lacks the certificate which the cluster names: Envoy refuses it. The
// refusal is counted, shown in Envoy's words, and not provoked again and again.
func TestRefusedByEnvoy(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": longRules}, Expect: 3})
	start(t, l, names(3)...)
	xds, err := l.AddXDS("xds")
	if err != nil {
		t.Fatal(err)
	}
	awaitRing(t, l, names(3)...)
	text, err := exec.Command(filepath.Join(l.Bin, "keyward"), "envoy-config", "--rules", filepath.Join(l.Sidecars[0].Runtime, "ratelimit", "config"),
		"--from", "api_key=header:x-api-key", "--xds", xds.Addr, "--listen", "127.0.0.1:0", "--envoy-admin", "127.0.0.1:0",
		"--tls-cert", l.CertFile("envoy", ".crt"), "--tls-key", l.CertFile("envoy", ".key"), "--tls-ca", l.CertFile("ca", ".crt")).Output()
	if err != nil {
		t.Fatal(err)
	}
	// The connection to xDS uses the certificate by whatever name; the cluster that xDS serves wants this one.
	config := strings.ReplaceAll(string(text), "keyward_client", "somebody_else")
	if config == string(text) {
		t.Fatalf("the bootstrap defines no keyward_client:\n%s", text)
	}
	if _, err := l.AddEnvoy(lab.EnvoyOptions{Name: "envoy", Path: envoyBinary(t), Config: config}); err != nil {
		t.Fatal(err)
	}
	nacks := func() float64 { return value(metrics(t, xds.Metrics), "keyward_xds_nacks_total", "type", "Cluster") }
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "a refusal", func(ctx context.Context) error {
		page, err := lab.Get(ctx, "http://"+xds.Metrics+"/cluster")
		if err != nil {
			return err
		}
		if nacks() == 0 || !strings.Contains(string(page), "keyward_client") {
			return fmt.Errorf("%v refusals, /cluster shows %.2000s", nacks(), page)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	before := nacks()
	calm, stop := context.WithTimeout(t.Context(), 3*time.Second)
	defer stop()
	<-calm.Done()
	if n := nacks(); n > before {
		t.Errorf("%v refusals, and 3 s later %v: the same is sent again", before, n)
	}
	if log := xds.Tail(1 << 16); !strings.Contains(log, "refused") {
		t.Errorf("the log does not speak of it:\n%s", log)
	}
}
