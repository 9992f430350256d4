package gateways

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// former implements upgradable: it names the commit, because the version before is not a release.
func (g *istio) former() string {
	version := os.Getenv("KEYWARD_GATEWAYS_ISTIO_BEFORE_VERSION")
	if version == "" {
		return ""
	}
	return "commit " + commitOf(version)
}

// use selects the version that starts next.
func (g *istio) use(former bool) error {
	g.program, g.module, _ = built("ISTIO", former)
	version, err := os.ReadFile(filepath.Join(g.module, "VERSION"))
	g.version = strings.TrimSpace(string(version))
	return err
}

// replaceControl implements upgradable: it does what upgrades of Istio's charts base and istiod do. Envoy remains, unless the former
// version is installed.
func (g *istio) replaceControl(ctx context.Context, former bool, meanwhile func() error) error {
	return replace(ctx, former, part{g.stop, g.start}, controlOf(g.control, g.startControl), meanwhile, func() error {
		return errors.Join(g.use(former), g.applyDefinitions())
	})
}

func (g *istio) applyDefinitions() error {
	return g.kube.applyFiles(filepath.Join(g.module, "manifests/charts/base/files/crd-all.gen.yaml"), "CustomResourceDefinition")
}

// keepsEnvoy implements upgradable.
func (g *istio) keepsEnvoy() bool { return true }

// replaceEnvoy implements upgradable, as Kubernetes does when the Deployment of the gateway is restarted after the upgrade.
func (g *istio) replaceEnvoy(ctx context.Context, left func() error) error {
	if err := awaitConfigured(ctx, g); err != nil {
		return err
	}
	next := func() (*pod, error) { return g.startEnvoy(ctx, istioEnvoys[1]) }
	return succession{g, &g.data, &g.host, next, ".downstream_rq_active", 1}.run(ctx, left)
}
