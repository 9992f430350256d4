package gateways

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// contour is Contour on an API server without nodes, with the resources that Keyward's chart and tool make.
type contour struct {
	program string // of the control plane
	source  string // folder of its module
	version string
	envoy   string // path of Envoy
	proxy   string // version of Envoy

	kube  *kubernetes
	chart []object // of Keyward
	pod   *pod
	data  *pod         // Envoy
	host  atomic.Value // of the Envoy that requests are sent to, a string
	ip    string
	rules map[string]*policy // in force, by routes
	old   string             // a route whose HTTPProxy the next call of apply removes
}

const (
	contourNamespace = "projectcontour"
	contourDomain    = "cases" // of all rules: Contour has one
	contourService   = "keyward"
	contourPort      = "8080" // of the listener
	statsPort        = "8002" // of Envoy's statistics
	applicationName  = "application"
)

// contourEnvoys are the hosts of Envoy and of the one that replaces it.
var contourEnvoys = []string{"contour-envoy", "contour-envoy-2"}

func newContour() *contour {
	g := &contour{
		version: os.Getenv("KEYWARD_GATEWAYS_CONTOUR_VERSION"), envoy: os.Getenv("ENVOY_BIN"), proxy: os.Getenv("KEYWARD_GATEWAYS_ENVOY_VERSION"),
		rules: map[string]*policy{},
	}
	g.host.Store(contourEnvoys[0])
	g.use(false)
	return g
}

func (g *contour) name() string { return "contour" }

// address implements gateway. It is safe for concurrent use.
func (g *contour) address() string { return envoyAddress(g.host.Load().(string), contourPort) }

func (g *contour) about() string {
	return fmt.Sprintf("Contour %s, API server without nodes, Envoy %s", strings.TrimPrefix(g.version, "v"), g.proxy)
}

func (g *contour) lacks(f feature) string {
	switch f {
	case requestCost, responseCost, numberCost:
		return "counts each request as one hit"
	case limitOfMetadata:
		return "sends no limits"
	case ownerDirect:
		return "has no hash policy for calls to an ExtensionService"
	}
	return ""
}

func (g *contour) dir(parts ...string) string {
	return file(append([]string{"files", "contour"}, parts...)...)
}

// prepare starts the API server and creates all resources but those of routes.
func (g *contour) prepare(t *testing.T) error {
	g.kube = startKubernetes(t, "contour-kubernetes")
	if err := g.writeRules(); err != nil {
		return err
	}
	var err error
	if g.ip, err = addHost("contour"); err != nil {
		return err
	}
	for _, host := range contourEnvoys {
		if _, err := addHost(host); err != nil {
			return err
		}
	}
	names.set("contour", g.ip)
	if g.chart, err = renderChart(contourNamespace, "--set", "preset=contour", "--set-file", `rules.cases\.yaml=`+g.dir("rules", rulesFile)); err != nil {
		return err
	}
	if err := errors.Join(
		os.Chmod(g.kube.kubeconfig(), 0o644), // the control plane's user reads it
		g.kube.apply(kubeNamespace(contourNamespace)), g.applyDefinitions(), g.certgen(),
	); err != nil {
		return err
	}
	return g.applyCommon(t)
}

// applyCommon applies the chart's Service and ExtensionService with another timeout, the tool's ContourConfiguration, and the application.
func (g *contour) applyCommon(t *testing.T) error {
	text, err := exec.Command(filepath.Join(programs, "keyward"), "envoy-config", "--for", g.name(), "--rules", g.dir("rules"),
		"--from", "user=header:"+clientHeader, "--namespace", contourNamespace).Output()
	if err != nil {
		return fmt.Errorf("keyward envoy-config: %w", err)
	}
	tool, err := readObjects(text)
	if err != nil {
		return err
	}
	all := append(ofKind(g.chart, "Secret", "ConfigMap", "Service", "ExtensionService"), ofKind(tool, "ContourConfiguration")...)
	for _, o := range ofKind(all, "ExtensionService") {
		o["spec"].(object)["timeoutPolicy"] = object{"response": callTimeout}
	}
	all = append(all, service(gatewayNamespace, applicationName, "http", 80), endpoints(gatewayNamespace, applicationName, "http", 3000, bridgeIP))
	ctx, cancel := timeout(t, time.Minute)
	defer cancel()
	return lab.Await(ctx, "Contour's kinds of objects", func(context.Context) error { return g.kube.apply(all...) }) // the API server needs some time for new kinds
}

// volumes returns the folders of the volumes of the chart's pods.
func (g *contour) volumes(ctx context.Context) (map[string]string, error) {
	var set deployment
	if err := decode(ofKind(g.chart, "StatefulSet")[0], &set); err != nil {
		return nil, err
	}
	all, err := g.kube.folders(ctx, contourNamespace, set.Spec.Template.Spec.Volumes, g.dir("volumes"))
	if err == nil {
		all["keyward-rules"] = g.dir("rules")
	}
	return all, err
}

// workload implements gateway: the container of the chart's StatefulSet.
func (g *contour) workload() (w workload, err error) {
	var set deployment
	found := ofKind(g.chart, "StatefulSet")
	if len(found) != 1 {
		return w, fmt.Errorf("the chart has %d StatefulSets", len(found))
	}
	if err := decode(found[0], &set); err != nil {
		return w, err
	}
	c := set.Spec.Template.Spec.Containers[0]
	w = workload{
		command: c.Command, user: set.Spec.Template.Spec.SecurityContext.RunAsUser, mounts: map[string]string{},
		readiness: ":9090/readyz", metrics: ":9090", found: g.publish, preStop: c.Lifecycle.PreStop.Exec.Command, stateful: true,
	}
	for _, from := range c.EnvFrom {
		for _, o := range ofKind(g.chart, "ConfigMap") {
			if o["metadata"].(object)["name"] != from.ConfigMapRef.Name {
				continue
			}
			for name, value := range o["data"].(object) {
				w.env = append(w.env, envVar{Name: name, Value: fmt.Sprint(value)})
			}
		}
	}
	w.env = append(w.env, c.Env...)
	for _, m := range c.VolumeMounts {
		w.mounts[m.MountPath] = m.Name
	}
	return w, nil
}

// publish makes Contour find these members.
func (g *contour) publish(ready []string) error {
	return g.kube.apply(endpoints(contourNamespace, contourService, "grpc", 8081, ready...))
}

// start implements gateway.
func (g *contour) start(ctx context.Context) error {
	if err := g.startControl(ctx); err != nil {
		return err
	}
	var err error
	g.data, err = g.startEnvoy(ctx, g.host.Load().(string))
	return err
}

// startControl starts the control plane with the arguments of the Deployment in Contour's examples, and waits as its readiness probe.
func (g *contour) startControl(ctx context.Context) error {
	g.pod = &pod{
		Name: "contour", Host: "contour", User: 65534,
		Command: []string{"/contour", "serve", "--kubeconfig=/kubeconfig", "--contour-config-name=contour"},
		Env:     []string{"PATH=/bin", "CONTOUR_NAMESPACE=" + contourNamespace, "POD_NAME=contour"},
		Mounts:  map[string]string{"/contour": g.program, "/kubeconfig": g.kube.kubeconfig(), "/certs": g.dir("certs/contourcert")},
	}
	if err := g.pod.start(); err != nil {
		return err
	}
	return g.pod.awaitPort(ctx, g.ip+":8001")
}

// startEnvoy starts an Envoy with the arguments of the DaemonSet in Contour's examples, and waits as its readiness probe.
func (g *contour) startEnvoy(ctx context.Context, host string) (*pod, error) {
	envoy := &pod{
		Name: host, Host: host, User: 65534, System: true,
		Command: []string{"/bin/sh", "-ec", "/contour bootstrap /config/envoy.json --xds-address=contour --xds-port=8001 --xds-resource-version=v3 " +
			"--resources-dir=/config/resources --envoy-cafile=/certs/ca.crt --envoy-cert-file=/certs/tls.crt --envoy-key-file=/certs/tls.key\n" +
			"exec /envoy -c /config/envoy.json --service-cluster " + contourNamespace + " --service-node " + host + " --log-level info --concurrency 2"},
		Env:    []string{"PATH=/usr/bin:/bin", "CONTOUR_NAMESPACE=" + contourNamespace},
		Mounts: map[string]string{"/contour": g.program, "/envoy": g.envoy, "/config": "", "/admin": "", "/certs": g.dir("certs/envoycert")},
	}
	if err := envoy.start(); err != nil {
		return nil, err
	}
	return envoy, envoy.awaitPage(ctx, envoyAddress(host, statsPort)+"/ready") // Contour configures this listener
}

func (g *contour) stop() error {
	return errors.Join(g.data.stop(20*time.Second), g.pod.stop(20*time.Second))
}

func (g *contour) stat(ctx context.Context, suffix string) (float64, error) {
	return statSum(ctx, http.DefaultClient, envoyAddress(g.data.Host, statsPort), suffix)
}
