package snippet

import (
	"errors"
	"fmt"
	"strings"

	"github.com/keyward/keyward/envoy/internal/names"
)

// hotFaults are the places that no route of xDS can reach.
func (g *generator) hotFaults() (faults []error) {
	fail := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("hot routes: "+format, args...))
	}
	switch {
	case !g.HotRoutes:
	case g.Shape == Plain && !g.Routed:
		fail("in shape plain they are those of the Envoy in front, which brings the requests here: routed")
	case g.Shape == Routes && g.Part == partFilter:
		fail("they come with all of the listener's routes, so no single route can be printed")
	case g.Shape != Plain && g.Part == partBootstrap && g.XDS == "":
		fail("they come from an xDS server, whose address is missing")
	}
	return faults
}

// planHot lets a hot key's sub-key, where a route set one, take the place of the header that xDS matches.
func (g *generator) planHot() []error {
	if !g.HotRoutes || g.Part == partCluster || g.secrets() {
		return nil
	}
	header := g.hotHeader()
	placed := g.Shape == Routes && header != ""
	for i := range g.Domains {
		d := &g.Domains[i]
		if g.Shape == Routes {
			break // the pods' Envoys ask
		}
		if header == "" || d.Key.Header != header {
			g.warn("domain %s: hot routes do nothing for it, since its questions are not placed by %s", d.Name, orElse(header, "a header"))
			continue
		}
		if d.Key.Format != "%REQ("+header+")%" {
			g.warn("domain %s: hot routes leave one header to place a question by, %s; what has only another is asked anywhere, and forwarded", d.Name, header)
		}
		d.Key.Format = "%REQ(" + names.SubHeader + "?" + header + ")%"
		placed = true
	}
	if !placed {
		return []error{errors.New("hot routes: xDS matches the value of one header, and no question is placed by one")}
	}
	if header != defaultRouteHeader {
		g.warn("hot routes match the header that the xDS server is told: --route-header %s", header)
	}
	return nil
}

// hotHeader is the header that xDS matches; empty when there is none.
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

// SubHeader carries a hot key's sub-key within Envoy.
func (g *generator) SubHeader() string { return names.SubHeader }

// SpreadFilter is the name under which the routes find the filter that sets SubHeader.
func (g *generator) SpreadFilter() string { return names.SpreadFilter }

// CapFilter is the name of the filter that caps a hot key.
func (g *generator) CapFilter() string { return names.CapFilter }

// HotFilters says that this Envoy has the hot keys' routes itself, and not the one in front.
func (g *generator) HotFilters() bool { return g.HotRoutes && g.Shape != Plain }

// RouteConfig is the name of the routes that xDS serves for the shape.
func (g *generator) RouteConfig() string {
	if g.Shape == Routes {
		return names.RouteConfig
	}
	return names.DirectConfig
}
