package gateways

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// object is a mapping in YAML.
type object = map[string]any

// envoyGateway is Envoy Gateway without Kubernetes: it reads resources from files and starts Envoy itself.
type envoyGateway struct {
	program string // of the control plane
	source  string // folder of its module
	version string
	envoy   string // path of Envoy
	proxy   string // version of Envoy

	ip          string
	pod         *pod
	envoyProxy  object           // of the tool
	patchPolicy object           // of the tool
	routes      map[string][]any // resources of the routes in force, and of calls to owners
}

// The Gateway of all cases.
const (
	gatewayName      = "eg"
	gatewayNamespace = "default"
	listenerName     = gatewayNamespace + "/" + gatewayName + "/http"
	listenerPort     = "8888"
	upstreamPort     = "3000"
)

func newEnvoyGateway() *envoyGateway {
	return &envoyGateway{
		program: os.Getenv("KEYWARD_GATEWAYS_ENVOY_GATEWAY"), source: os.Getenv("KEYWARD_GATEWAYS_ENVOY_GATEWAY_SOURCE"),
		routes: map[string][]any{}, version: os.Getenv("KEYWARD_GATEWAYS_ENVOY_GATEWAY_VERSION"), envoy: os.Getenv("ENVOY_BIN"), proxy: os.Getenv("KEYWARD_GATEWAYS_ENVOY_VERSION"),
	}
}

func (g *envoyGateway) name() string    { return "envoy-gateway" }
func (g *envoyGateway) address() string { return g.ip + ":" + listenerPort }

func (g *envoyGateway) about() string {
	return fmt.Sprintf("Envoy Gateway %s, standalone, Envoy %s", strings.TrimPrefix(g.version, "v"), g.proxy)
}

func (g *envoyGateway) lacks(f feature) string {
	if f == numberCost {
		return "panics when it reads the policy from a file"
	}
	return ""
}

// workload returns the container of the Deployment that Envoy Gateway makes, which its own tests compare with a file, with the
// variables and volumes that the chart's preset adds.
func (g *envoyGateway) workload() (w workload, err error) {
	var theirDeployment deployment
	if err := readYAML(filepath.Join(g.source, "internal/infrastructure/kubernetes/ratelimit/testdata/deployments/default.yaml"), &theirDeployment); err != nil {
		return w, err
	}
	theirs := theirDeployment.Spec.Template.Spec.Containers[0]
	ours, err := g.presetContainer()
	if err != nil {
		return w, err
	}
	w = workload{command: theirs.Command, user: theirs.SecurityContext.RunAsUser, mounts: map[string]string{}, readiness: ":8080/healthcheck", metrics: ":19001"}
	for _, c := range []container{theirs, ours} {
		w.env = append(w.env, c.Env...)
		for _, m := range c.VolumeMounts {
			if m.Name != "statsd-exporter-config" { // optional, and missing unless a user makes it
				w.mounts[m.MountPath] = m.Name
			}
		}
	}
	return w, nil
}

// container is a container of a Deployment.
type container struct {
	Name    string
	Image   string
	Args    []string
	Command []string
	Env     []envVar
	EnvFrom []struct {
		ConfigMapRef struct{ Name string } `yaml:"configMapRef"`
	} `yaml:"envFrom"`
	VolumeMounts    []volumeMount `yaml:"volumeMounts"`
	SecurityContext struct {
		RunAsUser int `yaml:"runAsUser"`
	} `yaml:"securityContext"`
	Lifecycle struct {
		PreStop struct {
			Exec struct{ Command []string }
		} `yaml:"preStop"`
	}
}

// deployment is a Deployment or a StatefulSet.
type deployment struct {
	Spec struct {
		Template struct {
			Spec struct {
				Containers      []container
				Volumes         []podVolume
				SecurityContext struct {
					RunAsUser int `yaml:"runAsUser"`
				} `yaml:"securityContext"`
			}
		}
	}
}

// podVolume is a volume of a pod: of a Secret, a ConfigMap, or an empty folder.
type podVolume struct {
	Name      string
	ConfigMap struct{ Name string } `yaml:"configMap"`
	Secret    struct {
		SecretName string `yaml:"secretName"`
	}
}

// volumeMount is a volume in a container.
type volumeMount struct {
	Name      string
	MountPath string `yaml:"mountPath"`
}

// presetContainer returns what the chart's preset adds to the container.
func (g *envoyGateway) presetContainer() (c container, err error) {
	text, err := os.ReadFile("../../charts/testdata/preset-envoy-gateway.yaml")
	if err != nil {
		return c, err
	}
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		var m struct {
			Kind string
			Data map[string]string
		}
		if err := yaml.Unmarshal([]byte(doc), &m); err != nil {
			return c, err
		}
		values, ok := m.Data["values.yaml"]
		if m.Kind != "ConfigMap" || !ok {
			continue
		}
		var v struct {
			Config struct {
				EnvoyGateway struct {
					Provider struct {
						Kubernetes struct {
							RateLimitDeployment struct{ Container container } `yaml:"rateLimitDeployment"`
						}
					}
				} `yaml:"envoyGateway"`
			}
		}
		err := yaml.Unmarshal([]byte(values), &v)
		return v.Config.EnvoyGateway.Provider.Kubernetes.RateLimitDeployment.Container, err
	}
	return c, errors.New("the preset has no values for Envoy Gateway")
}

func readYAML(path string, v any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return yaml.Unmarshal(text, v)
}

func (g *envoyGateway) dir(parts ...string) string {
	return file(append([]string{"files", "envoy-gateway"}, parts...)...)
}

// prepare makes certificates and configuration, and returns the folder of the certificates of the rate limit service.
func (g *envoyGateway) prepare() (ratelimitCerts string, err error) {
	if g.ip, err = addHost("gateway"); err != nil {
		return "", err
	}
	names.set("envoy-gateway", g.ip)
	for _, d := range []string{"home/config", "home/data/envoy-versions/" + g.proxy + "/bin", "home/state", "home/run", "res"} {
		if err := os.MkdirAll(g.dir(d), 0o755); err != nil {
			return "", err
		}
	}
	if err := os.Symlink("/envoy", g.dir("home/data/envoy-versions", g.proxy, "bin/envoy")); err != nil {
		return "", err
	}
	if out, err := exec.Command(g.program, "certgen", "--local", "--config-home", g.dir("home/config")).CombinedOutput(); err != nil {
		return "", fmt.Errorf("certgen: %w: %s", err, out)
	}
	if err := errors.Join(g.writeConfiguration(), g.generate()); err != nil {
		return "", err
	}
	return g.dir("home/config/certs/envoy-rate-limit"), g.writeCommon()
}

// callTimeout is how long Envoy waits for an answer: so long that no call fails because the machine is slow.
const callTimeout = "5s"

// writeConfiguration writes the configuration of the control plane, with the settings of the chart's preset, except the timeout.
func (g *envoyGateway) writeConfiguration() error {
	home := func(d string) string { return "/gateway/home/" + d }
	return writeYAML(g.dir("envoy-gateway.yaml"), object{
		"apiVersion": "gateway.envoyproxy.io/v1alpha1", "kind": "EnvoyGateway",
		"gateway": object{"controllerName": "gateway.envoyproxy.io/gatewayclass-controller"},
		"provider": object{"type": "Custom", "custom": object{
			"resource": object{"type": "File", "file": object{"paths": []string{"/gateway/res"}}},
			"infrastructure": object{"type": "Host", "host": object{
				"configHome": home("config"), "dataHome": home("data"), "stateHome": home("state"), "runtimeDir": home("run"),
			}},
		}},
		"extensionApis": object{"enableBackend": true, "enableEnvoyPatchPolicy": true, "enableLua": true},
		"rateLimit":     object{"timeout": callTimeout, "backend": object{"type": "Redis", "redis": object{"url": "unused.invalid:6379"}}},
	})
}

func writeYAML(path string, objects ...any) error {
	var b strings.Builder
	for _, o := range objects {
		text, err := yaml.Marshal(o)
		if err != nil {
			return err
		}
		b.WriteString("---\n" + string(text))
	}
	return writeFile(path, []byte(b.String()))
}

// resource returns an object of a kind with a name in the Gateway's namespace.
func resource(version, kind, name string, spec object) object {
	return object{"apiVersion": version, "kind": kind, "metadata": object{"name": name, "namespace": gatewayNamespace}, "spec": spec}
}

const (
	gatewayAPI = "gateway.networking.k8s.io/v1"
	envoyAPI   = "gateway.envoyproxy.io/v1alpha1"
)

// common returns the Gateway, and the application as a Backend.
func (g *envoyGateway) common() []any {
	class := resource(gatewayAPI, "GatewayClass", gatewayName, object{"controllerName": "gateway.envoyproxy.io/gatewayclass-controller"})
	delete(class["metadata"].(object), "namespace")
	return []any{
		class,
		resource(gatewayAPI, "Gateway", gatewayName, object{
			"gatewayClassName": gatewayName,
			"infrastructure":   object{"parametersRef": object{"group": "gateway.envoyproxy.io", "kind": "EnvoyProxy", "name": "keyward"}},
			"listeners":        []any{object{"name": "http", "protocol": "HTTP", "port": 8888}},
		}),
		g.envoyProxy,
		resource(envoyAPI, "Backend", "application", object{"endpoints": []any{object{"ip": object{"address": bridgeIP, "port": 3000}}}}),
	}
}

// writeCommon writes the resources of all routes, and the Secrets without which Envoy gets no cluster of the rate limit service.
// Envoy runs on this host, not in a pod that the EnvoyProxy describes.
func (g *envoyGateway) writeCommon() error {
	g.envoyProxy["spec"].(object)["provider"] = object{"type": "Host", "host": object{"envoyVersion": g.proxy}}
	secrets, err := g.secrets()
	if err != nil {
		return err
	}
	return writeYAML(g.dir("res/common.yaml"), append(g.common(), secrets...)...)
}

// secrets returns the certificates of certgen that the control plane looks for among its resources.
func (g *envoyGateway) secrets() (all []any, err error) {
	for name, files := range map[string][]string{"envoy": {"ca.crt", "tls.crt", "tls.key"}, "envoy-oidc-hmac": {"hmac-secret"}} {
		data := object{}
		for _, f := range files {
			text, err := os.ReadFile(g.dir("home/config/certs", name, f))
			if err != nil {
				return nil, err
			}
			data[f] = base64.StdEncoding.EncodeToString(text)
		}
		all = append(all, object{"apiVersion": "v1", "kind": "Secret", "metadata": object{"name": name, "namespace": namespace}, "data": data})
	}
	return all, nil
}

func (g *envoyGateway) start(ctx context.Context) error {
	g.pod = &pod{
		Name: "envoy-gateway", Host: "gateway", System: true, Command: []string{"/envoy-gateway", "server", "-c", "/gateway/envoy-gateway.yaml"},
		Env: []string{"PATH=/usr/bin:/bin", "HOME=/tmp"},
		Mounts: map[string]string{"/envoy-gateway": g.program, "/envoy": g.envoy, "/gateway": g.dir(), "/certs": g.dir("home/config/certs/envoy"),
			"/etc/keyward/tls": file("files", "keyward-envoy-tls"), "/etc/keyward/sds": sdsFiles,
		},
	}
	if err := g.pod.start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := g.pod.awaitPage(ctx, g.ip+":8081/readyz"); err != nil {
		return err
	}
	return g.pod.awaitPort(ctx, g.address())
}

func (g *envoyGateway) stop() error { return g.pod.stop(20 * time.Second) }

// stat implements gateway. Envoy's admin page is reachable in the network namespace of its pod alone.
func (g *envoyGateway) stat(ctx context.Context, suffix string) (float64, error) {
	found, err := filepath.Glob(g.dir("home/run/*/admin-address.txt"))
	if err != nil || len(found) == 0 {
		return 0, fmt.Errorf("no address of Envoy's admin page: %w", err)
	}
	slices.SortFunc(found, func(a, b string) int {
		one, _ := os.Stat(a)
		two, _ := os.Stat(b)
		return two.ModTime().Compare(one.ModTime())
	})
	admin, err := os.ReadFile(found[0])
	if err != nil {
		return 0, err
	}
	client := clientIn("gateway")
	return statSum(ctx, client, strings.TrimSpace(string(admin)), suffix)
}
