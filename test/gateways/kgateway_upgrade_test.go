package gateways

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// former implements upgradable.
func (g *kgateway) former() string {
	return strings.TrimPrefix(os.Getenv("KEYWARD_GATEWAYS_KGATEWAY_BEFORE_VERSION"), "v")
}

// use selects the version that starts next.
func (g *kgateway) use(former bool) { g.program, g.source, g.version = built("KGATEWAY", former) }

// replaceControl implements upgradable: it does what an upgrade of kgateway's chart does, after that of the definitions. Envoy remains,
// unless the former version is installed.
func (g *kgateway) replaceControl(ctx context.Context, former bool, meanwhile func() error) error {
	return replace(ctx, former, part{g.stop, g.start}, controlOf(g.control, g.startControl), meanwhile, func() error {
		g.use(former)
		return g.applyDefinitions()
	})
}

func (g *kgateway) applyDefinitions() error {
	return g.kube.applyFiles(filepath.Join(g.source, "install/helm/kgateway-crds/templates/*.yaml"), "CustomResourceDefinition")
}

// keepsEnvoy implements upgradable.
func (g *kgateway) keepsEnvoy() bool { return true }

// replaceEnvoy implements upgradable, as Kubernetes does when the control plane has changed the Deployment of Envoy.
func (g *kgateway) replaceEnvoy(ctx context.Context, left func() error) error {
	if err := awaitConfigured(ctx, g); err != nil {
		return err
	}
	former := g.data.Name
	return errors.Join(succession{g, &g.data, &g.host, func() (*pod, error) {
		envoy, err := g.startEnvoy(ctx, kgatewayPods[1])
		if err == nil {
			err = envoy.awaitPort(ctx, envoyAddress(envoy.Host, strconv.Itoa(kgatewayPort)))
		}
		return envoy, err
	}, ".downstream_rq_active", 1}.run(ctx, left), g.kube.remove(kgatewayPodObject(former, "none")))
}
