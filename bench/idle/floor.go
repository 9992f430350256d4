package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// floor measures a program that does only what a sidecar among as many others cannot leave out, as the sidecar was measured.
func (c *cluster) floor(settle, over time.Duration) (u use, err error) {
	path := filepath.Join(c.dir, "floor")
	build := exec.Command("go", "build", "-o", path, "github.com/keyward/keyward/bench/idle/floor")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return u, fmt.Errorf("build floor: %w", err)
	}
	args := []string{
		"-n", fmt.Sprint(c.n - 1),
		"-cert", c.lab.CertFile("sidecar", ".crt"), "-key", c.lab.CertFile("sidecar", ".key"), "-ca", c.lab.CertFile("ca", ".crt"),
	}
	var p *lab.Process
	for name, more := range map[string][]string{"floor-others": {"-others"}, "floor": nil} {
		spec := lab.Spec{Name: name, Path: path, Args: append(args[:len(args):len(args)], more...)}
		q, err := lab.StartProcess(filepath.Join(c.dir, "log"), spec)
		if err != nil {
			return u, err
		}
		defer q.Kill()
		if more == nil {
			p = q
		}
	}
	time.Sleep(settle)
	if !p.Running() {
		return u, fmt.Errorf("floor has ended: %s", p.Tail(1000))
	}
	return watch(p, over)
}
