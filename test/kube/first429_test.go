package kube

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Images of TestFirst429, in addition to those of all tests.
const (
	gatewayImage = "docker.io/envoyproxy/gateway:test"
	backendImage = "localhost/backend:1"
)

// TestFirst429 runs scripts/first-429 in this cluster: it installs Envoy Gateway by its own chart, with Keyward as its rate-limit service, and
// gets a 429 through its Envoy. Only the images and the charts' location are given. Nothing remains but the gateways' definitions.
func TestFirst429(t *testing.T) {
	program := os.Getenv("KEYWARD_GATEWAYS_ENVOY_GATEWAY")
	if program == "" {
		t.Skip("KEYWARD_LONG=1 scripts/kube builds Envoy Gateway and runs this test")
	}
	begin := time.Now()
	if err := importImages(t.Context(), []image{
		{name: gatewayImage, files: map[string]string{"usr/local/bin/envoy-gateway": program}, entrypoint: []string{"/usr/local/bin/envoy-gateway"}},
		{name: backendImage, files: map[string]string{"pod": filepath.Join(images, "pod")}, entrypoint: []string{"/pod", "serve", ":3000"}},
	}); err != nil {
		t.Fatal(err)
	}
	t.Logf("images were imported in %.1f s", time.Since(begin).Seconds())
	before := clusterScoped(t)
	options := []string{"--context", "here", "--image", keywardImage, "--backend-image", backendImage,
		"--gateway-chart", gatewayChart(t), "--gateway-values", gatewayValues(t)}
	out, err := first429(t, options...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"alice, request 5: 200, x-ratelimit-remaining: 0", "alice, request 6: 429, x-ratelimit-remaining: 0, retry-after: ",
		"bob, request 1: 200, x-ratelimit-remaining: 4", "First 429 after ", "everything is deleted",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the output has no %q", want)
		}
	}
	for name := range clusterScoped(t) {
		if !before[name] {
			t.Errorf("%s remains", name)
		}
	}
	t.Log("\n" + out)
	for _, name := range []string{"envoy-gateway-system", "first-429"} {
		t.Run("a namespace of others: "+name, func(t *testing.T) {
			must(t, "create", "namespace", name)
			defer must(t, "delete", "namespace", name)
			for _, args := range [][]string{options, {"--clean", "--context", "here"}, {"--clean", "--context", ""}} {
				if out, err := first429(t, args...); err == nil {
					t.Errorf("%s succeeded: %s", args[0], out)
				}
			}
			must(t, "get", "namespace", name)
		})
	}
}

// first429 runs the script with this cluster's kubectl and helm.
func first429(t *testing.T, args ...string) (string, error) {
	t.Helper()
	bin := t.TempDir()
	for name, program := range map[string]string{"kubectl": "kubectl", "helm": "helm4"} {
		if err := os.Symlink(tool(program), filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "scripts/first-429", args...)
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+file("kubeconfig"), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// gatewayChart copies Envoy Gateway's chart from its module and completes it as its release does: it writes the values from their template.
func gatewayChart(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "gateway-helm")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(os.Getenv("KEYWARD_GATEWAYS_ENVOY_GATEWAY_SOURCE"), "charts/gateway-helm"))); err != nil {
		t.Fatal(err)
	}
	version := os.Getenv("KEYWARD_GATEWAYS_ENVOY_GATEWAY_VERSION")
	for from, to := range map[string]string{"values.tmpl.yaml": "values.yaml", "Chart.yaml": "Chart.yaml"} {
		text := strings.NewReplacer("${GatewayImage}", "docker.io/envoyproxy/gateway:"+version, "${GatewayImagePullPolicy}", "IfNotPresent",
			"v0.0.0-latest", version, `appVersion: "latest"`, "appVersion: "+version).Replace(read(t, filepath.Join(dir, from)))
		_ = os.Remove(filepath.Join(dir, to)) // files of modules cannot be written
		if err := os.WriteFile(filepath.Join(dir, to), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// gatewayValues writes the values that make Envoy Gateway's chart use the images of this cluster. Envoy waits longer for Keyward than by
// default, because everything shares a few cores.
func gatewayValues(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "values.yaml")
	text := `global: {images: {envoyGateway: {image: ` + gatewayImage + `}, envoyProxy: {image: ` + envoyImage + `}}}
config: {envoyGateway: {rateLimit: {timeout: 5s}}}
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// clusterScoped returns the names of objects outside namespaces that an installation may make, except definitions.
func clusterScoped(t *testing.T) map[string]bool {
	t.Helper()
	kinds := "namespaces,clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations,priorityclasses"
	all := map[string]bool{}
	for _, name := range strings.Fields(must(t, "get", kinds, "--output=name")) {
		all[name] = true
	}
	return all
}
