package gateways

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/keyward/keyward/internal/lab"
)

// envoyGatewayKube is Envoy Gateway on an API server without nodes: it makes the Deployments of Keyward and of Envoy, whose programs
// the tests start.
type envoyGatewayKube struct {
	*envoyGateway

	kube    *kubernetes
	chart   []object          // of Keyward
	data    *pod              // Envoy that requests are sent to
	host    atomic.Value      // its host, a string
	volumes map[string]string // folders of the volumes of Keyward's pods
	applied map[string]object // of routes and of calls to owners, by paths
	control string            // address of the control plane
	running bool              // the control plane runs

	podFolders map[string]string // of the volumes that keyward inject adds to Envoy's pod

	generation int // of Envoy's Deployment before an upgrade
}

const envoyGatewayNamespace = "envoy-gateway-system"

// envoyHosts are the hosts of Envoy and of the one that replaces it.
var envoyHosts = []string{"gateway-envoy", "gateway-envoy-2"}

func newEnvoyGatewayKube() *envoyGatewayKube {
	g := &envoyGatewayKube{envoyGateway: newEnvoyGateway()}
	g.host.Store("gateway-envoy")
	return g
}

// address implements gateway. It is safe for concurrent use.
func (g *envoyGatewayKube) address() string {
	return envoyAddress(g.host.Load().(string), listenerPort)
}

func (g *envoyGatewayKube) name() string { return "envoy-gateway (API server)" }

func (g *envoyGatewayKube) about() string {
	return fmt.Sprintf("Envoy Gateway %s, API server without nodes, Envoy %s", strings.TrimPrefix(g.version, "v"), g.proxy)
}

func (g *envoyGatewayKube) lacks(feature) string { return "" }

func (g *envoyGatewayKube) dir(parts ...string) string {
	return file(append([]string{"files", "envoy-gateway-kube"}, parts...)...)
}

// prepare starts the API server and the control plane.
func (g *envoyGatewayKube) prepare(t *testing.T) (err error) {
	g.kube = startKubernetes(t, "envoy-gateway-kubernetes")
	if g.control, err = addHost("gateway-control"); err != nil {
		return err
	}
	for _, host := range envoyHosts {
		if _, err := addHost(host); err != nil {
			return err
		}
	}
	names.set("envoy-gateway", g.control)
	if g.chart, err = renderChart(envoyGatewayNamespace, "--set", "preset=envoy-gateway", "--set", "xds.enabled=true"); err != nil {
		return err
	}
	if err := errors.Join(
		g.writeConfiguration(), g.generate(), g.kube.apply(kubeNamespace(envoyGatewayNamespace)),
		g.applyDefinitions(), g.kube.apply(envoyGatewayInstallation()...), g.kube.apply(ofKind(g.chart, "Secret", "ConfigMap")...),
	); err != nil {
		return err
	}
	ctx, cancel := timeout(t, time.Minute)
	defer cancel()
	if err := lab.Await(ctx, "the Gateway API", func(context.Context) error { return g.applyAny(g.common()) }); err != nil { // the API server needs some time for new kinds
		return err
	}
	if err := g.certgen(); err != nil {
		return err
	}
	return g.startControl(t.Context())
}

func (g *envoyGatewayKube) applyAny(all []any) error {
	for _, o := range all {
		if err := g.kube.apply(o.(object)); err != nil {
			return err
		}
	}
	return nil
}

// envoyGatewayInstallation returns the objects of Envoy Gateway's chart that its control plane asks for.
func envoyGatewayInstallation() []object {
	const name = "envoy-gateway"
	meta := func() object { return object{"name": name, "namespace": envoyGatewayNamespace} }
	labels := object{"control-plane": name}
	return []object{
		{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta()},
		{"apiVersion": "v1", "kind": "Service", "metadata": meta(), "spec": object{"ports": []any{object{"name": "grpc", "port": 18000}, object{"name": "ratelimit", "port": 18001}}}},
		{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta(), "spec": object{
			"selector": object{"matchLabels": labels},
			"template": object{"metadata": object{"labels": labels}, "spec": object{"containers": []any{object{"name": name, "image": "none"}}}},
		}},
	}
}

// writeConfiguration writes the configuration of the control plane with the values of the chart's preset, except the timeout.
func (g *envoyGatewayKube) writeConfiguration() error {
	c := object{
		"apiVersion": "gateway.envoyproxy.io/v1alpha1", "kind": "EnvoyGateway",
		"gateway": object{"controllerName": "gateway.envoyproxy.io/gatewayclass-controller"},
		"provider": object{"type": "Kubernetes", "kubernetes": object{
			"leaderElection": object{"disable": true}, "proxyTopologyInjector": object{"disabled": true},
		}},
		"extensionApis": object{"enableBackend": true, "enableEnvoyPatchPolicy": true, "enableLua": true},
	}
	for _, o := range ofKind(g.chart, "ConfigMap") {
		text, ok := o["data"].(object)["values.yaml"].(string)
		if !ok {
			continue
		}
		var values struct {
			Config struct {
				EnvoyGateway object `yaml:"envoyGateway"`
			}
		}
		if err := yaml.Unmarshal([]byte(text), &values); err != nil {
			return err
		}
		mergeInto(c, values.Config.EnvoyGateway)
	}
	limit, ok := c["rateLimit"].(object)
	if !ok {
		return errors.New("the preset has no values for Envoy Gateway")
	}
	limit["timeout"] = callTimeout
	return writeYAML(g.dir("config/envoy-gateway.yaml"), c)
}

// mergeInto adds values to an object as Helm does.
func mergeInto(to, values object) {
	for key, v := range values {
		below, isObject := v.(object)
		if old, ok := to[key].(object); ok && isObject {
			mergeInto(old, below)
		} else if v != nil {
			to[key] = v
		}
	}
}

// startControl starts the control plane and waits until it is ready.
func (g *envoyGatewayKube) startControl(ctx context.Context) error {
	certs, err := g.kube.folder(ctx, envoyGatewayNamespace, "secrets", "envoy-gateway", g.dir("volumes"))
	if err != nil {
		return err
	}
	g.pod = &pod{
		Name: "envoy-gateway-kube", Host: "gateway-control", Command: []string{"/envoy-gateway", "server", "-c", "/config/envoy-gateway.yaml"},
		Env:    []string{"PATH=/bin", "HOME=/tmp", "KUBECONFIG=/kubeconfig", "ENVOY_GATEWAY_NAMESPACE=" + envoyGatewayNamespace},
		Mounts: map[string]string{"/envoy-gateway": g.program, "/config": g.dir("config"), "/kubeconfig": g.kube.kubeconfig(), "/certs": certs},
	}
	if err := g.pod.start(); err != nil {
		return err
	}
	g.running = true
	return g.pod.awaitPage(ctx, g.control+":8081/readyz")
}

// deployment waits for a Deployment that the control plane makes, and returns the container and the folders of its volumes.
func (g *envoyGatewayKube) deployment(ctx context.Context, query, name string) (c container, volumes map[string]string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var list struct{ Items []deployment }
	if err := lab.Await(ctx, "the Deployment of "+name, func(ctx context.Context) error {
		err := g.kube.get(ctx, "/apis/apps/v1/namespaces/"+envoyGatewayNamespace+"/deployments?"+query, &list)
		if err == nil && len(list.Items) != 1 {
			err = fmt.Errorf("there are %d", len(list.Items))
		}
		return err
	}); err != nil {
		return c, nil, err
	}
	spec := list.Items[0].Spec.Template.Spec
	i := slices.IndexFunc(spec.Containers, func(c container) bool { return c.Name == name })
	if i < 0 {
		return c, nil, fmt.Errorf("no container is called %s", name)
	}
	volumes, err = g.kube.folders(ctx, envoyGatewayNamespace, spec.Volumes, g.dir("volumes"))
	return spec.Containers[i], volumes, err
}

// workload implements gateway: the container of the Deployment that the control plane makes.
func (g *envoyGatewayKube) workload() (w workload, err error) {
	c, volumes, err := g.deployment(context.Background(), "fieldSelector=metadata.name%3Denvoy-ratelimit", "envoy-ratelimit")
	if err != nil {
		return w, err
	}
	if volumes["keyward-xds-tls"], err = g.kube.folder(context.Background(), envoyGatewayNamespace, "secrets", "keyward-xds-tls", g.dir("volumes")); err != nil {
		return w, err
	}
	g.volumes = volumes
	w = workload{
		command: c.Command, env: c.Env, user: c.SecurityContext.RunAsUser, mounts: map[string]string{},
		readiness: ":8080/healthcheck", metrics: ":19001", found: g.publish,
	}
	for _, m := range c.VolumeMounts {
		if _, ok := volumes[m.Name]; ok {
			w.mounts[m.MountPath] = m.Name
		}
	}
	return w, nil
}

// publish makes the control plane find these members.
func (g *envoyGatewayKube) publish(ready []string) error {
	return g.kube.apply(endpoints(envoyGatewayNamespace, "envoy-ratelimit", "http", 8081, ready...))
}

// start implements gateway: Envoy runs with the arguments of the Deployment that the control plane makes.
func (g *envoyGatewayKube) start(ctx context.Context) error {
	if !g.running {
		if err := g.startControl(ctx); err != nil {
			return err
		}
	}
	envoy, err := g.startEnvoy(ctx, g.host.Load().(string))
	g.data = envoy
	return err
}

const envoyDeployment = "labelSelector=gateway.envoyproxy.io%2Fowning-gateway-name%3D" + gatewayName

// startEnvoy starts an Envoy as the control plane's Deployment describes it, and waits for its listener.
func (g *envoyGatewayKube) startEnvoy(ctx context.Context, host string) (*pod, error) {
	c, volumes, err := g.deployment(ctx, envoyDeployment, "envoy")
	if err != nil {
		return nil, err
	}
	maps.Copy(volumes, g.podFolders)
	ip, err := addHost(host)
	if err != nil {
		return nil, err
	}
	envoy := g.envoyPod(c, volumes, host, ip)
	if err := envoy.start(); err != nil {
		return nil, err
	}
	return envoy, envoy.awaitPort(ctx, ip+":"+listenerPort)
}

// envoyPod returns the pod of Envoy by its container and the folders of its volumes.
func (g *envoyGatewayKube) envoyPod(c container, volumes map[string]string, host, ip string) *pod {
	envoy := &pod{Name: host, Host: host, System: true, User: c.SecurityContext.RunAsUser, Env: []string{"PATH=/bin"}, Mounts: map[string]string{"/envoy": g.envoy}}
	for _, m := range c.VolumeMounts {
		if folder, ok := volumes[m.Name]; ok {
			envoy.Mounts[m.MountPath] = folder
		}
	}
	variables := map[string]string{}
	for _, v := range c.Env {
		line, _ := v.resolve(host, ip) // fields of pods that the tests do not know, as the zone, are empty
		name, value, _ := strings.Cut(line, "=")
		variables[name] = value
		envoy.Env = append(envoy.Env, v.Name+"="+value)
	}
	envoy.Command = []string{"/envoy"}
	for _, arg := range c.Args {
		for name, value := range variables {
			arg = strings.ReplaceAll(arg, "$("+name+")", value)
		}
		envoy.Command = append(envoy.Command, arg)
	}
	return envoy
}

func (g *envoyGatewayKube) stop() error {
	g.running = false
	return errors.Join(g.data.stop(20*time.Second), g.pod.stop(20*time.Second))
}

// stat implements gateway.
func (g *envoyGatewayKube) stat(ctx context.Context, suffix string) (float64, error) {
	return envoyStat(ctx, g.data, suffix)
}

// envoyStat returns the sum of an Envoy's statistics whose names end with suffix.
func envoyStat(ctx context.Context, envoy *pod, suffix string) (float64, error) {
	return statSum(ctx, clientIn(envoy.Host), "127.0.0.1:19000", suffix)
}

// apply implements gateway.
func (g *envoyGatewayKube) apply(route string, p *policy) error {
	g.routes[route] = envoyGatewayRoute(route, p)
	return g.write()
}

// direct implements gateway.
func (g *envoyGatewayKube) direct(on bool) error {
	g.setDirect(on)
	return g.write()
}

// write applies the resources of all routes, and then removes those of forgotten routes.
func (g *envoyGatewayKube) write() error {
	now := map[string]object{}
	for _, all := range g.routes {
		for _, o := range all {
			path, err := objectPath(o.(object))
			if err != nil {
				return err
			}
			now[path] = o.(object)
			if err := g.kube.apply(o.(object)); err != nil {
				return err
			}
		}
	}
	for path, o := range g.applied {
		if _, ok := now[path]; ok {
			continue
		}
		if err := g.kube.remove(o); err != nil {
			return err
		}
	}
	g.applied = now
	return nil
}
