package gateways

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// contour is Contour on an API server without nodes, with the resources that Keyward's chart and tool make.
type contour struct {
	*release
	program string // of the control plane
	source  string // folder of its module
	version string
	envoy   string // path of Envoy
	proxy   string // version of Envoy

	pod  *pod
	data *pod         // Envoy
	host atomic.Value // of the Envoy that requests are sent to, a string
	ip   string
	old  string // a route whose HTTPProxy the next call of apply removes
}

const (
	contourNamespace = "projectcontour"
	contourPort      = "8080" // of the listener
	statsPort        = "8002" // of Envoy's statistics
	applicationName  = "application"
)

// contourEnvoys are the hosts of Envoy and of the one that replaces it.
var contourEnvoys = []string{"contour-envoy", "contour-envoy-2"}

func newContour() *contour {
	g := &contour{
		version: os.Getenv("KEYWARD_GATEWAYS_CONTOUR_VERSION"), envoy: os.Getenv("ENVOY_BIN"), proxy: os.Getenv("KEYWARD_GATEWAYS_ENVOY_VERSION"),
	}
	g.release = &release{namespace: contourNamespace, dir: file("files", "contour"), client: clientKey, levels: contourLevels, routes: map[string]*policy{}}
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

// prepare starts the API server and creates all resources but those of routes.
func (g *contour) prepare(t *testing.T) error {
	g.kube = startKubernetes(t, "contour-kubernetes")
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
	if err := errors.Join(
		os.Chmod(g.kube.kubeconfig(), 0o644), // the control plane's user reads it
		g.install("contour"), g.applyDefinitions(), g.certgen(),
	); err != nil {
		return err
	}
	return g.applyExtension(t.Context())
}

// applyExtension applies the chart's ExtensionService with another timeout, and the tool's ContourConfiguration.
func (g *contour) applyExtension(ctx context.Context) error {
	tool, err := g.tool(g.name(), "--from", "user=header:"+clientHeader)
	if err != nil {
		return err
	}
	extension := ofKind(g.objects, "ExtensionService")
	for _, o := range extension {
		o["spec"].(object)["timeoutPolicy"] = object{"response": callTimeout}
	}
	return g.applyNew(ctx, append(extension, ofKind(tool, "ContourConfiguration")...)...)
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
		Mounts:  map[string]string{"/contour": g.program, "/kubeconfig": g.kube.kubeconfig(), "/certs": g.path("certs/contourcert")},
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
		Mounts: map[string]string{"/contour": g.program, "/envoy": g.envoy, "/config": "", "/admin": "", "/certs": g.path("certs/envoycert")},
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
