// Package snippet prints the Envoy configuration that sends each call to the owner of its key.
//
// The rules determine what is counted and which entries determine a counter's owner. [Options.From] names the source
// of each entry's value in a request. From both, Generate plans each domain: the actions that build its descriptors,
// and the format of the header x-keyward-key, which places the call on the ring. Templates turn the plan into YAML.
package snippet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/ring"
)

// Shape is a way to combine Envoy and the sidecars.
type Shape string

// The shapes.
const (
	OwnerDirect Shape = "owner-direct" // Envoy calls the sidecar that owns the key
	Routes      Shape = "routes"       // an edge Envoy routes the request to the pod of the owner
	Plain       Shape = "plain"        // Envoy calls one sidecar, which forwards requests for keys that it does not own
	RLQS        Shape = "rlqs"         // as Plain, and Envoy spends the limits of rules with mechanism: quota without calls
	Module      Shape = "module"       // as Plain, and a dynamic module in Envoy spends leases of the sidecar without calls
)

// Part is the part of the configuration to print.
type Part string

// The parts.
const (
	partBootstrap Part = "bootstrap"  // a complete file for envoy --config-path
	partFilter    Part = "filter"     // the HTTP filters; in shape routes the route
	partCluster   Part = "cluster"    // the clusters that the filter or the route uses
	partSDSClient Part = "sds-client" // the file keyward_client.yaml of the directory Options.SDS
	partSDSCA     Part = "sds-ca"     // the file keyward_ca.yaml of the directory Options.SDS
)

// StaticMember is a sidecar whose address is written into the configuration.
type StaticMember struct {
	ID      ring.ID // the sidecar's --node, which determines its place on the ring
	Address string  // host:port of its rate limit service; in shape routes, of its pod's Envoy
}

// Options describe what to print. Addresses are host:port, and files are named as Envoy sees them.
type Options struct {
	Shape Shape         // default OwnerDirect
	Part  Part          // default partBootstrap
	Rules *config.Rules // the rules; not needed in shape routes if RouteHeader is set

	From map[string]string // source of the value of each descriptor key; see sourceHelp
	// Descriptor key whose owner receives the calls if rules of a domain differ; default: that of the first rule.
	Key   string
	Envoy []byte // YAML of the user's own Envoy, whose rate_limits name sources; From takes precedence

	Listen   string // of the listener; default 0.0.0.0:10000
	Admin    string // of Envoy's admin page; default 127.0.0.1:9901
	Upstream string // the application; default 127.0.0.1:8000
	XDS      string // the xDS server; empty: Members are written into the configuration
	Sidecar  string // shape plain: the rate limit service; default 127.0.0.1:8081
	Members  []StaticMember
	Capacity int    // C of the ring of Members; 0 means ring.DefaultCapacity
	ADS      string // delta (default) or sotw

	FailureModeDeny bool   // refuse a request whose call failed; by default Envoy lets it through uncounted
	ModuleSocket    string // shape module: the sidecar's --module-socket; default /run/keyward/module.sock
	// Shape module: how Envoy calls the module, ModuleFilter or ModuleMatcher. Default: ModuleMatcher in a complete configuration
	// for Envoy 1.38 or later, whose only route has a cluster; else ModuleFilter.
	ModuleAs string
	// Shape plain: requests arrive by ring-hash routes, so the sidecar owns the key; calls carry the key.
	Routed  bool
	Timeout time.Duration // of a call; default 100 ms. The owner has 40 % of it, then its successor is called
	Connect time.Duration // to connect to an owner; default 25 ms. With XDS, the server sets it
	// Shape routes and HotRoutes: header whose value places the request; default: derived from the rules and From.
	RouteHeader string
	// The listener's routes come from XDS, which adds those of hot keys; in shape plain those of the requests do:
	// see Routed.
	HotRoutes bool
	// The filters of hot keys come from XDS by ECDS; the routes remain the user's own.
	HotECDS bool
	// Envoy denies requests of keys that are far above their limits, before it calls a member.
	Caps    bool
	CapKeys int // values of each rule that have a bucket at a time; default 10000
	// Envoy delays requests by the header DelayHeader, which members add. Clients cannot set it.
	Delay bool
	// Where the hits of rules with reserve come from: openai, or metadata:NAMESPACE with the keys estimate, total and op;
	// empty: nowhere.
	Reserve string

	TLSCert, TLSKey, TLSCA string // mTLS to the xDS server and to the owners; empty: plaintext
	// Names, one of which the xDS server's certificate must carry; empty: any certificate of the CA.
	XDSNames    []string
	ServerNames []string // the same for sidecars, if xDS does not name them
	SidecarTLS  bool     // shape plain: use mTLS to the sidecar too, which is on loopback otherwise
	// Directory of the files of partSDSClient and partSDSCA, with which Envoy reloads rotated certificates.
	SDS string

	Gateway Gateway // whose resources are printed; empty: Envoy's own configuration
	Kube    Kube    // where the gateway and the release are; read only with Gateway

	// Oldest Envoy that must accept the output, such as 1.36 or 1.40.0; default 1.36. In shape module, the Envoy that does.
	EnvoyVersion string
}

// Generate prints the configuration described by o: that of an Envoy, or the resources of o.Gateway. The warnings
// name what works less well than it could.
func Generate(o Options) (yaml []byte, warnings []string, err error) {
	if o.Gateway != "" {
		if err := o.fillGateway(); err != nil {
			return nil, nil, err
		}
	}
	o.fill()
	g := &generator{Options: o}
	g.quotas, g.module = o.Shape == RLQS, o.Shape == Module
	if g.quotas || g.module {
		g.Shape = Plain
	}
	if err := g.prepare(); err != nil {
		if o.Gateway == "" {
			return nil, nil, err // which includes the warnings
		}
		return nil, g.warnings, err
	}
	if err := g.dropInexpressible(); err != nil {
		return nil, g.warnings, err
	}
	text, err := g.render()
	return text, g.warnings, err
}

func (o *Options) fill() {
	setDefault(&o.Shape, OwnerDirect)
	setDefault(&o.Part, partBootstrap)
	setDefault(&o.Listen, "0.0.0.0:10000")
	setDefault(&o.Admin, "127.0.0.1:9901")
	setDefault(&o.Upstream, "127.0.0.1:8000")
	setDefault(&o.Sidecar, "127.0.0.1:8081")
	setDefault(&o.Capacity, ring.DefaultCapacity)
	setDefault(&o.ADS, "delta")
	setDefault(&o.Timeout, 100*time.Millisecond)
	setDefault(&o.Connect, 25*time.Millisecond)
	setDefault(&o.ModuleSocket, "/run/keyward/module.sock")
	setDefault(&o.EnvoyVersion, "1.36")
	setDefault(&o.CapKeys, defaultCapKeys)
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// generator is the data of the templates.
type generator struct {
	Options
	Domains    []domain // one filter each
	RouteOwner expr     // shape routes
	warnings   []string
	minor      int // of EnvoyVersion
	from       map[string][]source

	Quotas []quotaFilter // of shape RLQS
	quotas bool          // the shape is RLQS; Shape is then Plain
	// A rule with mechanism: quota for each descriptor that has one, by descriptorID.
	quotaDescriptors map[string]*config.RuleSpec
	module           bool // the shape is Module; Shape is then Plain

	keepActions bool // the user's own routes have rate_limits
	// What places the calls that filters by ECDS spread: header, remoteAddress or unknownSource.
	spread       sourceKind
	spreadHeader string
}

func (g *generator) warn(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(g.warnings, text) {
		g.warnings = append(g.warnings, text)
	}
}

// prepare finds all errors before anything is printed.
func (g *generator) prepare() error {
	faults := g.faults()
	var err error
	if g.from, err = g.sources(); err != nil {
		faults = append(faults, err)
	}
	if len(faults) == 0 {
		faults = append(faults, g.plan()...)
	}
	return errors.Join(faults...)
}

func (g *generator) faults() (faults []error) {
	fail := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	known := slices.Contains([]Shape{OwnerDirect, Routes, Plain}, g.Shape)
	if !known {
		fail("shape %q: want %s, %s, %s, %s or %s", g.Shape, OwnerDirect, Routes, Plain, RLQS, Module)
	}
	if g.Gateway == "" && !slices.Contains([]Part{partBootstrap, partFilter, partCluster, partSDSClient, partSDSCA},
		g.Part) {
		fail("part %q: want %s, %s, %s, %s or %s", g.Part, partBootstrap, partFilter, partCluster, partSDSClient,
			partSDSCA)
	}
	if g.ADS != "delta" && g.ADS != "sotw" {
		fail("ads %q: want delta or sotw", g.ADS)
	}
	for what, a := range map[string]string{"listen": g.Listen, "Envoy's admin": g.Admin} {
		if _, _, err := splitAddress(a); err != nil {
			fail("%s address: %w", what, err)
		}
	}
	for what, a := range map[string]string{"upstream": g.Upstream, "xDS": g.XDS, "sidecar": g.Sidecar} {
		if a == "" {
			continue
		}
		if err := target(a); err != nil {
			fail("%s address: %w", what, err)
		}
	}
	if known && g.Shape != Plain && g.XDS == "" && len(g.Members) == 0 && g.Part != partFilter && !g.secrets() {
		fail("shape %s needs the address of an xDS server, or members", g.Shape)
	}
	if g.Timeout < time.Millisecond {
		fail("timeout %v: less than a millisecond", g.Timeout)
	}
	var err error
	if g.minor, err = minorVersion(g.EnvoyVersion); err != nil {
		faults = append(faults, err)
	}
	switch {
	case g.Delay && g.Gateway != "":
		fail("delay: %s has no resource for Envoy's fault filter", g.Gateway)
	case g.Delay && g.Shape == Routes:
		fail("delay: in shape routes, the Envoys of the pods delay requests")
	}
	faults = slices.Concat(faults, g.hotFaults(), g.ecdsFaults(), g.capFaults(), g.reserveFaults())
	return append(append(faults, g.tlsFaults()...), g.memberFaults()...)
}

func (g *generator) tlsFaults() (faults []error) {
	if (g.TLSCert == "") != (g.TLSKey == "") {
		faults = append(faults, errors.New("a TLS certificate needs its key, and a key its certificate"))
	}
	if (g.TLSCert == "") != (g.TLSCA == "") {
		faults = append(faults, errors.New("mTLS needs a certificate, a key and the CA"))
	}
	if g.TLSCert == "" && (g.SDS != "" || g.secrets() || g.SidecarTLS) {
		faults = append(faults, errors.New("secrets need the TLS files"))
	}
	return faults
}

func (g *generator) memberFaults() (faults []error) {
	members := make([]ring.Member, len(g.Members))
	for i, m := range g.Members {
		members[i] = ring.Member{ID: m.ID, Weight: 1}
		if err := target(m.Address); err != nil {
			faults = append(faults, fmt.Errorf("member %s: %w", m.ID, err))
		}
	}
	if err := ring.Validate(members, g.Capacity); err != nil {
		faults = append(faults, err)
	}
	return faults
}

// secrets reports whether the part is a file of secrets.
func (g *generator) secrets() bool { return g.Part == partSDSClient || g.Part == partSDSCA }

func splitAddress(a string) (host string, port uint16, err error) {
	host, text, err := net.SplitHostPort(a)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("address %s: invalid port", a)
	}
	return host, uint16(n), nil
}

// target returns an error if a client cannot connect to the address.
func target(a string) error {
	host, port, err := splitAddress(a)
	if err != nil {
		return err
	}
	if ip, err := netip.ParseAddr(host); host == "" || port == 0 || err == nil &&
		(ip.IsUnspecified() || ip.Zone() != "") {
		return fmt.Errorf("address %s: clients cannot connect to it", a)
	}
	return nil
}

// minorVersion returns 40 for 1.40, 1.40.0 and v1.40.0-dev.
func minorVersion(v string) (int, error) {
	parts := strings.SplitN(strings.TrimPrefix(v, "v"), ".", 3)
	if len(parts) >= 2 && parts[0] == "1" {
		text, _, _ := strings.Cut(parts[1], "-")
		if n, err := strconv.Atoi(text); err == nil && n >= 0 {
			if n < oldestMinor {
				return 0, fmt.Errorf("envoy version %s: the oldest that can do this is 1.%d", v, oldestMinor)
			}
			return n, nil
		}
	}
	return 0, fmt.Errorf("envoy version %q: want something like 1.40.0", v)
}

// oldestMinor is the oldest Envoy that the configuration is tested with.
const oldestMinor = 36

// isIP reports whether an address needs no DNS.
func isIP(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}
