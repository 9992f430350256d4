package translate

import (
	"slices"
	"strings"
)

const gatewayGroup = "gateway.networking.k8s.io"

// topology is the Gateways and routes in the files.
type topology struct {
	gateways []*gateway
	routes   []*route
}

type gateway struct {
	*object
	listeners []*listener
}

type listener struct {
	of             *gateway
	name, hostname string
	protocol       string
	port           string
	from           string // the namespaces of its routes: Same, All or Selector
	kinds          []string
}

// route is an HTTPRoute or a GRPCRoute.
type route struct {
	*object
	hostnames []string
	parents   []parent
	rules     []routeRule
}

// parent is a reference of a route to what it is attached to.
type parent struct {
	ref             field
	kind            string
	namespace, name string
	section, port   string
}

// routeRule is a rule of a route.
type routeRule struct {
	name    string
	matches int    // 0: the rule has none and matches every request
	cors    []bool // by match: it has a CORS filter and a method other than OPTIONS
	filters []field
}

// readTopology collects the Gateways and routes.
func readTopology(objects []*object) *topology {
	t := &topology{}
	for _, o := range objects {
		switch {
		case o.is(gatewayGroup, "Gateway"):
			t.gateways = append(t.gateways, readGateway(o))
		case o.is(gatewayGroup, "HTTPRoute"), o.is(gatewayGroup, "GRPCRoute"):
			t.routes = append(t.routes, readRoute(o))
		}
	}
	return t
}

func readGateway(o *object) *gateway {
	g := &gateway{object: o}
	for _, f := range o.spec().open().get("listeners").items() {
		m := f.open()
		l := &listener{of: g, name: m.get("name").text(), hostname: m.get("hostname").text(),
			protocol: m.get("protocol").text(), port: m.get("port").text(), from: "Same"}
		allowed := m.get("allowedRoutes").open()
		if from := allowed.get("namespaces").open().get("from"); from.exists() {
			l.from = from.text()
		}
		for _, k := range allowed.get("kinds").items() {
			l.kinds = append(l.kinds, k.open().get("kind").text())
		}
		g.listeners = append(g.listeners, l)
	}
	return g
}

func readRoute(o *object) *route {
	r := &route{object: o}
	spec := o.spec().open()
	for _, h := range spec.get("hostnames").items() {
		r.hostnames = append(r.hostnames, h.text())
	}
	for _, f := range spec.get("parentRefs").items() {
		m := f.open()
		p := parent{ref: f, kind: "Gateway", namespace: o.namespace, name: m.get("name").text(),
			section: m.get("sectionName").text(), port: m.get("port").text()}
		if k := m.get("kind"); k.exists() {
			p.kind = k.text()
		}
		if n := m.get("namespace"); n.exists() {
			p.namespace = n.text()
		}
		r.parents = append(r.parents, p)
	}
	for _, f := range spec.get("rules").items() {
		r.rules = append(r.rules, readRouteRule(f.open()))
	}
	return r
}

func readRouteRule(m mapping) routeRule {
	rule := routeRule{name: m.get("name").text()}
	cors := false
	for _, f := range m.get("filters").items() {
		filter := f.open()
		switch filter.get("type").text() {
		case "CORS":
			cors = true
		case "ExtensionRef":
			rule.filters = append(rule.filters, filter.get("extensionRef"))
		}
	}
	for _, match := range m.get("matches").items() {
		method := ""
		if f := match.open().get("method"); f.node != nil && f.node.Value != "" { // that of a GRPCRoute is a mapping
			method = f.node.Value
		}
		rule.cors = append(rule.cors, cors && method != "" && method != "OPTIONS")
	}
	rule.matches = len(rule.cors)
	return rule
}

// gateway returns the Gateway with a name, or nil.
func (t *topology) gateway(namespace, name string) *gateway {
	if i := slices.IndexFunc(t.gateways, func(g *gateway) bool { return g.namespace == namespace && g.name == name }); i >= 0 {
		return t.gateways[i]
	}
	return nil
}

// route returns the route with a name, or nil.
func (t *topology) route(kind, namespace, name string) *route {
	if i := slices.IndexFunc(t.routes, func(r *route) bool {
		return r.kind == kind && r.namespace == namespace && r.name == name
	}); i >= 0 {
		return t.routes[i]
	}
	return nil
}

// listeners returns the listeners to which a route is attached, each once.
func (t *topology) listeners(r *route) (all []*listener) {
	for _, p := range r.parents {
		g := t.gateway(p.namespace, p.name)
		if p.kind != "Gateway" || g == nil {
			continue
		}
		for _, l := range g.listeners {
			fits := (p.section == "" || p.section == l.name) && (p.port == "" || p.port == l.port) && l.admits(r)
			if fits && !slices.Contains(all, l) {
				all = append(all, l)
			}
		}
	}
	return all
}

// admits reports whether a listener accepts a route. Namespaces of a selector are not evaluated: they are accepted.
func (l *listener) admits(r *route) bool {
	switch {
	case l.protocol != "HTTP" && l.protocol != "HTTPS":
		return false
	case l.from == "Same" && l.of.namespace != r.namespace, l.from == "None":
		return false
	}
	return len(l.kinds) == 0 || slices.Contains(l.kinds, r.kind)
}

// hosts returns the hostnames under which a listener serves a route: the intersection of both, without those that
// another listener of the same port has.
func (l *listener) hosts(r *route) []string {
	if len(r.hostnames) == 0 {
		if l.hostname == "" {
			return []string{"*"}
		}
		return []string{l.hostname}
	}
	var all []string
	for _, h := range r.hostnames {
		switch {
		case l.hostname == "" || l.hostname == h || covers(l.hostname, h):
			all = append(all, h)
		case covers(h, l.hostname):
			all = append(all, l.hostname)
		}
	}
	all = slices.DeleteFunc(all, func(h string) bool {
		return slices.ContainsFunc(l.of.listeners, func(other *listener) bool {
			return other != l && other.port == l.port && other.hostname == h
		})
	})
	slices.Sort(all)
	return slices.Compact(all)
}

// covers reports whether a hostname that begins with * includes another one, which may begin with *, too.
func covers(wildcard, host string) bool {
	suffix, ok := strings.CutPrefix(wildcard, "*")
	if !ok {
		return false
	}
	if inner, wild := strings.CutPrefix(host, "*"); wild {
		rest, found := strings.CutSuffix(inner, suffix)
		return found && strings.HasPrefix(rest, ".")
	}
	rest, found := strings.CutSuffix(host, suffix)
	return found && rest != ""
}
