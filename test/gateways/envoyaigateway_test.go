package gateways

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/test/kube/apiserver"
)

// aiGateway is Envoy AI Gateway with Envoy Gateway on an API server without nodes. Its controller changes the pod of Envoy by a webhook
// and what Envoy Gateway sends to Envoy, and serves the rules of QuotaPolicies.
type aiGateway struct {
	*envoyGatewayKube

	programs map[string]string // controller and extproc
	module   string            // folder of its module
	tag      string            // its version
	members  *release          // of Keyward

	installation []object // of its chart
	controller   *pod
	processor    *pod            // the container that its webhook adds to the pod of Envoy
	service      *clusterService // of Keyward
	mountSecrets func()          // ends the updates of the processor's volume
	revision     int             // of the annotations of routes
}

const (
	aiNamespace  = "envoy-ai-gateway-system"
	aiController = "ai-gateway-controller"
	aiService    = "envoy-ai-gateway-ratelimit"
	aiAPI        = "aigateway.envoyproxy.io/v1beta1"
	quotaAPI     = "aigateway.envoyproxy.io/v1alpha1"
	quotaDomain  = "ai-gateway-quota"

	extensionPort = "1063"  // of the controller, for Envoy Gateway
	quotaPort     = "18002" // of the controller, for members
	processorPort = "1064"  // of the processor's health
)

func newAIGateway() *aiGateway {
	return &aiGateway{
		envoyGatewayKube: newEnvoyGatewayKube(),
		programs:         map[string]string{"controller": os.Getenv("KEYWARD_GATEWAYS_ENVOY_AI_GATEWAY_CONTROLLER"), "extproc": os.Getenv("KEYWARD_GATEWAYS_ENVOY_AI_GATEWAY_EXTPROC")},
		members:          &release{namespace: envoyGatewayNamespace},
		module:           os.Getenv("KEYWARD_GATEWAYS_ENVOY_AI_GATEWAY_SOURCE"), tag: os.Getenv("KEYWARD_GATEWAYS_ENVOY_AI_GATEWAY_VERSION"),
	}
}

func (g *aiGateway) name() string { return "envoy-ai-gateway" }

func (g *aiGateway) about() string {
	return fmt.Sprintf("Envoy AI Gateway %s, Envoy Gateway %s, API server without nodes, Envoy %s",
		strings.TrimPrefix(g.tag, "v"), strings.TrimPrefix(g.version, "v"), g.proxy)
}

func (g *aiGateway) lacks(f feature) string {
	switch f {
	case distinctAddress:
		return "selects clients only by headers"
	case requestCost, responseCost:
		return "charges tokens of replies, and no other metadata"
	case numberCost:
		return "counts each request as one hit, and then its tokens"
	case limitOfMetadata:
		return "sends no limits"
	case ownerDirect:
		return "adds its filter after the EnvoyPatchPolicies"
	case longUnits:
		return "has no durations above a day"
	case formerVersion: // 0.7.0 and 0.6.0, which have QuotaPolicies
		return "has no version before 1.0.0 in the Go module proxy of the tests"
	}
	return ""
}

// prepare starts the API server and both control planes, and creates all resources but those of routes.
func (g *aiGateway) prepare(t *testing.T) (err error) {
	g.kube = startKubernetes(t, "envoy-ai-gateway-kubernetes")
	if g.control, err = addHost("gateway-control"); err != nil {
		return err
	}
	if g.ip, err = addHost("gateway-envoy"); err != nil {
		return err
	}
	names.set("envoy-gateway", g.control)
	if err := startOpenAI(t); err != nil {
		return err
	}
	g.members.kube, g.members.dir = g.kube, g.dir()
	if g.members.objects, err = renderChart(envoyGatewayNamespace, "--set", "preset=envoy-ai-gateway"); err != nil {
		return err
	}
	if g.installation, err = renderRelease("ai-gateway", filepath.Join(g.module, "manifests/charts/ai-gateway-helm"), aiNamespace); err != nil {
		return err
	}
	if err := errors.Join(g.writeConfiguration(), g.install(t)); err != nil {
		return err
	}
	if err := g.certgen(); err != nil {
		return err
	}
	if err := g.startController(t.Context()); err != nil {
		return err
	}
	return g.startControl(t.Context())
}

// install applies the definitions, the objects of both charts, and the Gateway.
func (g *aiGateway) install(t *testing.T) (err error) {
	if err := errors.Join(
		g.kube.apply(kubeNamespace(envoyGatewayNamespace), kubeNamespace(aiNamespace)),
		g.applyDefinitions(),
		g.kube.applyFiles(filepath.Join(g.module, "manifests/charts/ai-gateway-crds-helm/templates/*.yaml"), "CustomResourceDefinition"),
		g.kube.apply(envoyGatewayInstallation()...), g.kube.apply(ofKind(g.members.objects, "Secret", "ConfigMap", "Service")...),
		g.kube.apply(g.installation...),
	); err != nil {
		return err
	}
	if g.service, err = g.kube.serve(t, envoyGatewayNamespace, aiService); err != nil {
		return err
	}
	controller, err := g.kube.serve(t, aiNamespace, aiController)
	if err != nil {
		return err
	}
	ip, err := addHost(aiController)
	if err != nil {
		return err
	}
	controller.set(ip)
	ctx, cancel := timeout(t, time.Minute)
	defer cancel()
	all := append(g.gateway(), aiRoute("probe")...)
	return lab.Await(ctx, "the gateways' kinds of objects", func(context.Context) error { return g.kube.apply(all...) }) // the API server needs some time for new kinds
}

// gateway returns the Gateway, and the applications as Backends.
func (g *aiGateway) gateway() []object {
	class := resource(gatewayAPI, "GatewayClass", gatewayName, object{"controllerName": "gateway.envoyproxy.io/gatewayclass-controller"})
	delete(class["metadata"].(object), "namespace")
	all := []object{class, resource(gatewayAPI, "Gateway", gatewayName, object{
		"gatewayClassName": gatewayName, "listeners": []any{object{"name": "http", "protocol": "HTTP", "port": 8888}},
	})}
	for name, port := range openAIPorts {
		names.setIn(gatewayNamespace, name, bridgeIP)
		endpoint := object{"hostname": name + "." + gatewayNamespace + ".svc." + clusterDomain, "port": port}
		all = append(all, resource(envoyAPI, "Backend", name, object{"endpoints": []any{object{"fqdn": endpoint}}}))
	}
	return all
}

// writeConfiguration writes the configuration of Envoy Gateway with the values that Envoy AI Gateway asks for.
func (g *aiGateway) writeConfiguration() error {
	var values struct {
		Config struct {
			EnvoyGateway object `yaml:"envoyGateway"`
		}
	}
	if err := readYAML(filepath.Join(g.module, "manifests/envoy-gateway-values.yaml"), &values); err != nil {
		return err
	}
	c := object{
		"apiVersion": "gateway.envoyproxy.io/v1alpha1", "kind": "EnvoyGateway",
		"provider": object{"type": "Kubernetes", "kubernetes": object{
			"leaderElection": object{"disable": true}, "proxyTopologyInjector": object{"disabled": true},
		}},
	}
	mergeInto(c, values.Config.EnvoyGateway)
	return writeYAML(g.dir("config/envoy-gateway.yaml"), c)
}

// startController starts the controller with the arguments and the account of its Deployment, and waits until it answers.
func (g *aiGateway) startController(ctx context.Context) error {
	var d deployment
	if err := decode(ofKind(g.installation, "Deployment")[0], &d); err != nil {
		return err
	}
	certs, err := g.kube.folder(ctx, aiNamespace, "secrets", d.Spec.Template.Spec.Volumes[0].Secret.SecretName, g.dir("volumes"))
	if err != nil {
		return err
	}
	account := g.dir("account")
	if err := g.writeAccount(ctx, account); err != nil {
		return err
	}
	g.controller = &pod{
		Name: aiController, Host: aiController, Command: append([]string{"/controller"}, d.Spec.Template.Spec.Containers[0].Args...),
		Env: []string{"PATH=/bin", "POD_NAMESPACE=" + aiNamespace, "KUBERNETES_SERVICE_HOST=" + bridgeIP, "KUBERNETES_SERVICE_PORT=" + apiserver.Port},
		Mounts: map[string]string{
			"/controller": g.programs["controller"], "/certs": certs, "/var/run/secrets/kubernetes.io/serviceaccount": account,
		},
	}
	if err := g.controller.start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	ip, err := addHost(aiController)
	if err != nil {
		return err
	}
	for _, port := range []string{extensionPort, quotaPort} {
		if err := g.controller.awaitPort(ctx, net.JoinHostPort(ip, port)); err != nil {
			return err
		}
	}
	return nil
}

// writeAccount writes what a kubelet mounts for the controller's service account.
func (g *aiGateway) writeAccount(ctx context.Context, dir string) error {
	request := `{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 86400}}`
	text, err := g.kube.call(ctx, http.MethodPost, "/api/v1/namespaces/"+aiNamespace+"/serviceaccounts/"+aiController+"/token", []byte(request))
	if err != nil {
		return err
	}
	var token struct{ Status struct{ Token string } }
	if err := json.Unmarshal(text, &token); err != nil {
		return err
	}
	ca, err := os.ReadFile(filepath.Join(g.kube.dir, "certs", "apiserver.crt"))
	if err != nil {
		return err
	}
	return errors.Join(
		writeFile(filepath.Join(dir, "token"), []byte(token.Status.Token)),
		writeFile(filepath.Join(dir, "namespace"), []byte(aiNamespace)), writeFile(filepath.Join(dir, "ca.crt"), ca),
	)
}

// workload implements gateway: the container of the preset's StatefulSet.
func (g *aiGateway) workload() (w workload, err error) {
	w, err = g.members.workload()
	w.found = func(ready []string) error {
		g.service.set(ready...)
		return nil
	}
	return w, err
}

// former implements upgradable.
func (g *aiGateway) former() string { return "" }

func (g *aiGateway) stop() error {
	g.running = false
	if g.mountSecrets != nil {
		g.mountSecrets()
	}
	err := g.data.stop(20 * time.Second)
	if g.processor != nil && g.processor.process != nil {
		g.processor.process.Kill() // it would wait 15 s for calls of the Envoy that has ended
	}
	return errors.Join(err, g.pod.stop(20*time.Second), g.controller.stop(20*time.Second))
}
