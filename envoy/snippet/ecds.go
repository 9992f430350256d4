package snippet

import (
	"fmt"
	"slices"

	"github.com/keyward/keyward/envoy/internal/names"
)

// ecdsFaults returns errors for what filters from xDS cannot be combined with.
func (g *generator) ecdsFaults() (faults []error) {
	fail := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("hot filters: "+format, args...))
	}
	switch {
	case !g.HotECDS:
	case g.Caps && g.Shape == Plain:
		fail("in shape plain they only cap, as caps do: choose one")
	case g.HotRoutes:
		fail("hot routes do the same, for an Envoy that takes all routes from xDS: choose one")
	case g.Shape == Routes && g.Part == partFilter:
		fail("a route cannot contain filters")
	case g.XDS == "" && g.Part == partBootstrap:
		fail("they need the address of an xDS server")
	case g.Gateway == gatewayContour || g.Gateway == gatewayKGateway:
		fail("%s has no resource for them", g.Gateway)
	}
	return faults
}

// planECDS places the calls of a domain by the sub-key that a filter from xDS sets, where that filter can recognize the
// key.
func (g *generator) planECDS() []error {
	if !g.HotECDS || g.Part == partCluster || g.secrets() {
		return nil
	}
	if g.Shape == Routes {
		g.spreadBy(g.RouteOwner)
		return nil
	}
	if g.Shape == Plain || g.Gateway == gatewayEnvoyGateway {
		return nil // calls are not placed, or no filter can follow the gateway's, which would remove the sub-key
	}
	for i := range g.Domains {
		d := &g.Domains[i]
		switch g.spreadBy(d.Key) {
		case header:
			if d.Key.Format != "%REQ("+d.Key.Header+")%" {
				g.warn("domain %s: with hot filters, calls are placed only by %s; those without it go to any member, "+
					"which forwards", d.Name, d.Key.Header)
			}
			d.Key.Format = "%REQ(" + names.SubHeader + "?" + d.Key.Header + ")%"
		case remoteAddress:
			d.Key.Format = "%REQ(" + names.SubHeader + ")%"
		default:
			g.warn("domain %s: hot keys are capped but not spread, since its calls are not placed by the same header or "+
				"address as those of other domains", d.Name)
		}
	}
	return nil
}

// spreadBy returns what places calls that have this owner, if a filter can recognize it: one header or the address for
// all domains.
func (g *generator) spreadBy(owner expr) sourceKind {
	kind := unknownSource
	switch {
	case owner.Header != "":
		kind = header
	case owner.Source.kind == remoteAddress:
		kind = remoteAddress
	}
	if g.spread == unknownSource && kind != unknownSource {
		g.spread, g.spreadHeader = kind, owner.Header
		if kind == header && owner.Header != defaultRouteHeader {
			g.warn("hot filters match the header that the xDS server is configured with: --route-header %s", owner.Header)
		}
	}
	if kind != g.spread || owner.Header != g.spreadHeader {
		return unknownSource
	}
	return kind
}

// The methods below are called by the templates.

// Spreads reports whether a filter from xDS sets the sub-keys of hot keys.
func (g *generator) Spreads() bool { return g.HotECDS && g.spread != unknownSource }

// SpreadByAddress reports whether the client's address places calls, not a header.
func (g *generator) SpreadByAddress() bool { return g.spread == remoteAddress }

// SpreadECDS returns the name of the filter from xDS that sets the sub-keys.
func (g *generator) SpreadECDS() string {
	if g.SpreadByAddress() {
		return names.SpreadByAddress
	}
	return names.SpreadByHeader
}

// ActionsInRoutes reports whether the routes have the descriptors, not the rate limit filter: caps from xDS read those
// of the routes.
func (g *generator) ActionsInRoutes() bool {
	return g.HotECDS && !g.Caps && !g.KeepActions() && len(g.RouteActions()) > 0
}

// OwnECDS reports whether the filters have their own stream to the xDS server. In a configuration of its own, Envoy
// uses the aggregated one.
func (g *generator) OwnECDS() bool { return g.Part != partBootstrap }

// RouteActions returns the descriptors of all domains, for the routes.
func (g *generator) RouteActions() (all []descriptor) {
	for _, d := range g.Domains {
		for _, x := range d.Descriptors {
			if at := slices.IndexFunc(all, func(o descriptor) bool { return slices.Equal(o.Actions, x.Actions) }); at >= 0 {
				all[at].Rules = append(slices.Clone(all[at].Rules), x.Rules...)
			} else {
				all = append(all, x)
			}
		}
	}
	return all
}

// CapsECDS returns the names of the filters from xDS with the caps of each domain. Static caps include them.
func (g *generator) CapsECDS() (all []string) {
	if g.Caps || !g.HotECDS {
		return nil
	}
	if g.Gateway == gatewayEnvoyGateway {
		return []string{names.CapsFilter + "/" + g.Kube.Listener} // the gateway names domains after listeners
	}
	if g.Rules == nil {
		return nil
	}
	for _, name := range g.Rules.Domains() {
		if g.Shape == Routes || slices.ContainsFunc(g.Domains, func(d domain) bool { return d.Name == name }) {
			all = append(all, names.CapsFilter+"/"+name)
		}
	}
	return all
}
