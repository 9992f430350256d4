package snippet

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
)

// Gateway is whose own resources are printed.
type Gateway string

// The gateways. gatewayIstio and gatewayEnvoyGateway may ask owners directly; the others have no words for it, and ask any member.
const (
	gatewayIstio        Gateway = "istio"
	gatewayEnvoyGateway Gateway = "envoy-gateway"
	gatewayContour      Gateway = "contour"
	gatewayKGateway     Gateway = "kgateway"
)

// Kube says where in a Kubernetes cluster things are. The names of the chart's objects follow from Release.
type Kube struct {
	Release          string // full name of the chart's objects; default keyward
	Namespace        string // of the release; default keyward
	Gateway          string // the gateway's name; default gateway
	GatewayNamespace string // where it, and its resources, are; default that of the release
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

// fillGateway derives from o.Kube what o does not set, and returns an error if the gateway cannot do what o asks for.
func (o *Options) fillGateway() error {
	gateway, k := o.Gateway, &o.Kube
	k.fill()
	o.Part = Part("for-" + string(gateway))
	switch gateway {
	case gatewayIstio, gatewayEnvoyGateway:
		if o.Shape == Routes {
			return errors.New("shape routes is for an Envoy of your own")
		}
	case gatewayContour, gatewayKGateway:
		if o.Shape != "" && o.Shape != Plain {
			return fmt.Errorf("%s has no resource by which Envoy asks a key's owner: shape plain, and members forward", gateway)
		}
		o.Shape = Plain
	default:
		return fmt.Errorf("gateway %q: want envoy, %s, %s, %s or %s", gateway, gatewayIstio, gatewayEnvoyGateway, gatewayContour, gatewayKGateway)
	}
	if gateway == gatewayEnvoyGateway && o.Shape == Plain {
		return errors.New("envoy-gateway asks the service that it runs by itself: the values that the chart's preset writes are all it needs")
	}
	if key, value, ok := strings.Cut(k.Selector, "="); !ok || key == "" || value == "" {
		return fmt.Errorf("selector %q: want KEY=VALUE", k.Selector)
	}
	service := "." + k.Namespace + ".svc"
	setDefault(&o.Sidecar, net.JoinHostPort(k.Release+service, "8081"))
	if o.Shape == Plain || o.Shape == "" && gateway != gatewayIstio && gateway != gatewayEnvoyGateway {
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

// dropInexpressible drops what the gateway has no words for, with a warning, and fails where nothing is left.
func (g *generator) dropInexpressible() error {
	if g.Gateway != gatewayContour && g.Gateway != gatewayKGateway {
		return nil
	}
	if g.Gateway == gatewayContour && len(g.Domains) > 1 {
		for _, d := range g.Domains[1:] {
			g.warn("domain %s: Contour asks about one domain, %s", d.Name, g.Domains[0].Name)
		}
		g.Domains = g.Domains[:1]
	}
	for i := range g.Domains {
		d := &g.Domains[i]
		d.Descriptors = slices.DeleteFunc(d.Descriptors, func(x descriptor) bool {
			for _, e := range x.Entries {
				if _, err := g.Entry(e); err != nil {
					g.warn("domain %s: %s is never asked about: %v", d.Name, strings.Join(x.Rules, ", "), err)
					return true
				}
			}
			return false
		})
	}
	g.Domains = slices.DeleteFunc(g.Domains, func(d domain) bool { return len(d.Descriptors) == 0 })
	if len(g.Domains) == 0 {
		return fmt.Errorf("no rule is left that %s can ask about:\n%s", g.Gateway, strings.Join(g.warnings, "\n"))
	}
	return nil
}

// planOwn is the plan for a gateway that makes the rules, and the actions, itself: only the key is to be told.
func (g *generator) planOwn() []error {
	for key, all := range g.from {
		if e := all[0].expr(key); len(g.from) == 1 && e.Format != "" {
			g.Domains = []domain{{Name: "of each listener", Key: e}}
			return nil
		}
	}
	return []error{errors.New("envoy-gateway makes the rules of BackendTrafficPolicies: say by which value of a request they tell clients apart, with one --from KEY=header:NAME")}
}

// Entry writes an entry of a descriptor in the gateway's own words, as a YAML flow mapping.
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
			return "", fmt.Errorf("kgateway calls the entry with the value of %s by that name: so must the rules, not %s", e.Name, e.Key)
		case e.kind == remoteAddress:
			return "{type: RemoteAddress}", nil
		case e.kind == constant:
			return fmt.Sprintf("{type: Generic, generic: {key: %s, value: %s}}", quote(e.Key), quote(e.Name)), nil
		}
	}
	return "", fmt.Errorf("%s has no entry for where %s is", g.Gateway, e.Key)
}

// OwnStream says that the cluster of owners has a stream to the xDS server of its own.
func (g *generator) OwnStream() bool { return g.Gateway != "" }

// Selectors is the label of the gateway's pods, as a YAML flow mapping.
func (g *generator) Selectors() string {
	key, value, _ := strings.Cut(g.Kube.Selector, "=")
	return "{" + quote(key) + ": " + quote(value) + "}"
}

// Ways are lines that say what goes to owners directly and what is forwarded.
func (g *generator) Ways() string {
	var b bytes.Buffer
	for _, d := range g.Domains {
		switch {
		case g.Shape == Plain:
			fmt.Fprintf(&b, "# Domain %s: any member is asked, and forwards what it does not own: with N members (N-1)/N of the questions.\n", comment([]string{d.Name}))
		case d.Key.Format == "":
			fmt.Fprintf(&b, "# Domain %s: nothing goes to owners directly; any member is asked, and forwards.\n", comment([]string{d.Name}))
		default:
			fmt.Fprintf(&b, "# Domain %s: questions go to the owner of %s directly. Forwarded: those without it.\n", comment([]string{d.Name}), comment([]string{d.Key.What}))
		}
	}
	for _, w := range g.warnings {
		fmt.Fprintf(&b, "# %s\n", comment([]string{w}))
	}
	return b.String()
}

// item takes an element out of the one-element list that a template prints.
func item(text string) string {
	text = strings.TrimPrefix(strings.TrimLeft(text, "\n "), "- ")
	return strings.ReplaceAll(text, "\n  ", "\n")
}
