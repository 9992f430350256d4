package app

import (
	"fmt"
	"os"
	"strconv"

	"github.com/keyward/keyward/envoy/module"
	"github.com/keyward/keyward/internal/api"
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
		Members: m.members,
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

// The most Envoys of /v1/modules, and the most keys of each.
const (
	modulesShown    = 64
	moduleKeysShown = 100
)

// moduleStatus returns the document of /v1/modules.
func (m *sidecar) moduleStatus() api.Modules {
	d := api.Modules{Member: m.Flags.Node, Socket: m.Flags.ModuleSocket, Envoys: []api.ModuleEnvoy{}, Refused: map[string]uint64{}}
	p := &m.modules
	if p.server == nil {
		return d
	}
	for kind := range module.RefusalKinds {
		d.Refused[kind.String()] = p.server.Refused(kind)
	}
	states, total := p.lessor.States(modulesShown, moduleKeysShown)
	d.Total = total
	for i := range states {
		d.Envoys = append(d.Envoys, moduleEnvoy(&states[i]))
	}
	return d
}

func moduleEnvoy(s *modules.ModuleState) api.ModuleEnvoy {
	e := api.ModuleEnvoy{
		Node: s.Hello.Node, ABI: s.Hello.ABI, Since: s.Since.UTC(), Slots: s.Slots, Used: s.Used, Keys: []api.ModuleKey{}, Total: s.Total,
		Taken: s.Counters.Taken, NoLease: s.Counters.Misses, Empty: s.Counters.Empty, Corrupt: s.Counters.Corrupt,
	}
	for i := range s.Keys {
		k := &s.Keys[i]
		e.Keys = append(e.Keys, api.ModuleKey{
			Domain: k.Domain, Name: string(k.Match.AppendName(nil, k.Entries)), Digest: digest(k.Request.Key), Limit: k.Match.Limit.Limit,
			Window: k.Match.Limit.Window.String(), Rate: round(k.Rate), Given: k.Given, Left: k.Left, Taken: k.Taken, NoLease: k.NoLease,
			Empty: k.Empty,
		})
	}
	return e
}
