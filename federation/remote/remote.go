// Package remote carries the calls of a federation.Coordinator over TCP: a CoordinatorServer serves any Coordinator,
// and a CoordinatorClient is a Coordinator that sends its calls to a server.
//
// A connection belongs to one region and one epoch of the layout. With TLS, a client proves its region by a URI name of
// its certificate. Calls are pipelined, and their replies come in any order. A call whose connection is lost fails. It
// is unknown whether it was processed, and the next request of the same key repairs that, as with every Coordinator.
//
// PROTOCOL.md specifies the encoding.
package remote

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"
)

const (
	// Port is the TCP port of coordinators.
	Port = "7948"
	// ALPN is the protocol that both ends must negotiate, so that a client of another protocol with the same certificates
	// is not taken for a region.
	ALPN = "keyward-federation"
	// regionPath precedes the name of a region in a URI name of its certificates.
	regionPath = "/keyward/region/"
)

// pace holds the times of connections. The zero value uses the defaults.
type pace struct {
	keepalive time.Duration // of silence after which a client pings; it gives up after maxSilent unanswered pings
	idle      time.Duration // of silence after which a server closes
	stall     time.Duration // for the rest of a frame that has begun, and for writing one
	handshake time.Duration
	age       time.Duration // after which a server asks the client to connect again, so that revoked certificates end
	drain     time.Duration // for calls in progress after that
	worked    time.Duration // a connection that lasted longer is replaced without a pause
}

func (p pace) orDefaults() pace {
	return pace{
		keepalive: cmp.Or(p.keepalive, 5*time.Second),
		idle:      cmp.Or(p.idle, 30*time.Second),
		stall:     cmp.Or(p.stall, 10*time.Second),
		handshake: cmp.Or(p.handshake, 5*time.Second),
		age:       cmp.Or(p.age, time.Hour),
		drain:     cmp.Or(p.drain, 5*time.Second),
		worked:    cmp.Or(p.worked, time.Second),
	}
}

// checkRegion returns an error unless the certificate of a connection proves the region.
func checkRegion(state tls.ConnectionState, region string) error {
	if state.NegotiatedProtocol != ALPN {
		return fmt.Errorf("the client did not negotiate the protocol %s", ALPN)
	}
	if len(state.PeerCertificates) == 0 {
		return errors.New("the client presented no certificate")
	}
	if !speaksFor(state.PeerCertificates[0], region) {
		return fmt.Errorf("the certificate has no URI name that ends in %s%s", regionPath, region)
	}
	return nil
}

// speaksFor reports whether the certificate carries the URI name of the region. The name of the region is everything
// behind the first regionPath, so that no name of a region can contain another one's.
func speaksFor(c *x509.Certificate, region string) bool {
	for _, u := range c.URIs {
		if _, name, ok := strings.Cut(u.Path, regionPath); ok && name == region && u.RawQuery == "" && u.Fragment == "" {
			return true
		}
	}
	return false
}

// clientTLS returns the configuration of a client for one server.
func clientTLS(base *tls.Config, host string) *tls.Config {
	c := base.Clone()
	c.MinVersion, c.NextProtos = tls.VersionTLS13, []string{ALPN}
	c.ServerName = cmp.Or(c.ServerName, host)
	return c
}

// serverTLS returns the configuration of a server, which also applies to what base.GetConfigForClient returns.
func serverTLS(base *tls.Config) *tls.Config {
	harden := func(c *tls.Config) *tls.Config {
		c = c.Clone()
		c.MinVersion, c.NextProtos = tls.VersionTLS13, []string{ALPN}
		return c
	}
	c := harden(base)
	if choose := base.GetConfigForClient; choose != nil {
		c.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			chosen, err := choose(h)
			if chosen == nil || err != nil {
				return nil, err
			}
			return harden(chosen), nil
		}
	}
	return c
}
