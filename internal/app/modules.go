package app

import (
	"fmt"
	"os"
	"strconv"

	"github.com/keyward/keyward/envoy/module"
	"github.com/keyward/keyward/internal/modules"
)

// podModules leases parts of limits to the dynamic modules in this pod's Envoys.
type podModules struct {
	server *module.SegmentServer // nil: none
	lessor *modules.Lessor
}

func (p *podModules) start(m *sidecar) error {
	path := m.Flags.ModuleSocket
	if path == "" {
		return nil
	}
	mode, _ := parseMode(m.Flags.ModuleSocketMode) // validated
	p.lessor = modules.New(modules.Options{
		Charger: m.peer, Rules: m.service.Matcher,
		Members: func() int { return m.cluster.Load().View().Ring.Len() },
	})
	var err error
	if p.server, err = module.Listen(module.Options{Path: path, Mode: mode, Book: p.lessor, Logger: m.Log}); err != nil {
		return fmt.Errorf("--module-socket: %w", err)
	}
	m.reg.MustRegister(p.lessor.Collectors(p.server)...)
	m.Log.Info("listening", "listener", "module", "address", path)
	return nil
}

// close ends the connections. The Envoys call the rate limit service from then on, and owners get back what was not spent.
func (p *podModules) close(m *sidecar) {
	if p.server != nil {
		if err := p.server.Close(); err != nil {
			m.Log.Warn("closing the module socket failed", "error", err)
		}
	}
	if p.lessor != nil {
		p.lessor.Close()
	}
}

// parseMode parses the permissions of a file, in octal digits.
func parseMode(s string) (os.FileMode, error) {
	n, err := strconv.ParseUint(s, 8, 32)
	if err != nil || n == 0 || n > 0o777 {
		return 0, fmt.Errorf("want octal digits like 0600, not %q", s)
	}
	return os.FileMode(n), nil
}
