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

// render prints the part that was asked for.
func (g *generator) render() ([]byte, error) {
	t := template.New("")
	t.Funcs(template.FuncMap{
		"quote": quote, "comment": comment, "commented": commented, "seconds": seconds, "address": address, "item": item, "indent": indented,
		"duration": func(d time.Duration) string { return d.String() },
		"include": func(name string, indent int, data any) (string, error) {
			var b bytes.Buffer
			err := t.ExecuteTemplate(&b, name+".yaml", data)
			return indented(b.String(), indent), err
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
	if _, err := t.ParseFS(templates, "templates/*.yaml"); err != nil {
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

// indented shifts all lines but the first, and drops the last line's end.
func indented(text string, by int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i := 1; i < len(lines); i++ {
		if lines[i] != "" {
			lines[i] = strings.Repeat(" ", by) + lines[i]
		}
	}
	return strings.Join(lines, "\n")
}

// plain are texts that YAML, in and out of flow mappings, takes for the strings that they are.
var plain = regexp.MustCompile(`^[A-Za-z_/][A-Za-z0-9_./-]*$`)

// quote writes a string as a YAML scalar.
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
	_ = enc.Encode(text) // a string can always be written
	var out strings.Builder
	for _, r := range strings.TrimSuffix(b.String(), "\n") {
		if r < utf8.RuneSelf && r != 0x7f || unicode.IsPrint(r) {
			out.WriteRune(r)
			continue
		}
		if r > 0xffff { // JSON may hold what YAML may not
			fmt.Fprintf(&out, `\U%08x`, r)
		} else {
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.String()
}

// comment writes names so that they stay on one line.
func comment(names []string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.Join(names, ", "))
}

// commented makes every line a comment.
func commented(text string) string {
	return "# " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n# ")
}

// seconds writes a duration as protobuf's JSON does.
func seconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s"
}

// address writes host:port as Envoy's Address.
func address(a string) (string, error) {
	host, port, err := splitAddress(a)
	if host == "" {
		host = "0.0.0.0"
	}
	return fmt.Sprintf("{socket_address: {address: %s, port_value: %d}}", quote(host), port), err
}

// The rest of the file is what the templates ask.

// TLS says that secrets are given.
func (g *generator) TLS() bool { return g.TLSCert != "" }

// KeepActions says that the user's own routes go on saying what is asked. Those of xDS say nothing.
func (g *generator) KeepActions() bool { return g.keepActions && g.Part == partFilter && !g.HotRoutes }

// RetryAfter says that every Envoy it is for can write Retry-After.
func (g *generator) RetryAfter() bool { return g.minor >= 40 }

// PerTry is how long one owner may take, so that its heir has as long and something is left for the way.
func (g *generator) PerTry() time.Duration { return g.Timeout * 4 / 10 }

// Places is the sum of all weights, the void's included.
func (g *generator) Places() int { return ring.EnvoyCapacity(g.Capacity) }

// RingSize is the sum of all points, the void's included, which never changes.
func (g *generator) RingSize() int { return ring.PointsPerWeight * g.Places() }

// MaxRingSize is Envoy's own limit.
func (g *generator) MaxRingSize() int { return ring.PointsPerWeight * ring.MaxCapacity }

// Void is the weight that no member has.
func (g *generator) Void() int { return g.Places() - len(g.Members) }

// Owners is the name of the cluster of rate-limit services.
func (g *generator) Owners() string {
	if g.Gateway == gatewayIstio && g.Shape == Plain { // Istio's own cluster of the Service
		return fmt.Sprintf("outbound|8081||%s.%s.svc.cluster.local", g.Kube.Release, g.Kube.Namespace)
	}
	return names.OwnerCluster
}

// Pods is the name of the cluster of the pods' Envoys.
func (g *generator) Pods() string { return names.RouteCluster }

// KeyHeader carries the owner string.
func (g *generator) KeyHeader() string { return names.KeyHeader }

// SaysKey is whether the question carries the key it was sent by: by the ring of this Envoy, or by that of the one in
// front which routed the request here. Any other plain question says nothing, or it would count as misrouted.
func (g *generator) SaysKey() bool { return g.Shape != Plain || g.Routed }

// ClientSecret and CASecret are the names under which the owners' cluster looks for secrets.
func (g *generator) ClientSecret() string { return names.ClientSecret }

// CASecret is the other one.
func (g *generator) CASecret() string { return names.CASecret }

// OwnClusters says that the cluster of owners stands here and does not come from xDS.
func (g *generator) OwnClusters() bool { return g.XDS == "" || g.SDS != "" && g.Shape == OwnerDirect }

// FromEDS says that members come from xDS although the cluster stands here.
func (g *generator) FromEDS() bool { return g.XDS != "" }

// DiscoveryType is the kind of a cluster with one address.
func (g *generator) DiscoveryType(addresses ...string) string {
	for _, a := range addresses {
		if host, _, _ := splitAddress(a); !isIP(host) {
			return "STRICT_DNS"
		}
	}
	return "STATIC"
}

// MembersType is the kind of the members' cluster.
func (g *generator) MembersType() string {
	all := make([]string, len(g.Members))
	for i, m := range g.Members {
		all[i] = m.Address
	}
	return g.DiscoveryType(all...)
}

// FilterName tells the filters of several domains apart.
func (g *generator) FilterName(d domain) string {
	if len(g.Domains) > 1 {
		return "envoy.filters.http.ratelimit/" + d.Name
	}
	return "envoy.filters.http.ratelimit"
}

// ADSType is the API of the aggregated stream.
func (g *generator) ADSType() string {
	if g.ADS == "sotw" {
		return "GRPC"
	}
	return "DELTA_GRPC"
}

// SANs are matchers of a certificate's names.
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

// trust is what the TLS template sees.
type trust struct {
	*generator
	Names []string
}

// Trust is the TLS of a cluster whose certificates carry one of names.
func (g *generator) Trust(names []string) trust { return trust{g, names} }

// Secret refers to a secret: static, or in the file of secrets.
func (g *generator) Secret(name string) string {
	if g.SDS == "" {
		return "{name: " + name + "}"
	}
	return fmt.Sprintf("{name: %s, sds_config: {resource_api_version: V3, path_config_source: {path: %s}}}", name, quote(path.Join(g.SDS, name+".yaml")))
}

// UsesTLS says that some cluster wants the secrets.
func (g *generator) UsesTLS() bool { return g.Shape != Plain || g.XDS != "" || g.SidecarTLS }

// RingCluster is the cluster of the shape's ring.
func (g *generator) RingCluster() string {
	if g.Shape == Routes {
		return names.RouteCluster
	}
	return names.OwnerCluster
}

// RouteKind is what the edge's routes hash.
func (g *generator) RouteKind() string {
	switch g.RouteOwner.Source.kind {
	case header:
		return "header"
	case query:
		return "query"
	}
	return "address"
}

// Minor is the version the output is for.
func (g *generator) Minor() int { return g.minor }

// Dir is the directory of a file as Envoy sees it.
func (g *generator) Dir(file string) string { return path.Dir(file) }

// NodeID names this Envoy to the xDS server.
func (g *generator) NodeID() string { return "envoy-" + string(g.Shape) }
