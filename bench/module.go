package main

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/keyward/keyward/internal/lab"
)

// module is one sidecar and an Envoy with the dynamic module, which spends leases of that sidecar.
func module() contestant {
	return contestant{
		Name: nameEnvoyModule, Title: "Keyward, one node, and the dynamic module", envoy: true, extra: true,
		lacks: func(*arena) string {
			if _, err := exec.LookPath("cargo"); err != nil {
				return "no cargo on the PATH"
			}
			return ""
		},
		start: func(ctx context.Context, a *arena, r *running) error {
			file, err := exec.Command("../scripts/module").Output() // for the Envoy of scripts/envoy
			if err != nil {
				return err
			}
			dir, err := filepath.Abs(filepath.Dir(strings.TrimSpace(string(file))))
			if err != nil {
				return err
			}
			socket := filepath.Join(r.dir, "module.sock")
			if _, err := newCluster(ctx, a, r, lab.Options{Dir: r.dir, Args: []string{"--module-socket", socket}}, "a"); err != nil {
				return err
			}
			service := r.targets[0].addr
			return startEnvoy(ctx, a, r, func(e *lab.EnvoyOptions) error {
				e.Shape, e.Args = "module", append([]string{"--sidecar", service, "--module-socket", socket, "--envoy-version", "1.40.0"}, limitArgs...)
				e.Env = []string{"ENVOY_DYNAMIC_MODULES_SEARCH_PATH=" + dir}
				return nil
			})
		},
	}
}
