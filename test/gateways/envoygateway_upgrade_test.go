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
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// former implements upgradable.
func (g *envoyGateway) former() string {
	return strings.TrimPrefix(os.Getenv("KEYWARD_GATEWAYS_ENVOY_GATEWAY_BEFORE_VERSION"), "v")
}

// use selects the version that start starts.
func (g *envoyGateway) use(former bool) { g.program, g.source, _ = built("ENVOY_GATEWAY", former) }

// replaceControl implements upgradable.
func (g *envoyGateway) replaceControl(ctx context.Context, former bool, meanwhile func() error) error {
	whole := part{g.stop, g.start}
	return replace(ctx, former, whole, whole, meanwhile, func() error {
		g.use(former)
		return nil
	})
}

// keepsEnvoy implements upgradable: the standalone control plane starts Envoy and ends it.
func (g *envoyGateway) keepsEnvoy() bool { return false }

// replaceEnvoy implements upgradable.
func (g *envoyGateway) replaceEnvoy(context.Context, func() error) error { return nil }

// replaceControl implements upgradable: it does what an upgrade of Envoy Gateway's chart does, whose hook is certgen, after the upgrade of
// the definitions. The former version gets a new Envoy, as in an installation of it.
func (g *envoyGatewayKube) replaceControl(ctx context.Context, former bool, meanwhile func() error) error {
	return replace(ctx, former, part{g.stop, g.start}, controlOf(g.pod, g.startControl), meanwhile, func() error {
		g.use(former)
		var err error
		if g.generation, err = g.envoyGeneration(ctx); err != nil {
			return err
		}
		return errors.Join(g.applyDefinitions(), g.certgen())
	})
}

// keepsEnvoy implements upgradable.
func (g *envoyGatewayKube) keepsEnvoy() bool { return true }

// replaceEnvoy implements upgradable, as Kubernetes does when the control plane has changed the Deployment of Envoy.
func (g *envoyGatewayKube) replaceEnvoy(ctx context.Context, left func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	if err := lab.Await(ctx, "a changed Deployment of Envoy", func(ctx context.Context) error {
		now, err := g.envoyGeneration(ctx)
		if err == nil && now == g.generation {
			err = errors.New("it is that of the former version")
		}
		return err
	}); err != nil {
		return err
	}
	former := g.data
	next := func() (*pod, error) { return g.startEnvoy(ctx, envoyHosts[1]) }
	return succession{g, &g.data, &g.host, next, ".downstream_rq_active", 1}.run(ctx, func() error {
		return errors.Join(left(), losesCertificate(ctx, former))
	})
}

// losesCertificate requires that an Envoy which Envoy Gateway 1.9.0 has configured admits requests uncounted some time after it got the
// configuration of 1.9.1. That one refers to Envoy's certificate by other settings (without initial_fetch_timeout), so Envoy subscribes to
// the Secret a second time, does not request it again, and connects to Keyward without a certificate after 15 seconds.
func losesCertificate(ctx context.Context, envoy *pod) error {
	const stat = ".client_ssl_socket_factory.upstream_context_secrets_not_ready"
	ip, err := addHost(envoy.Host)
	if err != nil {
		return err
	}
	client := newClient("")
	return lab.Await(ctx, "an Envoy without its certificate (if it has one: this fault is mended, so remove the check)", func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+ip+":"+listenerPort+"/", nil)
		if err != nil {
			return err
		}
		req.Host = host("gateway-upgraded")
		req.Header.Set(clientHeader, "of the former Envoy")
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		res.Body.Close()
		n, err := envoyStat(ctx, envoy, stat)
		allowed, err2 := envoyStat(ctx, envoy, ".ratelimit.failure_mode_allowed")
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		if n == 0 || allowed == 0 {
			return fmt.Errorf("%v connections lacked the certificate, %v requests were uncounted", n, allowed)
		}
		return nil
	})
}

// envoyGeneration returns the number of changes of the Deployment of Envoy.
func (g *envoyGatewayKube) envoyGeneration(ctx context.Context) (int, error) {
	var list struct {
		Items []struct{ Metadata struct{ Generation int } }
	}
	if err := g.kube.get(ctx, "/apis/apps/v1/namespaces/"+envoyGatewayNamespace+"/deployments?"+envoyDeployment, &list); err != nil {
		return 0, err
	}
	if len(list.Items) != 1 {
		return 0, fmt.Errorf("Envoy has %d Deployments", len(list.Items))
	}
	return list.Items[0].Metadata.Generation, nil
}

func (g *envoyGatewayKube) applyDefinitions() error {
	crds := filepath.Join(g.source, "charts/gateway-helm/charts/crds/crds")
	return errors.Join(
		g.kube.applyFiles(filepath.Join(crds, "*.yaml"), "CustomResourceDefinition"),
		g.kube.applyFiles(filepath.Join(crds, "generated/*.yaml"), "CustomResourceDefinition"),
	)
}

// certgen makes the Secrets of the control plane, Envoy and Keyward, where they are missing.
func (g *envoyGatewayKube) certgen() error {
	cmd := exec.Command(g.program, "certgen", "--disable-topology-injector")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+g.kube.kubeconfig(), "ENVOY_GATEWAY_NAMESPACE="+envoyGatewayNamespace)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("envoy-gateway certgen: %w: %s", err, out)
	}
	return nil
}
