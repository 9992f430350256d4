package xds

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/keyward/keyward/ring"
)

// Names of what is served.
const (
	OwnerCluster = "keyward"        // the sidecars' rate-limit services, for owner-direct questions
	RouteCluster = "keyward-routes" // the pods, for ring-hash routes
	RouteConfig  = "keyward-routes" // RDS
	RouteListen  = "keyward-routes" // LDS
	KeyHeader    = "x-keyward-key"  // what the owner cluster's ring hashes

	// ClientSecret and CASecret are static secrets that an Envoy's bootstrap has to define when the sidecars want mTLS:
	// its own certificate, and the CA of the sidecars. So every Envoy is served the same cluster.
	ClientSecret = "keyward_client"
	CASecret     = "keyward_ca"
)

// Member is one place on the ring, as Envoy is to see it.
type Member struct {
	ID       ring.ID
	Weight   uint32 // 0 counts as 1
	RLS      string // host:port of the rate-limit service for other pods; empty: none
	Route    string // host:port of the pod's Envoy; empty: none
	Draining bool   // leaving: in no ring any more, while its connections end by themselves
}

// State is everything that is served. Equal states are served under equal versions, by every server.
type State struct {
	Members  []Member
	Capacity int // C of the ring; 0 means ring.DefaultCapacity

	TLS         bool          // the sidecars' rate-limit services want mTLS
	ServerNames []string      // URI or DNS names, one of which a sidecar's certificate carries; empty: any of the CA's
	Connect     time.Duration // connect timeout of the owner cluster; 0 means 25 ms

	RouteAddress string // host:port of the ring-hash routes' listener; empty: no listener and no route
	RouteHeader  string // header that the routes hash; default x-api-key

	Rules []*rlsconf.RateLimitConfig
}

func (s *State) fill() {
	if s.Capacity == 0 {
		s.Capacity = ring.DefaultCapacity
	}
	if s.Connect == 0 {
		s.Connect = 25 * time.Millisecond
	}
	if s.RouteHeader == "" {
		s.RouteHeader = "x-api-key"
	}
	s.Members = slices.Clone(s.Members)
	slices.SortFunc(s.Members, func(a, b Member) int { return strings.Compare(string(a.ID), string(b.ID)) })
	for i := range s.Members {
		s.Members[i].Weight = max(1, s.Members[i].Weight)
	}
}

// host is a member with the address that one cluster uses.
type host struct {
	Member
	addr netip.Addr
	port uint16
}

// hosts picks the members that an Envoy elsewhere can reach, and names the others. EDS takes IP addresses only. A loopback
// address is reachable when everything is on one machine, which is when nobody offers another kind.
func (s *State) hosts(address func(Member) string) (in []host, unreachable []ring.ID) {
	local := 0
	for _, m := range s.Members {
		h, port, err := net.SplitHostPort(address(m))
		ip, err2 := netip.ParseAddr(h)
		n, err3 := strconv.ParseUint(port, 10, 16)
		if err != nil || err2 != nil || err3 != nil || ip.IsUnspecified() {
			unreachable = append(unreachable, m.ID)
			continue
		}
		if ip.IsLoopback() {
			local++
		}
		in = append(in, host{m, ip, uint16(n)})
	}
	if local == len(in) {
		return in, unreachable
	}
	in = slices.DeleteFunc(in, func(h host) bool {
		if h.addr.IsLoopback() {
			unreachable = append(unreachable, h.ID)
		}
		return h.addr.IsLoopback()
	})
	return in, unreachable
}
