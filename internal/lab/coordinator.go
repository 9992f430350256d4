package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Coordinator is a running cmd/coordinator with a store in memory, and its addresses.
type Coordinator struct {
	*Process
	Addr, Metrics string
	Layout        string // the file with the regions
}

// AddCoordinator starts a coordinator of the lab's Regions, which share limits.
func (l *Lab) AddCoordinator() (*Coordinator, error) {
	c := &Coordinator{Layout: l.path("federation.yaml")}
	if err := l.ports.fill(&c.Addr, &c.Metrics); err != nil {
		return nil, err
	}
	text := "name: lab\nepoch: 1\ncoordinator: home\nregions:\n"
	for _, name := range l.Regions {
		text += fmt.Sprintf("- {name: %q}\n", name)
	}
	if err := os.WriteFile(c.Layout, []byte(text), 0o644); err != nil {
		return nil, fmt.Errorf("start a coordinator: %w", err)
	}
	return c, l.RestartCoordinator(c)
}

// RestartCoordinator starts a coordinator that has ended, with nothing in its memory, at the same addresses.
func (l *Lab) RestartCoordinator(c *Coordinator) error {
	args := []string{"--listen", c.Addr, "--metrics", c.Metrics, "--federation", c.Layout, "--store", "memory", "--init"}
	if l.Insecure {
		args = append(args, "--insecure")
	} else {
		args = append(args, "--tls-cert", l.CertFile("sidecar", ".crt"), "--tls-key", l.CertFile("sidecar", ".key"), "--tls-ca", l.CertFile("ca", ".crt"))
	}
	p, err := StartProcess(l.path("log"), Spec{Name: "coordinator", Path: filepath.Join(l.Bin, "coordinator"), Args: args})
	if err != nil {
		return err
	}
	c.Process = p
	l.started = append(l.started, p)
	return nil
}

// RegionArgs returns the flags of a sidecar in a region that reaches the coordinator at addr.
func (l *Lab) RegionArgs(c *Coordinator, region, addr string) []string {
	args := []string{"--region", region, "--federation", c.Layout, "--authority", "home=keyward://" + addr}
	if l.Insecure {
		return args
	}
	cert := l.CertFile("region-"+region, ".crt")
	return append(args, "--tls-cert", cert, "--tls-key", strings.TrimSuffix(cert, ".crt")+".key")
}

// AddRegion starts the only member of a cluster of its own, which is a region and reaches the coordinator at addr.
func (l *Lab) AddRegion(c *Coordinator, region, addr string) (*Sidecar, error) {
	s := &Sidecar{Runtime: l.path("runtime-" + region)}
	if err := l.ports.fill(&s.RLS, &s.Direct, &s.HTTP, &s.Debug, &s.Metrics, &s.Gossip, &s.Peer, &s.XDS, &s.Route); err != nil {
		return nil, err
	}
	if err := l.WriteRules(s, l.Rules); err != nil {
		return nil, err
	}
	args := append([]string{"--cluster", region, "--join", s.Gossip}, l.RegionArgs(c, region, addr)...)
	if err := l.startSidecar(s, region, args); err != nil {
		return nil, err
	}
	l.Sidecars = append(l.Sidecars, s)
	return s, nil
}
