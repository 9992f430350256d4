package snippet

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
)

// Gateway names a gateway whose own resources are printed.
type Gateway string

// With Istio and Envoy Gateway, Envoy can call owners directly. Contour and kgateway cannot express that: their Envoy
// calls any member.
const (
	gatewayIstio        Gateway = "istio"
	gatewayEnvoyGateway Gateway = "envoy-gateway"
	gatewayContour      Gateway = "contour"
	gatewayKGateway     Gateway = "kgateway"
)

// Kube locates the gateway and the release in a Kubernetes cluster. The names of the chart's objects follow from
// Release.
type Kube struct {
	Release          string // full name of the chart's objects; default keyward
	Namespace        string // of the release; default keyward
	Gateway          string // the gateway's name; default gateway
	GatewayNamespace string // namespace of the gateway and of its resources; default that of the release
	Listener         string // envoy-gateway: name of Envoy's listener; default GatewayNamespace/Gateway/http
	Selector         string // istio: label of the gateway's pods, as KEY=VALUE; default istio=ingressgateway
	Plaintext        bool   // the release has no certificates
}

func (k *Kube) fill() {
	setDefault(&k.Release, "keyward")
	setDefault(&k.Namespace, "keyward")
	setDefault(&k.Gateway, "gateway")
	setDefault(&k.GatewayNamespace, k.Namespace)
	setDefault(&k.Listener, k.GatewayNamespace+"/"+k.Gateway+"/http")
	setDefault(&k.Selector, "istio=ingressgateway")
}

// fillGateway sets the defaults for o.Gateway from o.Kube. It returns an error if the gateway does not support o.
func (o *Options) fillGateway() error {
	gateway, k := o.Gateway, &o.Kube
	k.fill()
	if err := o.checkGateway(); err != nil {
		return err
	}
	o.Part = Part("for-" + string(gateway))
	noCalls := o.Shape == RLQS || o.Shape == Module
	if noCalls && gateway == gatewayEnvoyGateway {
		o.Part += "-filters"
	}
	if o.Shape == Module {
		setDefault(&o.Sidecar, "127.0.0.1:8081") // in the gateway's pod
	}
	service := "." + k.Namespace + ".svc"
	setDefault(&o.Sidecar, net.JoinHostPort(k.Release+service, "8081"))
	if noCalls || o.Shape == Plain || o.Shape == "" && gateway != gatewayIstio && gateway != gatewayEnvoyGateway {
		return nil
	}
	xds := k.Release + "-xds" + service
	setDefault(&o.XDS, net.JoinHostPort(xds, "18000"))
	if k.Plaintext {
		return nil
	}
	setDefault(&o.TLSCert, "/etc/keyward/tls/tls.crt")
	setDefault(&o.TLSKey, "/etc/keyward/tls/tls.key")
	setDefault(&o.TLSCA, "/etc/keyward/tls/ca.crt")
	setDefault(&o.SDS, "/etc/keyward/sds")
	if len(o.XDSNames) == 0 {
		o.XDSNames = []string{xds}
	}
	if len(o.ServerNames) == 0 {
		o.ServerNames = []string{k.Release + service}
	}
	return nil
}

// checkGateway returns an error if the gateway does not support o. It chooses the shape if only one is supported.
func (o *Options) checkGateway() error {
	gateway, k := o.Gateway, &o.Kube
	switch gateway {
	case gatewayIstio, gatewayEnvoyGateway:
		if o.Shape == Routes {
			return errors.New("shape routes requires an Envoy of your own")
		}
	case gatewayContour, gatewayKGateway:
		if o.Shape == RLQS || o.Shape == Module {
			return fmt.Errorf("%s has no resource that adds a filter to Envoy, so no Envoy of it can spend limits without calls: use shape plain", gateway)
		}
		if o.Shape != "" && o.Shape != Plain {
			return fmt.Errorf("%s has no resource that lets Envoy call the owner of a key: use shape plain, in which members forward requests", gateway)
		}
		o.Shape = Plain
	default:
		return fmt.Errorf("gateway %q: want envoy, %s, %s, %s or %s", gateway, gatewayIstio, gatewayEnvoyGateway,
			gatewayContour, gatewayKGateway)
	}
	if gateway == gatewayEnvoyGateway && o.Shape == Plain {
		return errors.New("envoy-gateway needs no resources for shape plain: the values of the chart's preset are enough")
	}
	if key, value, ok := strings.Cut(k.Selector, "="); !ok || key == "" || value == "" {
		return fmt.Errorf("selector %q: want KEY=VALUE", k.Selector)
	}
	return nil
}

// dropInexpressible drops what the gateway cannot express, with a warning. It returns an error if nothing is left.
func (g *generator) dropInexpressible() error {
	if g.Gateway != gatewayContour && g.Gateway != gatewayKGateway {
		return nil
	}
	if g.Gateway == gatewayContour && len(g.Domains) > 1 {
		for _, d := range g.Domains[1:] {
			g.warn("domain %s: left out, since Contour supports one domain, %s", d.Name, g.Domains[0].Name)
		}
		g.Domains = g.Domains[:1]
	}
	for i := range g.Domains {
		d := &g.Domains[i]
		d.Descriptors = slices.DeleteFunc(d.Descriptors, func(x descriptor) bool {
			for _, e := range x.Entries {
				if _, err := g.Entry(e); err != nil {
					g.warn("domain %s: %s is never applied: %v", d.Name, strings.Join(x.Rules, ", "), err)
					return true
				}
			}
			return false
		})
	}
	g.Domains = slices.DeleteFunc(g.Domains, func(d domain) bool { return len(d.Descriptors) == 0 })
	if len(g.Domains) == 0 {
		return fmt.Errorf("no rule is left that %s can apply:\n%s", g.Gateway, strings.Join(g.warnings, "\n"))
	}
	return nil
}

// planOwn plans for a gateway that generates rules and actions itself: only the key is needed.
func (g *generator) planOwn() []error {
	for key, all := range g.from {
		if e := all[0].expr(key); len(g.from) == 1 && e.Format != "" {
			g.Domains = []domain{{Name: "of each listener", Key: e}}
			return nil
		}
	}
	return []error{errors.New("envoy-gateway generates rules from BackendTrafficPolicies: name the value of a request that distinguishes clients, with one --from KEY=header:NAME")}
}

// Entry returns an entry of a descriptor in the gateway's own schema, as a YAML flow mapping.
func (g *generator) Entry(e entry) (string, error) {
	if e.written == "" && g.Gateway == gatewayContour {
		switch {
		case e.kind == header:
			return fmt.Sprintf("{requestHeader: {headerName: %s, descriptorKey: %s}}", quote(e.Name), quote(e.Key)), nil
		case e.kind == remoteAddress:
			return "{remoteAddress: {}}", nil
		case e.kind == constant:
			return fmt.Sprintf("{genericKey: {key: %s, value: %s}}", quote(e.Key), quote(e.Name)), nil
		}
	}
	if e.written == "" && g.Gateway == gatewayKGateway {
		switch {
		case e.kind == header && e.Name == ":path" && e.Key == "path":
			return "{type: Path}", nil
		case e.kind == header && strings.EqualFold(e.Name, e.Key):
			return fmt.Sprintf("{type: Header, header: %s}", quote(e.Key)), nil
		case e.kind == header:
			return "", fmt.Errorf("kgateway names the entry with the value of %s after that header: the rules must use this name, not %s", e.Name, e.Key)
		case e.kind == remoteAddress:
			return "{type: RemoteAddress}", nil
		case e.kind == constant:
			return fmt.Sprintf("{type: Generic, generic: {key: %s, value: %s}}", quote(e.Key), quote(e.Name)), nil
		}
	}
	return "", fmt.Errorf("%s has no entry for the source of %s", g.Gateway, e.Key)
}

// InPod reports whether Envoy needs a sidecar in its pod.
func (g *generator) InPod() bool { return g.module }

// OwnPlain reports whether the cluster of shape plain is printed. Istio has one of each Service.
func (g *generator) OwnPlain() bool { return g.Gateway != gatewayIstio || g.module }

// OwnStream reports whether the cluster of owners has its own stream to the xDS server.
func (g *generator) OwnStream() bool { return g.Gateway != "" }

// Selectors returns the label of the gateway's pods as a YAML flow mapping.
func (g *generator) Selectors() string {
	key, value, _ := strings.Cut(g.Kube.Selector, "=")
	return "{" + quote(key) + ": " + quote(value) + "}"
}

// OwnRules reports whether the rules are the user's, not those that the gateway generates with its own filters.
func (g *generator) OwnRules() bool {
	return g.Gateway != gatewayEnvoyGateway || g.quotas || g.module
}

// Ways returns comments about which requests Envoy decides, which calls go to owners directly and which are forwarded.
func (g *generator) Ways() string {
	var b bytes.Buffer
	for _, q := range g.Quotas {
		fmt.Fprintf(&b, "# Domain %s: Envoy spends the limits of %s itself, without calls.\n", comment([]string{q.Domain}), comment(q.Rules))
	}
	for _, d := range g.Domains {
		switch {
		case d.Module != "":
			fmt.Fprintf(&b, "# Domain %s: Envoy spends leases of the sidecar in its pod without calls. Other calls go to this sidecar, which forwards.\n", comment([]string{d.Name}))
		case g.Shape == Plain:
			fmt.Fprintf(&b, "# Domain %s: calls go to any member, which forwards requests that it does not own: (N-1)/N of them with N members.\n", comment([]string{d.Name}))
		case d.Key.Format == "":
			fmt.Fprintf(&b, "# Domain %s: no calls go to owners directly; they go to any member, which forwards.\n",
				comment([]string{d.Name}))
		default:
			fmt.Fprintf(&b, "# Domain %s: calls go directly to the owner of %s. Those without it are forwarded.\n",
				comment([]string{d.Name}), comment([]string{d.Key.What}))
		}
	}
	for _, w := range g.warnings {
		fmt.Fprintf(&b, "# %s\n", comment([]string{w}))
	}
	return b.String()
}

// Filters returns the HTTP filters one by one, as mappings. Comments stay above the filter that they are about.
func (g *generator) Filters() ([]string, error) {
	t, err := g.templates()
	if err != nil {
		return nil, err
	}
	name := "filter.yaml"
	if !g.OwnRules() {
		name = "ecds.yaml" // the gateway's own filter makes the calls
	}
	var b bytes.Buffer
	if err := t.ExecuteTemplate(&b, name, g); err != nil {
		return nil, err
	}
	var filters []string
	var comments, filter strings.Builder
	end := func() {
		if filter.Len() > 0 {
			filters = append(filters, comments.String()+item(filter.String()))
			comments.Reset()
			filter.Reset()
		}
	}
	for line := range strings.Lines(strings.Trim(b.String(), "\n") + "\n") {
		switch {
		case line == "\n":
		case strings.HasPrefix(line, "#"):
			end()
			comments.WriteString(line)
		case strings.HasPrefix(line, "- "):
			end()
			filter.WriteString(line)
		default:
			filter.WriteString(line)
		}
	}
	end()
	return filters, nil
}

// item removes the list syntax from a list of one element that a template prints.
func item(text string) string {
	text = strings.TrimPrefix(strings.TrimLeft(text, "\n "), "- ")
	return strings.ReplaceAll(text, "\n  ", "\n")
}
