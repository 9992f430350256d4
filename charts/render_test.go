// Package charts contains the Helm chart. Its tests render the chart and compare it with the documentation and with the
// real definitions of custom resources.
package charts

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the renderings, the chart's copies of other files, and its README's table")

// given are fixed values for what is otherwise random: a gossip key, certificates.
var given = []string{"gossip.key=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "tls.mode=secret", "tls.existingSecret=keyward-tls", "tls.xdsSecret=keyward-xds-tls", "tls.envoySecret=keyward-envoy-tls"}

// layout is a federation of two regions, and regions those of a member in it.
var (
	layout = []string{"federation.layout.name=shop", "federation.layout.epoch=2", "federation.layout.coordinator=home",
		"federation.layout.regions[0].name=eu", "federation.layout.regions[0].weight=2", "federation.layout.regions[1].name=us"}
	regions = append([]string{"federation.region=eu", "federation.authorities[0].name=home", "federation.authorities[0].secretName=keyward-home-authority",
		"federation.authorities[0].secretKey=redis-url", "federation.authorities[1].name=near", "federation.authorities[1].url=keyward://coordinator.example:7948"}, layout...)
)

// renderings maps a golden file to its values, in addition to given.
var renderings = map[string][]string{
	"deployment":              nil,
	"deployment-envoy":        {"workload=Deployment", "envoy.enabled=true", "envoy.shape=plain", "autoscaling.enabled=true"},
	"sidecar":                 {"mode=sidecar"},
	"sidecar-envoy":           {"mode=sidecar", "envoy.enabled=true", "networkPolicy.appPorts={10000}"},
	"sidecar-no-call":         {"mode=sidecar", "envoy.enabled=true", "quota.enabled=true"},
	"sidecar-module":          {"mode=sidecar", "envoy.enabled=true", "module.enabled=true", "module.image=registry.example/keyward-module:v1"},
	"sidecar-insecure":        {"mode=sidecar", "envoy.enabled=true", "tls.mode=off", "workload=Deployment"},
	"sidecar-budgets":         {"mode=sidecar", "values:keyward/examples/budgets.yaml"},
	"daemonset":               {"mode=daemonset"},
	"data-pvc":                {"data.volume=pvc", "data.size=4Gi", "data.storageClass=fast", "data.window=24h", "autoscaling.enabled=true"},
	"data-hostpath":           {"mode=daemonset", "data.volume=hostPath", "data.hostPath=/srv/keyward"},
	"data-none":               {"data.volume=none"},
	"cert-manager":            {"tls.mode=cert-manager", "service.tls=true", "service.clientCertificates=true"},
	"monitoring":              {"podMonitor.enabled=true", "serviceMonitor.enabled=true"},
	"custom":                  {"fullnameOverride=limits", "image.registry=registry.example", "image.digest=sha256:" + strings.Repeat("ab", 32), "imagePullSecrets={pull}", "rulesConfigMap=mine", "test.domain=shop", "commonLabels.team=edge", "extraEnv[0].name=X", "extraEnv[0].value=y", "environment.CACHE_KEY_PREFIX=p", "audit.log=otlp", "audit.otlpEndpoint=http://collector:4318/v1/logs", "extraArgs={--partition=quorum}", "podAnnotations.a=b", "nodeSelector.pool=edge", "priorityClassName=high", "zoneLabel=topology.kubernetes.io/zone", "networkPolicy.envoyFrom[0].namespaceSelector.matchLabels.edge=yes"},
	"federation":              append([]string{"networkPolicy.regionsFrom[0].ipBlock.cidr=10.2.0.0/16", "federation.listen.enabled=true", "federation.listen.service.type=LoadBalancer"}, regions...),
	"federation-sidecar":      append([]string{"mode=sidecar", "envoy.enabled=true"}, regions...),
	"coordinator":             append([]string{"mode=coordinator", "coordinator.replicas=2", "coordinator.store.secretName=keyward-store", "networkPolicy.regionsFrom[0].ipBlock.cidr=10.2.0.0/16", "podMonitor.enabled=true", "serviceMonitor.enabled=true"}, layout...),
	"coordinator-memory":      append([]string{"mode=coordinator", "coordinator.store.memory=true", "coordinator.init=true"}, layout...),
	"preset-envoy":            {"preset=envoy", "mode=sidecar"},
	"preset-envoy-gateway":    {"preset=envoy-gateway"},
	"preset-envoy-ai-gateway": {"preset=envoy-ai-gateway"},
	"preset-istio":            {"preset=istio"},
	"preset-contour":          {"preset=contour"},
	"preset-contour-tls":      {"preset=contour", "service.tls=true"},
	"preset-kgateway":         {"preset=kgateway"},
}

// helms returns the Helm binaries by name: those in the folder KEYWARD_HELM (helm3 and helm4, built by
// test/kube/tools/build), otherwise those in .cache. scripts/kube sets the variable, so CI runs with both.
func helms(t *testing.T) map[string]string {
	t.Helper()
	dir, found := os.Getenv("KEYWARD_HELM"), map[string]string{}
	patterns := []string{filepath.Join("..", ".cache", "kube", "*")}
	if dir != "" {
		patterns = []string{dir}
	}
	for _, name := range []string{"helm3", "helm4"} {
		for _, p := range patterns {
			files, _ := filepath.Glob(filepath.Join(p, name))
			for _, f := range files {
				if path, err := filepath.Abs(f); err == nil {
					found[name] = path
				}
			}
		}
	}
	if len(found) < 2 && dir != "" {
		t.Fatalf("KEYWARD_HELM=%s: no helm3 and helm4 there", dir)
	}
	if len(found) == 0 {
		t.Skip("no Helm: test/kube/tools/build builds it, scripts/kube runs these tests then")
	}
	return found
}

// helm runs Helm without a cluster and without the user's configuration.
func helm(t *testing.T, binary string, args ...string) ([]byte, error) {
	t.Helper()
	cmd := exec.Command(binary, args...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "KUBECONFIG="+filepath.Join(home, "none"))
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", filepath.Base(binary), strings.Join(args, " "), err, errs.Bytes())
	}
	return out, err
}

// render renders the chart as the release keyward.
func render(t *testing.T, binary string, set ...string) ([]byte, error) {
	t.Helper()
	return renderIn(t, binary, "", set...)
}

// renderIn renders the chart in a namespace. The default is that of Envoy Gateway, which every preset supports. A value
// that begins with file: is read from a file, and values: is a file of values.
func renderIn(t *testing.T, binary, namespace string, set ...string) ([]byte, error) {
	t.Helper()
	if namespace == "" {
		namespace = "envoy-gateway-system"
	}
	args := []string{"template", "keyward", "keyward", "--namespace", namespace, "--kube-version", "1.34.0"}
	for _, s := range set {
		if file, ok := strings.CutPrefix(s, "file:"); ok {
			args = append(args, "--set-file", file)
		} else if file, ok := strings.CutPrefix(s, "values:"); ok {
			args = append(args, "--values", file)
		} else {
			args = append(args, "--set", s)
		}
	}
	return helm(t, binary, args...)
}

func TestRenderings(t *testing.T) {
	for name, set := range renderings {
		file := filepath.Join("testdata", name+".yaml")
		found := helms(t)
		for _, version := range slices.Sorted(maps.Keys(found)) {
			binary := found[version]
			out, err := render(t, binary, append(append([]string(nil), given...), set...)...)
			if err != nil {
				t.Errorf("%s, %s: %v", name, version, err)
				continue
			}
			if *update && version == "helm3" {
				if err := os.WriteFile(file, out, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(sorted(t, out), sorted(t, want)) {
				t.Errorf("%s: the output of %s differs: run go test ./charts -update and check the difference", file, version)
			}
		}
	}
}

// sorted returns the documents in a fixed order, because Helm 4 prints them in a different order than Helm 3.
func sorted(t *testing.T, text []byte) []byte {
	t.Helper()
	docs := strings.Split(string(text), "\n---\n")
	for i := range docs {
		docs[i] = strings.TrimSpace(strings.TrimPrefix(docs[i], "---\n"))
	}
	slices.Sort(docs)
	return []byte(strings.Join(docs, "\n---\n"))
}
