package gateways

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// kgateway is kgateway on an API server without nodes: it makes the Deployment of Envoy, whose program the tests start.
type kgateway struct {
	*release
	program string // of the control plane
	source  string // folder of its module
	version string // that starts next
	envoy   string // path of Envoy
	proxy   string // version of Envoy

	control   *pod
	data      *pod         // Envoy
	host      atomic.Value // of the Envoy that requests are sent to, a string
	controlIP string
	forgotten string // a route whose objects the next call of apply removes
}

const (
	kgatewayNamespace = "kgateway-system"
	kgatewayName      = "http" // of the Gateway
	kgatewayPort      = 8080   // of the listener
	kgatewayAPI       = "gateway.kgateway.dev/v1alpha1"
)

// kgatewayPods are the names of the pod of Envoy and of the one that replaces it, and of their hosts.
var kgatewayPods = []string{kgatewayName + "-0", kgatewayName + "-1"}

func newKgateway() *kgateway {
	g := &kgateway{envoy: os.Getenv("ENVOY_BIN"), proxy: os.Getenv("KEYWARD_GATEWAYS_ENVOY_VERSION")}
	g.host.Store(kgatewayPods[0])
	g.use(false)
	g.release = &release{namespace: kgatewayNamespace, dir: file("files", "kgateway"), client: clientHeader, levels: kgatewayLevels, routes: map[string]*policy{}}
	return g
}

func (g *kgateway) name() string { return "kgateway" }

// address implements gateway. It is safe for concurrent use.
func (g *kgateway) address() string {
	return envoyAddress(g.host.Load().(string), strconv.Itoa(kgatewayPort))
}

func (g *kgateway) about() string {
	return fmt.Sprintf("kgateway %s, API server without nodes, Envoy %s", strings.TrimPrefix(os.Getenv("KEYWARD_GATEWAYS_KGATEWAY_VERSION"), "v"), g.proxy)
}

func (g *kgateway) lacks(f feature) string {
	switch f {
	case requestCost, responseCost, numberCost:
		return "counts each request as one hit: descriptors of a TrafficPolicy have no cost"
	case limitOfMetadata:
		return "sends no limits: descriptors of a TrafficPolicy have only entries"
	case ownerDirect:
		return "cannot add a header, which Envoy would hash, to the calls of a GatewayExtension"
	}
	return ""
}

// prepare starts the API server and creates all objects but those of routes.
func (g *kgateway) prepare(t *testing.T) (err error) {
	g.kube = startKubernetes(t, "kgateway-kubernetes")
	if g.controlIP, err = addHost("kgateway"); err != nil {
		return err
	}
	for _, host := range kgatewayPods {
		if _, err := addHost(host); err != nil {
			return err
		}
	}
	names.set("kgateway", g.controlIP)
	gatewayDefinitions := filepath.Join(os.Getenv("KEYWARD_GATEWAYS_ENVOY_GATEWAY_SOURCE"), "charts/gateway-helm/charts/crds/crds/gatewayapi-crds.yaml")
	if err := errors.Join(
		g.install("kgateway"), os.Chmod(g.kube.kubeconfig(), 0o644), // the control plane's user reads it
		g.kube.applyFiles(gatewayDefinitions, "CustomResourceDefinition"), g.applyDefinitions(),
	); err != nil {
		return err
	}
	extensions := ofKind(g.objects, "GatewayExtension")
	for _, o := range extensions {
		o["spec"].(object)["rateLimit"].(object)["timeout"] = callTimeout
	}
	tool, err := g.tool("kgateway", "--gateway", kgatewayName, "--from", clientHeader+"=header:"+clientHeader)
	if err != nil {
		return err
	}
	gateway := object{
		"apiVersion": gatewayAPI, "kind": "Gateway", "metadata": object{"name": kgatewayName, "namespace": kgatewayNamespace},
		"spec": object{"gatewayClassName": "kgateway", "listeners": []any{object{
			"name": "http", "protocol": "HTTP", "port": kgatewayPort, "allowedRoutes": object{"namespaces": object{"from": "All"}},
		}}},
	}
	return g.applyNew(t.Context(), append(append(extensions, ofKind(tool, "TrafficPolicy", "BackendConfigPolicy")...), gateway)...)
}

// start implements gateway.
func (g *kgateway) start(ctx context.Context) error {
	if err := g.startControl(ctx); err != nil {
		return err
	}
	var err error
	g.data, err = g.startEnvoy(ctx, g.host.Load().(string))
	return err
}

// startControl starts the control plane with variables of the Deployment in its chart, and waits as its readiness probe.
func (g *kgateway) startControl(ctx context.Context) error {
	g.control = &pod{
		Name: "kgateway", Host: "kgateway", User: 10101, Command: []string{"/kgateway"},
		Env: []string{
			"PATH=/bin", "HOME=/tmp", "KUBECONFIG=/kubeconfig", "POD_NAME=kgateway", "POD_NAMESPACE=" + kgatewayNamespace, "KGW_DISABLE_LEADER_ELECTION=true",
			"KGW_ENABLE_AGENTGATEWAY=false", "KGW_DEFAULT_IMAGE_TAG=" + g.version,
		},
		Mounts: map[string]string{"/kgateway": g.program, "/kubeconfig": g.kube.kubeconfig()},
	}
	if err := g.control.start(); err != nil {
		return err
	}
	return g.control.awaitPage(ctx, g.controlIP+":9093/readyz")
}

// envoyDeployment waits for the Deployment of Envoy that this version of the control plane makes.
func (g *kgateway) envoyDeployment(ctx context.Context) (made deployment, err error) {
	return made, lab.Await(ctx, "the Deployment of Envoy", func(ctx context.Context) error {
		if err := g.kube.get(ctx, "/apis/apps/v1/namespaces/"+kgatewayNamespace+"/deployments/"+kgatewayName, &made); err != nil {
			return err
		}
		if image := made.Spec.Template.Spec.Containers[0].Image; !strings.HasSuffix(image, ":"+g.version) {
			return fmt.Errorf("its image is %s, not of %s", image, g.version)
		}
		return nil
	})
}

// startEnvoy starts Envoy by the Deployment that the control plane makes, with an object for its pod, which the control plane
// looks for, and waits until it is ready.
func (g *kgateway) startEnvoy(ctx context.Context, name string) (*pod, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	made, err := g.envoyDeployment(ctx)
	if err != nil {
		return nil, err
	}
	spec := made.Spec.Template.Spec
	c := spec.Containers[0]
	if err := g.kube.apply(kgatewayPodObject(name, c.Name)); err != nil {
		return nil, err
	}
	volumes, err := g.kube.folders(ctx, kgatewayNamespace, spec.Volumes, g.path("volumes"))
	if err != nil {
		return nil, err
	}
	if volumes["xds-token"], err = g.token(ctx, name); err != nil {
		return nil, err
	}
	envoy := &pod{
		Name: name, Host: name, User: c.SecurityContext.RunAsUser, System: true, Env: []string{"PATH=/bin"},
		Command: []string{"/envoy", "-c", "/etc/envoy/envoy.yaml"}, Mounts: map[string]string{"/envoy": g.envoy},
	}
	for _, m := range c.VolumeMounts {
		envoy.Mounts[m.MountPath] = volumes[m.Name]
	}
	fill := strings.NewReplacer("$(POD_NAME)", name, "$(POD_NAMESPACE)", kgatewayNamespace)
	for _, arg := range c.Args {
		envoy.Command = append(envoy.Command, fill.Replace(arg))
	}
	if err := envoy.start(); err != nil {
		return nil, err
	}
	return envoy, envoy.awaitPage(ctx, envoyAddress(name, "8082")+"/ready")
}

// kgatewayPodObject returns the object of a pod of Envoy.
func kgatewayPodObject(name, container string) object {
	return object{
		"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": name, "namespace": kgatewayNamespace},
		"spec": object{"serviceAccountName": kgatewayName, "automountServiceAccountToken": false, "containers": []any{object{"name": container, "image": "none"}}},
	}
}

// token returns a folder with the token by which a pod of Envoy authenticates to the control plane, as the kubelet makes it.
func (g *kgateway) token(ctx context.Context, pod string) (string, error) {
	body, err := json.Marshal(object{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": object{
		"audiences": []string{"kgateway"}, "expirationSeconds": 43200, "boundObjectRef": object{"apiVersion": "v1", "kind": "Pod", "name": pod},
	}})
	if err != nil {
		return "", err
	}
	text, err := g.kube.call(ctx, http.MethodPost, "/api/v1/namespaces/"+kgatewayNamespace+"/serviceaccounts/"+kgatewayName+"/token", body)
	if err != nil {
		return "", err
	}
	var made struct{ Status struct{ Token string } }
	if err := json.Unmarshal(text, &made); err != nil {
		return "", err
	}
	folder := g.path("volumes/token", pod)
	return folder, writeFile(filepath.Join(folder, "xds-token"), []byte(made.Status.Token))
}

func (g *kgateway) stop() error {
	return errors.Join(g.data.stop(20*time.Second), g.control.stop(20*time.Second))
}

func (g *kgateway) stat(ctx context.Context, suffix string) (float64, error) {
	return envoyStat(ctx, g.data, suffix)
}

// direct implements gateway.
func (g *kgateway) direct(bool) error { return errors.New("kgateway calls any member") }
