package snippet

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
	"text/template"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/keyward/keyward/envoy/internal/names"
	"github.com/keyward/keyward/ring"
)

//go:embed templates
var templates embed.FS

// render prints the requested part.
func (g *generator) render() ([]byte, error) {
	t, err := g.templates()
	if err != nil {
		return nil, fmt.Errorf("generate Envoy configuration: %w", err)
	}
	name := string(g.Part)
	if g.Part == partFilter && g.Shape == Routes {
		name = "route"
	}
	var b bytes.Buffer
	if err := t.ExecuteTemplate(&b, name+".yaml", g); err != nil {
		return nil, fmt.Errorf("generate Envoy configuration: %w", err)
	}
	return append(bytes.Trim(b.Bytes(), "\n"), '\n'), nil
}

func (g *generator) templates() (*template.Template, error) {
	t := template.New("")
	t.Funcs(template.FuncMap{
		"quote": quote, "comment": comment, "commented": commented, "seconds": seconds, "address": address,
		"item": item, "indent": indented,
		"duration": func(d time.Duration) string { return d.String() },
		"include": func(name string, indent int, data any) (string, error) {
			var b bytes.Buffer
			err := t.ExecuteTemplate(&b, name+".yaml", data)
			return indented(b.String(), indent), err
		},
		"quotaOf": func(f quotaFilter) any {
			return struct {
				*generator
				quotaFilter
			}{g, f}
		},
		"of": func(d domain) struct {
			*generator
			Domain domain
		} {
			return struct {
				*generator
				Domain domain
			}{g, d}
		},
	})
	return t.ParseFS(templates, "templates/*.yaml")
}

// indented indents all lines but the first, and removes trailing newlines.
func indented(text string, by int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i := 1; i < len(lines); i++ {
		if lines[i] != "" {
			lines[i] = strings.Repeat(" ", by) + lines[i]
		}
	}
	return strings.Join(lines, "\n")
}

// plain matches strings that YAML reads as themselves, in and outside flow mappings.
var plain = regexp.MustCompile(`^[A-Za-z_/][A-Za-z0-9_./-]*$`)

// quote returns a string as a YAML scalar.
func quote(v any) string {
	text := fmt.Sprint(v)
	switch strings.ToLower(text) {
	case "true", "false", "yes", "no", "on", "off", "null", "y", "n":
	default:
		if plain.MatchString(text) {
			return text
		}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(text) // a string can always be encoded
	var out strings.Builder
	for _, r := range strings.TrimSuffix(b.String(), "\n") {
		if r < utf8.RuneSelf && r != 0x7f || unicode.IsPrint(r) {
			out.WriteRune(r)
			continue
		}
		if r > 0xffff { // JSON may contain runes that YAML must escape
			fmt.Fprintf(&out, `\U%08x`, r)
		} else {
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.String()
}

// comment joins names on one line of a comment.
func comment(names []string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.Join(names, ", "))
}

// commented turns every line into a comment.
func commented(text string) string {
	return "# " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n# ")
}

// seconds formats a duration as protobuf's JSON does.
func seconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s"
}

// address formats host:port as Envoy's Address.
func address(a string) (string, error) {
	host, port, err := splitAddress(a)
	if host == "" {
		host = "0.0.0.0"
	}
	return fmt.Sprintf("{socket_address: {address: %s, port_value: %d}}", quote(host), port), err
}

// The methods below are called by the templates.

// TLS reports whether certificates are given.
func (g *generator) TLS() bool { return g.TLSCert != "" }

// KeepActions reports whether the user's own routes keep their rate_limits: the output is added to the configuration
// that has them. Routes from xDS have none, those of routes cannot hold hits, and the module has those of the filter:
// Envoy then ignores them.
func (g *generator) KeepActions() bool {
	return g.keepActions && (g.Part == partFilter || g.Gateway == gatewayIstio) && !g.HotRoutes && !g.Holds() && !g.module
}

// RetryAfter reports whether every supported Envoy version can write Retry-After. Envoy Gateway 1.9 refuses patches with the field,
// because it reads them by the schema of Envoy 1.39.
func (g *generator) RetryAfter() bool { return g.minor >= 40 && g.Gateway != gatewayEnvoyGateway }

// DelayHeader returns the header by which Envoy's fault filter delays a request.
func (g *generator) DelayHeader() string { return "x-envoy-fault-delay-request" }

// PerTry returns the timeout for one owner. It leaves the same time for its successor, and some for the way.
func (g *generator) PerTry() time.Duration { return g.Timeout * 4 / 10 }

// Places returns the sum of all weights, including the void's.
func (g *generator) Places() int { return ring.EnvoyCapacity(g.Capacity) }

// RingSize returns the number of points on the ring, including the void's. It never changes.
func (g *generator) RingSize() int { return ring.PointsPerWeight * g.Places() }

// MaxRingSize returns Envoy's own limit.
func (g *generator) MaxRingSize() int { return ring.PointsPerWeight * ring.MaxCapacity }

// Void returns the weight that no member has.
func (g *generator) Void() int { return g.Places() - len(g.Members) }

// Owners returns the name of the cluster of rate limit services.
func (g *generator) Owners() string {
	switch {
	case g.Shape != Plain || g.Gateway == "":
		return names.OwnerCluster
	case !g.OwnPlain(): // Istio's own cluster of the Service
		return fmt.Sprintf("outbound|8081||%s.%s.svc.cluster.local", g.Kube.Release, g.Kube.Namespace)
	}
	return g.Kube.Release + "-" + g.ShapeName() // next to that of calls to owners
}

// Pods returns the name of the cluster of the pods' Envoys.
func (g *generator) Pods() string { return names.RouteCluster }

// KeyHeader returns the header with the owner string.
func (g *generator) KeyHeader() string { return names.KeyHeader }

// SaysKey reports whether calls carry the key that placed them on the ring: that of this Envoy, or that of the Envoy
// in front that routed the request here. Other plain calls carry no key, or they would count as misrouted.
func (g *generator) SaysKey() bool { return g.Shape != Plain || g.Routed }

// ClientSecret returns the name of the secret with the client certificate.
func (g *generator) ClientSecret() string { return names.ClientSecret }

// CASecret returns the name of the secret with the CA.
func (g *generator) CASecret() string { return names.CASecret }

// OwnClusters reports whether the cluster of owners is printed instead of served by xDS.
func (g *generator) OwnClusters() bool { return g.XDS == "" || g.SDS != "" && g.Shape == OwnerDirect }

// FromEDS reports whether the printed cluster takes its members from xDS.
func (g *generator) FromEDS() bool { return g.XDS != "" }

// DiscoveryType returns the type of a cluster with the given addresses.
func (g *generator) DiscoveryType(addresses ...string) string {
	for _, a := range addresses {
		if host, _, _ := splitAddress(a); !isIP(host) {
			return "STRICT_DNS"
		}
	}
	return "STATIC"
}

// MembersType returns the type of the cluster of members.
func (g *generator) MembersType() string {
	all := make([]string, len(g.Members))
	for i, m := range g.Members {
		all[i] = m.Address
	}
	return g.DiscoveryType(all...)
}

// FilterName returns a name that differs between the filters of several domains.
func (g *generator) FilterName(d domain) string {
	if d.Filter != "" {
		return d.Filter
	}
	if g.Gateway == gatewayEnvoyGateway { // whose own filters, and their settings of routes, have Envoy's name
		return "keyward.ratelimit/" + d.Name
	}
	if len(g.Domains) > 1 {
		return "envoy.filters.http.ratelimit/" + d.Name
	}
	return "envoy.filters.http.ratelimit"
}

// ADSType returns the API type of the aggregated stream.
func (g *generator) ADSType() string {
	if g.ADS == "sotw" {
		return "GRPC"
	}
	return "DELTA_GRPC"
}

// SANs returns matchers for the names of a certificate.
func (g *generator) SANs(names []string) string {
	if len(names) == 0 {
		return "{}"
	}
	all := make([]string, len(names))
	for i, n := range names {
		kind := "DNS"
		if strings.Contains(n, "://") {
			kind = "URI"
		}
		all[i] = fmt.Sprintf("{san_type: %s, matcher: {exact: %s}}", kind, quote(n))
	}
	return "{match_typed_subject_alt_names: [" + strings.Join(all, ", ") + "]}"
}

// trust is the data of the TLS template.
type trust struct {
	*generator
	Names []string
}

// Trust returns the TLS settings of a cluster whose certificates carry one of names.
func (g *generator) Trust(names []string) trust { return trust{g, names} }

// Secret returns a reference to a secret: a static one, or one in the directory of secrets.
func (g *generator) Secret(name string) string {
	if g.SDS == "" {
		return "{name: " + name + "}"
	}
	return fmt.Sprintf("{name: %s, sds_config: {resource_api_version: V3, path_config_source: {path: %s}}}", name,
		quote(path.Join(g.SDS, name+".yaml")))
}

// UsesTLS reports whether any cluster uses the certificates.
func (g *generator) UsesTLS() bool { return g.Shape != Plain || g.XDS != "" || g.SidecarTLS }

// RingCluster returns the cluster with the ring of the shape.
func (g *generator) RingCluster() string {
	if g.Shape == Routes {
		return names.RouteCluster
	}
	return names.OwnerCluster
}

// RouteKind returns what the routes of the edge hash.
func (g *generator) RouteKind() string {
	switch g.RouteOwner.Source.kind {
	case header:
		return "header"
	case query:
		return "query"
	}
	return "address"
}

// Minor returns the minor version of Envoy that the output is for.
func (g *generator) Minor() int { return g.minor }

// Dir returns the directory of a file as Envoy sees it.
func (g *generator) Dir(file string) string { return path.Dir(file) }

// NodeID returns the name of this Envoy for the xDS server.
func (g *generator) NodeID() string { return "envoy-" + g.ShapeName() }

// ShapeName returns the shape that was asked for.
func (g *generator) ShapeName() string {
	switch {
	case g.quotas:
		return string(RLQS)
	case g.module:
		return string(Module)
	}
	return string(g.Shape)
}

// EnvoyHeader returns the metadata with the name of an Envoy.
func (g *generator) EnvoyHeader() string { return names.EnvoyHeader }
