package doctor

import (
	"fmt"
	"strings"
	"time"
)

// longWithoutModule is how long a member may have run without a connected module before a note says so.
const longWithoutModule = 10 * time.Minute

// refusedModules are the reasons for which members refuse the connections of modules, except corrupt memory, and the advice.
var refusedModules = []struct{ reason, text, advice string }{
	{"malformed", "their messages are malformed", "load a module of the same release as the sidecar (scripts/module), and restrict " +
		"the socket to Envoy: --module-socket-mode"},
	{"silent", "they sent no greeting in 5 s, or did not read", "does another program connect to the socket, or is Envoy stopped or " +
		"overloaded? Its requests are decided by calls"},
	{"excess", "there were more than 64", "use one sidecar for each pod; connections that are not accepted leave all requests to calls"},
}

// modules checks the connections of the dynamic modules in Envoys.
func modules(f *Snapshot, r *report) {
	var with, idle []string
	connected := 0
	for _, m := range f.counters() {
		if m.flag("module-socket") == "" {
			continue
		}
		with = append(with, m.Name())
		n := int(m.Metrics.Sum("keyward_module_connections"))
		connected += n
		if n == 0 && f.Now.Sub(m.Self.Started) > longWithoutModule {
			idle = append(idle, m.Name())
		}
		modulesOf(m, r)
	}
	switch {
	case len(with) == 0:
		r.ok("no member has --module-socket: Envoys have no module")
	case len(idle) > 0:
		r.ok("note: no module is connected to %s, which started more than %.0f minutes ago; does Envoy load the module, "+
			"with the path of --module-socket?", strings.Join(idle, ", "), longWithoutModule.Minutes())
	}
	r.quiet("%s of Envoys connected to %s", number(connected, "module"), number(len(with), "member"))
}

// modulesOf checks the modules of one member.
func modulesOf(m *MemberReport, r *report) {
	p := m.Metrics
	for _, x := range refusedModules {
		if n := p.Sum("keyward_module_refused_total", "reason", x.reason); n > 0 {
			r.warn(x.advice, "%s has refused %s of modules since it started: %s", m.Name(), number(int(n), "connection"), x.text)
		}
	}
	closed, lost := p.Sum("keyward_module_refused_total", "reason", "corrupt"), p.Sum("keyward_module_lost_hits_total")
	if found := p.Sum("keyward_module_missed_total", "cause", "corrupt"); closed+lost+found > 0 {
		var parts []string
		for _, part := range []struct {
			n     float64
			thing string
			more  string
		}{{closed, "connection", "closed"}, {lost, "hit", "lost"}, {found, "request", "for which the module found a corrupt lease"}} {
			if part.n > 0 {
				parts = append(parts, fmt.Sprintf("%s %s", number(int(part.n), part.thing), part.more))
			}
		}
		r.fail("something in that Envoy writes to memory that it does not own: other modules, native extensions, or an attacker. "+
			"Restart it without them; see docs/runbooks/KeywardModuleCorrupt.md",
			"the memory that %s shares with an Envoy was corrupt: %s", m.Name(), strings.Join(parts, ", "))
	}
	if n := p.Sum("keyward_module_full_total"); n > 0 {
		r.warn("what has no lease is decided by calls. Are there many keys with a request per second or more, or does a client create "+
			"them? /v1/modules lists used of slots", "%s had no room in an Envoy's memory for %s", m.Name(), number(int(n), "lease"))
	}
}
