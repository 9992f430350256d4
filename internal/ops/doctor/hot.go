package doctor

import (
	"strings"

	"github.com/keyward/keyward/internal/api"
)

// unrelieved is the share of a hot key's requests from which its owner decides nearly all of them itself, as in
// keyward_hot_keys_unrelieved.
const unrelieved = 0.75

// hot checks that hot keys are relieved, and states which kinds of relief each of them can have.
func hot(f *Snapshot, r *report) {
	envoys := subscriptions(f)
	n := 0
	for i := range f.Members {
		m := &f.Members[i]
		if m.HotKeys == nil {
			continue
		}
		for j := range m.HotKeys.Keys {
			k := &m.HotKeys.Keys[j]
			if !k.Hot {
				continue
			}
			n++
			if k.Rate > 0 && k.OwnRate > unrelieved*k.Rate {
				r.warn(hotAdvice(k, envoys), "%s decides %.0f of %.0f requests per second for %s %s itself; %s", m.Name(),
					k.OwnRate, k.Rate, k.Domain, k.Name, formatRelief(k, envoys))
			}
		}
	}
	r.quiet("%s, all relieved", number(n, "hot key"))
}

// subscriptions returns the routes and filters that each client of all xDS servers takes for hot keys.
func subscriptions(f *Snapshot) (all [][]string) {
	for i := range f.Members {
		s, _ := xdsOf(&f.Members[i].Cluster)
		for _, c := range s.Clients {
			all = append(all, c.Hot)
		}
	}
	return all
}

// formatRelief lists what the key can have, with the number of Envoys that have it, and why not the rest.
func formatRelief(k *api.HotKeyStatus, envoys [][]string) string {
	var parts []string
	for i := range k.Relief {
		x := &k.Relief[i]
		switch {
		case x.Why != "":
			parts = append(parts, "no "+x.Kind+" ("+x.Why+")")
		case x.Kind == "lease":
			parts = append(parts, "lease possible")
		default:
			parts = append(parts, x.Kind+" by "+number(havers(x, k.Domain, envoys), "Envoy"))
		}
	}
	if len(parts) == 0 {
		return "its name is not known yet"
	}
	return strings.Join(parts, ", ")
}

// havers counts the Envoys that can relieve a key in this way.
func havers(x *api.HotRelief, domain string, envoys [][]string) (n int) {
	for _, names := range envoys {
		routes, filter := false, false
		for _, name := range names {
			caps, spreads := strings.HasPrefix(name, "keyward-caps/"), strings.HasPrefix(name, "keyward-spread-")
			routes = routes || !caps && !spreads && x.With == ""
			filter = filter || x.Kind == "split" && spreads || x.Kind == "cap" && name == "keyward-caps/"+domain
		}
		if routes || filter {
			n++
		}
	}
	return n
}

func hotAdvice(k *api.HotKeyStatus, envoys [][]string) string {
	possible, had := false, false
	for i := range k.Relief {
		if x := &k.Relief[i]; x.Why == "" && x.Kind != "lease" {
			possible, had = true, had || havers(x, k.Domain, envoys) > 0
		}
	}
	switch {
	case len(k.Relief) == 0:
		return "members report the name within seconds of a request: run this again"
	case !possible:
		return "raise the limit or lengthen the window, so that it can be lent, or deny requests before Keyward is " +
			"asked: keyward envoy-config --caps"
	case !had:
		return "let Envoys take filters for hot keys from xDS: keyward envoy-config --hot-filters"
	}
	return "if its requests do not exceed the limit by far: keyward hot split; " +
		"see docs/runbooks/KeywardHotKeyUnrelieved.md"
}
