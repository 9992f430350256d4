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

	"github.com/keyward/keyward/envoy/internal/names"
	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/ring"
)

// Names that programs next to Envoy need; package names has the others.
const (
	OwnerCluster = names.OwnerCluster
	RouteCluster = names.RouteCluster
	SubHeader    = names.SubHeader
)

// Endpoint is one place on the ring, as Envoy is to see it.
type Endpoint struct {
	ID       ring.ID
	Weight   uint32 // 0 counts as 1
	RLS      string // host:port of the rate-limit service for other pods; empty: none
	Route    string // host:port of the pod's Envoy; empty: none
	Draining bool   // leaving: in no ring any more, while its connections end by themselves
}

// ServedState is everything that is served. Equal states are served under equal versions, by every server.
type ServedState struct {
	Members  []Endpoint
	Capacity int // C of the ring; 0 means ring.DefaultCapacity

	TLS         bool          // the sidecars' rate-limit services want mTLS
	ServerNames []string      // URI or DNS names, one of which a sidecar's certificate carries; empty: any of the CA's
	Connect     time.Duration // connect timeout of the owner cluster; 0 means 25 ms

	RouteAddress string // host:port of the ring-hash routes' listener; empty: no listener and no route
	RouteHeader  string // header that the routes hash, and by which they know hot keys; default x-api-key
	Upstream     string // cluster that DirectConfig routes to, of the Envoy's own; default upstream

	Hot []hotkey.Route // what is done about hot keys, in any order; the header's value is the owner string

	Rules []*rlsconf.RateLimitConfig // nil: not known yet, so nobody is told that there are none
}

func (s *ServedState) fill() {
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

// host is a member with the address that one cluster uses.
type host struct {
	Endpoint
	addr netip.AddrPort
}

// omission is a member that is not in a cluster, and why.
type omission struct {
	id      ring.ID
	cluster string
	why     string
}

// hosts picks the members that an Envoy elsewhere can reach, and names the others. EDS takes IP addresses only. A loopback
// address is reachable when everything is on one machine, which is when nobody offers another kind. Envoy knows a host by
// its address: of several members with the same one, the first that stays is taken.
func (s *ServedState) hosts(cluster string, address func(Endpoint) string) (in []host, out []omission) {
	omit := func(m Endpoint, why string) { out = append(out, omission{m.ID, cluster, why}) }
	remote := false
	for _, m := range s.Members {
		addr, why := parseAddress(address(m))
		if !utf8.ValidString(string(m.ID)) || m.ID == "" || len(m.ID) > ring.MaxID {
			why = "its name is none for the ring"
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
			omit(h.Endpoint, "its address is a loopback one, others' are not")
		case found && other != h.ID:
			omit(h.Endpoint, "it has the address of "+string(other))
		default:
			taken[h.addr] = h.ID
			kept = append(kept, h)
		}
	}
	return s.fit(kept), out
}

// faults are what no Envoy would accept, whoever the members are.
func (s *ServedState) faults() (faults []error) {
	for _, n := range s.ServerNames {
		if n == "" || !utf8.ValidString(n) || strings.ContainsAny(n, "\x00\r\n") {
			faults = append(faults, fmt.Errorf("server name %q: a certificate carries no such name", n))
		}
	}
	if !httpguts.ValidHeaderFieldName(strings.TrimPrefix(s.RouteHeader, ":")) {
		faults = append(faults, fmt.Errorf("the routes' header: %q is no header name", s.RouteHeader))
	}
	if !utf8.ValidString(s.Upstream) || strings.ContainsFunc(s.Upstream, unicode.IsControl) {
		faults = append(faults, fmt.Errorf("the routes' cluster: %q is no name", s.Upstream))
	}
	if s.Connect < 0 {
		faults = append(faults, fmt.Errorf("connect timeout %v: is negative", s.Connect))
	}
	return append(faults, ring.Validate(nil, s.Capacity))
}

// fit leaves out leaving members when there is no place for them on the ring: they only keep their connections a bit longer.
func (s *ServedState) fit(hosts []host) []host {
	sum := 0
	for _, h := range hosts {
		sum += int(h.Weight)
	}
	if sum < s.Capacity {
		return hosts
	}
	return slices.DeleteFunc(hosts, func(h host) bool { return h.Draining })
}

// parseAddress reads an IP address and port; why is empty when it is one that Envoy can be told.
func parseAddress(text string) (addr netip.AddrPort, why string) {
	if text == "" {
		return addr, "it has no such address"
	}
	addr, err := netip.ParseAddrPort(text)
	switch {
	case err != nil:
		return addr, "its address is no IP address and port"
	case addr.Addr().IsUnspecified() || addr.Addr().Zone() != "" || addr.Port() == 0:
		return addr, "its address is none that others can reach"
	}
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()), ""
}
