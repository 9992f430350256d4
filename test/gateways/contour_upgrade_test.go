package gateways

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// former implements upgradable.
func (g *contour) former() string {
	return strings.TrimPrefix(os.Getenv("KEYWARD_GATEWAYS_CONTOUR_BEFORE_VERSION"), "v")
}

// use selects the version that starts next.
func (g *contour) use(former bool) { g.program, g.source, _ = built("CONTOUR", former) }

// replaceControl implements upgradable: it does what applying the examples of another version does, whose Job replaces the certificates.
// Envoy remains, and reads the new certificates, unless the former version is installed.
func (g *contour) replaceControl(ctx context.Context, former bool, meanwhile func() error) error {
	return replace(ctx, former, part{g.stop, g.start}, controlOf(g.pod, g.startControl), meanwhile, func() error {
		g.use(former)
		return errors.Join(g.applyDefinitions(), g.certgen())
	})
}

// keepsEnvoy implements upgradable.
func (g *contour) keepsEnvoy() bool { return true }

// replaceEnvoy implements upgradable, as Kubernetes does for the DaemonSet, whose image of Contour has changed, while other nodes serve.
func (g *contour) replaceEnvoy(ctx context.Context, left func() error) error {
	if err := awaitConfigured(ctx, g); err != nil {
		return err
	}
	return succession{g, &g.data, &g.host, func() (*pod, error) {
		envoy, err := g.startEnvoy(ctx, contourEnvoys[1])
		if err == nil {
			err = envoy.awaitPort(ctx, envoyAddress(envoy.Host, contourPort))
		}
		return envoy, err
	}, "ingress_http.downstream_rq_active", 0}.run(ctx, left)
}

func (g *contour) applyDefinitions() error {
	return g.kube.applyFiles(filepath.Join(g.source, "examples/contour/01-crds.yaml"), "CustomResourceDefinition")
}

// certgen makes the Secrets of the control plane and Envoy for xDS, as the Job of Contour's examples does, and updates the volumes.
func (g *contour) certgen() error {
	if out, err := exec.Command(g.program, "certgen", "--kube", "--kubeconfig="+g.kube.kubeconfig(), "--overwrite", "--secrets-format=compact",
		"--namespace="+contourNamespace).CombinedOutput(); err != nil {
		return fmt.Errorf("contour certgen: %w: %s", err, out)
	}
	return errors.Join(
		g.kube.updateSecret(context.Background(), contourNamespace, "contourcert", g.path("certs/contourcert")),
		g.kube.updateSecret(context.Background(), contourNamespace, "envoycert", g.path("certs/envoycert")),
	)
}
