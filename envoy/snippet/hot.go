package snippet

import (
	"errors"
	"fmt"
	"strings"

	"github.com/keyward/keyward/envoy/internal/names"
)

// hotFaults returns errors for what routes from xDS cannot reach.
func (g *generator) hotFaults() (faults []error) {
	fail := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("hot routes: "+format, args...))
	}
	switch {
	case !g.HotRoutes:
	case g.Gateway != "":
		fail("the routes of these Envoys come from %s, and not from xDS: use hot filters where it supports them", g.Gateway)
	case g.quotas && g.XDS == "" && g.Part == partBootstrap:
		fail("they need the address of an xDS server")
	case g.Shape == Plain && !g.Routed && !g.quotas:
		fail("in shape plain, the Envoy in front has them and routes requests here: set routed")
	case g.Shape == Routes && g.Part == partFilter:
		fail("they replace all routes of the listener, so no single route can be printed")
	case g.Shape != Plain && g.Part == partBootstrap && g.XDS == "":
		fail("they need the address of an xDS server")
	}
	return faults
}

// planHot uses the sub-key of a hot key, where a route sets one, instead of the header that xDS matches.
func (g *generator) planHot() []error {
	if !g.HotRoutes || g.Part == partCluster || g.secrets() {
		return nil
	}
	if g.quotas {
		return g.planHotQuotaHeader()
	}
	header := g.hotHeader()
	placed := g.Shape == Routes && header != ""
	for i := range g.Domains {
		d := &g.Domains[i]
		if g.Shape == Routes {
			break // the Envoys of the pods make the calls
		}
		if header == "" || d.Key.Header != header {
			g.warn("domain %s: hot routes have no effect, since its calls are not placed by %s", d.Name,
				orElse(header, "a header"))
			continue
		}
		if d.Key.Format != "%REQ("+header+")%" {
			g.warn("domain %s: with hot routes, calls are placed only by %s; those without it go to any member, which forwards", d.Name, header)
		}
		d.Key.Format = "%REQ(" + names.SubHeader + "?" + header + ")%"
		placed = true
	}
	if !placed {
		return []error{errors.New("hot routes: xDS matches the value of a header, but no call is placed by one")}
	}
	if header != defaultRouteHeader {
		g.warn("hot routes match the header that the xDS server is configured with: --route-header %s", header)
	}
	return nil
}

// planHotQuotaHeader checks that routes match the header of the rules with hot_step: quota.
func (g *generator) planHotQuotaHeader() []error {
	matched := orElse(strings.ToLower(g.RouteHeader), defaultRouteHeader)
	for i := range g.Domains {
		if d := &g.Domains[i]; d.Filter != "" && d.Header != matched {
			g.warn("domain %s: keys of %s never switch to the quota: hot routes match the header %s, --route-header of the xDS server", d.Name,
				d.Header, matched)
		}
	}
	return nil
}

// OwnLDS reports whether Envoy takes the listener through which its sidecar primes keys from xDS.
func (g *generator) OwnLDS() bool { return g.HotRoutes && g.quotas }

// hotHeader returns the header that xDS matches, or "".
func (g *generator) hotHeader() string {
	if g.RouteHeader != "" {
		return strings.ToLower(g.RouteHeader)
	}
	if g.Shape == Routes {
		return g.RouteOwner.Header
	}
	for _, d := range g.Domains {
		if d.Key.Header != "" {
			return d.Key.Header
		}
	}
	return ""
}

// SubHeader returns the header that carries the sub-key of a hot key within Envoy.
func (g *generator) SubHeader() string { return names.SubHeader }

// SpreadFilter returns the name of the filter that sets SubHeader.
func (g *generator) SpreadFilter() string { return names.SpreadFilter }

// CapFilter returns the name of the filter that caps a hot key.
func (g *generator) CapFilter() string { return names.CapFilter }

// HotFilters reports whether this Envoy, and not the one in front, has the routes of hot keys.
func (g *generator) HotFilters() bool { return g.HotRoutes && (g.Shape != Plain || g.quotas) }

// RouteConfig returns the name of the routes that xDS serves for the shape.
func (g *generator) RouteConfig() string {
	if g.Shape == Routes {
		return names.RouteConfig
	}
	return names.DirectConfig
}
