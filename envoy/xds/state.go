package xds

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"golang.org/x/net/http/httpguts"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/ring"
)

// Endpoint is a member as Envoy sees it on the ring.
type Endpoint struct {
	ID       ring.ID
	Weight   uint32 // 0 means 1
	RLS      string // host:port of the rate limit service for other pods; empty: none
	Route    string // host:port of the pod's Envoy; empty: none
	Draining bool   // the member is leaving: it is in no ring, and its connections end on their own
}

// ServedState is everything that is served. All servers serve equal states under equal versions.
type ServedState struct {
	Members  []Endpoint
	Capacity int // C of the ring; 0 means ring.DefaultCapacity

	TLS bool // the sidecars' rate limit services require mTLS
	// URI or DNS names, one of which a sidecar's certificate must carry; empty: any certificate of the CA.
	ServerNames []string
	Connect     time.Duration // connect timeout of the owner cluster; 0 means 25 ms

	RouteAddress string // host:port of the listener of the ring-hash routes; empty: no listener and no route
	RouteHeader  string // header that the routes hash and by which they match hot keys; default x-api-key
	Upstream     string // cluster in Envoy's own configuration that DirectConfig routes to; default upstream

	Hot []hotkey.Route // routes of hot keys, in any order; the value of the header is the owner string

	// PrimeAddress is the loopback host:port of names.PrimeListener; empty: no such listener.
	PrimeAddress string
	Primed       []Prime // buckets that requests to that listener can ask for

	Rules []*rlsconf.RateLimitConfig // nil: not known yet, so that clients are not sent an empty list

	capDomains []string // that had caps
}

func (s *ServedState) setDefaults() {
	if s.Capacity == 0 {
		s.Capacity = ring.DefaultCapacity
	}
	if s.Connect == 0 {
		s.Connect = 25 * time.Millisecond
	}
	if s.RouteHeader == "" {
		s.RouteHeader = "x-api-key"
	}
	if s.Upstream == "" {
		s.Upstream = "upstream"
	}
	s.Members = slices.Clone(s.Members)
	slices.SortFunc(s.Members, func(a, b Endpoint) int { return strings.Compare(string(a.ID), string(b.ID)) })
	for i := range s.Members {
		s.Members[i].Weight = max(1, s.Members[i].Weight)
	}
}

// host is a member with its address in one cluster.
type host struct {
	Endpoint
	addr netip.AddrPort
}

// omission is a member that is left out of a cluster, and why.
type omission struct {
	id      ring.ID
	cluster string
	cause   string
}

// hosts splits the members into those that Envoys on other hosts can reach, and omissions. EDS requires IP addresses.
// Loopback addresses are reachable if all members use them, because then everything runs on one machine. Envoy
// identifies a host by its address: of several members with the same address, the first that is not leaving is used.
func (s *ServedState) hosts(cluster string, address func(Endpoint) string) (in []host, out []omission) {
	omit := func(m Endpoint, why string) { out = append(out, omission{m.ID, cluster, why}) }
	remote := false
	for _, m := range s.Members {
		addr, why := parseAddress(address(m))
		if !utf8.ValidString(string(m.ID)) || m.ID == "" || len(m.ID) > ring.MaxID {
			why = "its name is not valid on the ring"
		}
		if why != "" {
			omit(m, why)
			continue
		}
		remote = remote || !addr.Addr().IsLoopback()
		in = append(in, host{m, addr})
	}
	taken := map[netip.AddrPort]ring.ID{}
	for _, h := range in {
		if _, found := taken[h.addr]; !found && !h.Draining {
			taken[h.addr] = h.ID
		}
	}
	kept := in[:0]
	for _, h := range in {
		other, found := taken[h.addr]
		switch {
		case remote && h.addr.Addr().IsLoopback():
			omit(h.Endpoint, "its address is a loopback address, while those of others are not")
		case found && other != h.ID:
			omit(h.Endpoint, "it has the address of "+string(other))
		default:
			taken[h.addr] = h.ID
			kept = append(kept, h)
		}
	}
	return s.dropLeavingIfFull(kept), out
}

// faults returns what Envoy would reject, whatever the members.
func (s *ServedState) faults() (faults []error) {
	for _, n := range s.ServerNames {
		if n == "" || !utf8.ValidString(n) || strings.ContainsAny(n, "\x00\r\n") {
			faults = append(faults, fmt.Errorf("server name %q: not valid in a certificate", n))
		}
	}
	if !httpguts.ValidHeaderFieldName(strings.TrimPrefix(s.RouteHeader, ":")) {
		faults = append(faults, fmt.Errorf("route header: %q is not a header name", s.RouteHeader))
	}
	if !utf8.ValidString(s.Upstream) || strings.ContainsFunc(s.Upstream, unicode.IsControl) {
		faults = append(faults, fmt.Errorf("route cluster: %q is not a cluster name", s.Upstream))
	}
	if s.Connect < 0 {
		faults = append(faults, fmt.Errorf("connect timeout %v: must not be negative", s.Connect))
	}
	return append(faults, ring.Validate(nil, s.Capacity))
}

// dropLeavingIfFull drops leaving members if the ring has no room for them: they are only served so that their connections last
// longer.
func (s *ServedState) dropLeavingIfFull(hosts []host) []host {
	sum := 0
	for _, h := range hosts {
		sum += int(h.Weight)
	}
	if sum < s.Capacity {
		return hosts
	}
	return slices.DeleteFunc(hosts, func(h host) bool { return h.Draining })
}

// parseAddress parses an IP address and port. why is empty if Envoy can use the address.
func parseAddress(text string) (addr netip.AddrPort, why string) {
	if text == "" {
		return addr, "it has no address for this cluster"
	}
	addr, err := netip.ParseAddrPort(text)
	switch {
	case err != nil:
		return addr, "its address is not an IP address and port"
	case addr.Addr().IsUnspecified() || addr.Addr().Zone() != "" || addr.Port() == 0:
		return addr, "other hosts cannot reach its address"
	}
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()), ""
}
