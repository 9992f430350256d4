package gateways

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// istio is Istio's control plane on an API server without nodes, and the Envoy of an ingress gateway.
type istio struct {
	*release
	program string // of the control plane
	module  string // folder of its module
	version string // of Istio
	envoy   string // path of Envoy
	proxy   string // version of Envoy

	control   *pod
	data      *pod         // Envoy
	host      atomic.Value // of the Envoy that requests are sent to, a string
	controlIP string
	source    string            // option by which the tool finds the sources of values: virtual hosts that have rate_limits, or a list
	owners    bool              // Envoy calls owners
	extra     []object          // of extend
	podEnv    []string          // variables that keyward inject adds to Envoy's container
	podMounts map[string]string // and folders by their paths there
	forgotten string            // a route whose objects the next call of apply removes
}

const (
	istioNamespace = "istio-ingress"
	istioSystem    = "istio-system"
	istioPort      = "8080" // of the listener
)

// istioEnvoys are the hosts of Envoy and of the one that replaces it.
var istioEnvoys = []string{"istio-envoy", "istio-envoy-2"}

func newIstio() *istio {
	g := &istio{envoy: os.Getenv("ENVOY_BIN"), proxy: os.Getenv("KEYWARD_GATEWAYS_ENVOY_VERSION")}
	g.host.Store(istioEnvoys[0])
	g.release = &release{namespace: istioNamespace, dir: file("files", "istio"), client: clientKey, levels: istioLevels, routes: map[string]*policy{}}
	g.source = "--envoy=" + g.path("own.yaml")
	return g
}

func (g *istio) name() string { return "istio" }

// address implements gateway. It is safe for concurrent use.
func (g *istio) address() string { return envoyAddress(g.host.Load().(string), istioPort) }

// about names the commit, too: the newest version of the module is not a release.
func (g *istio) about() string {
	return fmt.Sprintf("Istio %s (%s), API server without nodes, Envoy %s", g.version, commitOf(os.Getenv("KEYWARD_GATEWAYS_ISTIO_VERSION")), g.proxy)
}

// commitOf returns the commit of a version of a module that is not a release.
func commitOf(version string) string {
	return fmt.Sprintf("%.7s", version[strings.LastIndex(version, "-")+1:])
}

func (g *istio) lacks(feature) string { return "" }

// prepare starts the API server and creates all objects but those of routes.
func (g *istio) prepare(t *testing.T) (err error) {
	if err := g.use(false); err != nil {
		return err
	}
	g.kube = startKubernetes(t, "istio-kubernetes")
	if g.controlIP, err = addHost("istiod"); err != nil {
		return err
	}
	for _, host := range istioEnvoys {
		if _, err := addHost(host); err != nil {
			return err
		}
	}
	if err := errors.Join(
		g.checkInjection(), g.kube.apply(kubeNamespace(istioSystem)), g.install("istio"),
		g.applyDefinitions(),
		os.Chmod(g.kube.kubeconfig(), 0o644), // the control plane's user reads it
		writeYAML(g.path("mesh/mesh"), object{"enableAutoMtls": false}),
		writeYAML(g.path("own.yaml"), istioPatch("example", object{"rate_limits": []any{object{"actions": istioActions("example", 0, rule{header: clientHeader})}}})),
	); err != nil {
		return err
	}
	if err := g.applyNew(t.Context(), istioObject("networking.istio.io/v1", "Gateway", gatewayName, object{
		"selector": object{"istio": "ingressgateway"},
		"servers":  []any{object{"port": object{"number": 8080, "name": "http", "protocol": "HTTP"}, "hosts": []any{"*"}}},
	}), istioScripts()); err != nil {
		return err
	}
	return g.applyTool()
}

// start implements gateway.
func (g *istio) start(ctx context.Context) error {
	if err := g.startControl(ctx); err != nil {
		return err
	}
	var err error
	g.data, err = g.startEnvoy(ctx, g.host.Load().(string))
	return err
}

// startControl starts the control plane and waits as its readiness probe. The variables are those of the Deployment in Istio's chart,
// except that Istio must not use what only its own build of Envoy has.
func (g *istio) startControl(ctx context.Context) error {
	g.control = &pod{
		Name: "istiod", Host: "istiod", User: 1337,
		Command: []string{"/pilot-discovery", "discovery", "--kubeconfig=/kubeconfig", "--meshConfig=/mesh/mesh", "--domain=" + clusterDomain, "--log_output_level=default:info"},
		Env: []string{
			"PATH=/bin", "HOME=/tmp", "POD_NAME=istiod", "POD_NAMESPACE=" + istioSystem, "SERVICE_ACCOUNT=istiod", "CLUSTER_ID=Kubernetes", "REVISION=default",
			"PILOT_ENABLE_METADATA_EXCHANGE=false", "PILOT_ENABLE_ALPN_FILTER=false", "PILOT_CERT_PROVIDER=none", "INJECTION_WEBHOOK_CONFIG_NAME=", "VALIDATION_WEBHOOK_CONFIG_NAME=",
		},
		Mounts: map[string]string{"/pilot-discovery": g.program, "/kubeconfig": g.kube.kubeconfig(), "/mesh": g.path("mesh")},
	}
	if err := g.control.start(); err != nil {
		return err
	}
	return g.control.awaitPage(ctx, g.controlIP+":8080/ready")
}

// startEnvoy starts an Envoy and waits for its listener.
func (g *istio) startEnvoy(ctx context.Context, host string) (*pod, error) {
	if err := g.writeBootstrap(host); err != nil {
		return nil, err
	}
	volumes, err := g.volumes(ctx)
	if err != nil {
		return nil, err
	}
	if volumes["keyward-sds"], err = g.kube.folder(ctx, g.namespace, "configmaps", "keyward-sds", g.path("volumes")); err != nil {
		return nil, err
	}
	envoy := &pod{
		Name: host, Host: host, User: 1337, System: true, Env: []string{"PATH=/usr/bin:/bin"},
		Command: []string{"/envoy", "-c", "/bootstrap/envoy.yaml", "--log-level", "info", "--concurrency", "2"},
		Mounts: map[string]string{
			"/envoy": g.envoy, "/bootstrap": g.path("bootstrap", host), "/etc/keyward/tls": volumes["keyward-envoy-tls"], "/etc/keyward/sds": volumes["keyward-sds"],
		},
	}
	maps.Copy(envoy.Mounts, g.podMounts)
	envoy.Env = append(envoy.Env, g.podEnv...)
	addition, err := g.bootstrapAddition()
	if err != nil {
		return nil, err
	}
	if addition != "" {
		envoy.Command = append(envoy.Command, "--config-yaml", addition)
	}
	if err := envoy.start(); err != nil {
		return nil, err
	}
	return envoy, envoy.awaitPort(ctx, envoyAddress(host, istioPort))
}

// bootstrapAddition returns the content of the ConfigMap that the tool prints, which pilot-agent passes to Envoy in addition to the
// bootstrap that it writes, or an empty string if Envoy calls any member.
func (g *istio) bootstrapAddition() (string, error) {
	if !g.owners {
		return "", nil
	}
	objects, err := g.printed()
	if err != nil {
		return "", err
	}
	for _, o := range ofKind(objects, "ConfigMap") {
		if text, ok := o["data"].(object)["custom_bootstrap.json"].(string); ok {
			return text, nil
		}
	}
	return "", errors.New("the tool prints no addition to the bootstrap")
}

// writeBootstrap writes what Envoy needs of the bootstrap that pilot-agent writes.
func (g *istio) writeBootstrap(host string) error {
	ip, err := addHost(host)
	if err != nil {
		return err
	}
	server := object{
		"name": "xds-grpc", "type": "STATIC", "connect_timeout": "1s",
		"typed_extension_protocol_options": object{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": object{
			"@type":                "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
			"explicit_http_config": object{"http2_protocol_options": object{}},
		}},
		"load_assignment": object{"cluster_name": "xds-grpc", "endpoints": []any{object{"lb_endpoints": []any{object{"endpoint": object{"address": socketAddress(g.controlIP, 15010)}}}}}},
	}
	ads := object{"ads": object{}, "resource_api_version": "V3"}
	return writeYAML(g.path("bootstrap", host, "envoy.yaml"), object{
		"node": object{
			"id": "router~" + ip + "~gateway." + istioNamespace + "~" + istioNamespace + ".svc." + clusterDomain, "cluster": "ingressgateway",
			"metadata": object{
				"LABELS": object{"istio": "ingressgateway"}, "NAMESPACE": istioNamespace, "ISTIO_VERSION": g.version + ".0", "CLUSTER_ID": "Kubernetes", "INSTANCE_IPS": ip,
			},
		},
		"admin": object{"address": socketAddress("127.0.0.1", 15000)},
		"dynamic_resources": object{
			"lds_config": ads, "cds_config": ads,
			"ads_config": object{
				"api_type": "DELTA_GRPC", "transport_api_version": "V3", "set_node_on_first_message_only": true,
				"grpc_services": []any{object{"envoy_grpc": object{"cluster_name": "xds-grpc"}}},
			},
		},
		"static_resources": object{"clusters": []any{server}},
	})
}

func socketAddress(ip string, port int) object {
	return object{"socket_address": object{"address": ip, "port_value": port}}
}

func (g *istio) stop() error {
	return errors.Join(g.data.stop(20*time.Second), g.control.stop(20*time.Second))
}

func (g *istio) stat(ctx context.Context, suffix string) (float64, error) {
	return statSum(ctx, clientIn(g.data.Host), "127.0.0.1:15000", suffix)
}
