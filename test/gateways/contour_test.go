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

	kube    *kubernetes
	chart   []object // of Keyward
	pod     *pod
	data    *pod // Envoy
	ip      string
	envoyIP string
	rules   map[string]*policy // in force, by routes
	old     string             // a route whose HTTPProxy the next call of apply removes
}

const (
	contourNamespace = "projectcontour"
	contourDomain    = "cases" // of all rules: Contour has one
	contourService   = "keyward"
	contourPort      = "8080" // of the listener
	statsPort        = "8002" // of Envoy's statistics
	applicationName  = "application"
)

func newContour() *contour {
	return &contour{
		program: os.Getenv("KEYWARD_GATEWAYS_CONTOUR"), source: os.Getenv("KEYWARD_GATEWAYS_CONTOUR_SOURCE"),
		version: os.Getenv("KEYWARD_GATEWAYS_CONTOUR_VERSION"), envoy: os.Getenv("ENVOY_BIN"), proxy: os.Getenv("KEYWARD_GATEWAYS_ENVOY_VERSION"),
		rules: map[string]*policy{},
	}
}

func (g *contour) name() string    { return "contour" }
func (g *contour) address() string { return g.envoyIP + ":" + contourPort }

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
	if g.envoyIP, err = addHost("contour-envoy"); err != nil {
		return err
	}
	names.set("contour", g.ip)
	if g.chart, err = renderChart(contourNamespace, "--set", "preset=contour", "--set-file", `rules.cases\.yaml=`+g.dir("rules", rulesFile)); err != nil {
		return err
	}
	if err := g.makeCertificates(); err != nil {
		return err
	}
	if err := errors.Join(
		g.kube.apply(kubeNamespace(contourNamespace)),
		g.kube.applyFiles(filepath.Join(g.source, "examples/contour/01-crds.yaml"), "CustomResourceDefinition"),
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

// makeCertificates makes the certificates of Contour and its Envoy for xDS, as the Job contour-certgen does.
func (g *contour) makeCertificates() error {
	if out, err := exec.Command(g.program, "certgen", "--pem", "--kubeconfig", g.kube.kubeconfig(), "--namespace", contourNamespace, g.dir("pem")).CombinedOutput(); err != nil {
		return fmt.Errorf("contour certgen: %w: %s", err, out)
	}
	files, err := filepath.Glob(g.dir("pem/*"))
	if err != nil {
		return err
	}
	for _, f := range append(files, g.kube.kubeconfig()) { // the pods' users read them
		if err := os.Chmod(f, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// certificates returns the files of a pod's Secret.
func (g *contour) certificates(who string) map[string]string {
	return map[string]string{
		"/certs/ca.crt": g.dir("pem/cacert.pem"), "/certs/tls.crt": g.dir("pem", who+"cert.pem"), "/certs/tls.key": g.dir("pem", who+"key.pem"),
	}
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
		readiness: ":9090/readyz", metrics: ":9090", found: g.publish,
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

// start implements gateway. The arguments are those of the Deployment and the DaemonSet in Contour's examples.
func (g *contour) start(ctx context.Context) error {
	g.pod = &pod{
		Name: "contour", Host: "contour", User: 65534,
		Command: []string{"/contour", "serve", "--kubeconfig=/kubeconfig", "--contour-config-name=contour"},
		Env:     []string{"PATH=/bin", "CONTOUR_NAMESPACE=" + contourNamespace, "POD_NAME=contour"},
		Mounts:  g.certificates("contour"),
	}
	g.pod.Mounts["/contour"], g.pod.Mounts["/kubeconfig"] = g.program, g.kube.kubeconfig()
	g.data = &pod{
		Name: "contour-envoy", Host: "contour-envoy", User: 65534, System: true,
		Command: []string{"/bin/sh", "-ec", "/contour bootstrap /config/envoy.json --xds-address=contour --xds-port=8001 --xds-resource-version=v3 " +
			"--resources-dir=/config/resources --envoy-cafile=/certs/ca.crt --envoy-cert-file=/certs/tls.crt --envoy-key-file=/certs/tls.key\n" +
			"exec /envoy -c /config/envoy.json --service-cluster " + contourNamespace + " --service-node contour-envoy --log-level info --concurrency 2"},
		Env:    []string{"PATH=/usr/bin:/bin", "CONTOUR_NAMESPACE=" + contourNamespace},
		Mounts: g.certificates("envoy"),
	}
	g.data.Mounts["/contour"], g.data.Mounts["/envoy"], g.data.Mounts["/config"], g.data.Mounts["/admin"] = g.program, g.envoy, "", ""
	if err := errors.Join(g.pod.start(), g.data.start()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return lab.Await(ctx, "Contour and its Envoy", func(ctx context.Context) error {
		for _, p := range []*pod{g.pod, g.data} {
			if !p.process.Running() {
				return fmt.Errorf("%s has ended: %s", p.Name, p.process.Tail(3000))
			}
		}
		_, err := lab.Get(ctx, "http://"+g.envoyIP+":"+statsPort+"/ready") // Contour configures this listener
		return err
	})
}

func (g *contour) stop() error {
	return errors.Join(g.data.stop(20*time.Second), g.pod.stop(20*time.Second))
}

func (g *contour) stat(ctx context.Context, suffix string) (float64, error) {
	return statSum(ctx, http.DefaultClient, g.envoyIP+":"+statsPort, suffix)
}
