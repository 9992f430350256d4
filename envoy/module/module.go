// Package module serves the dynamic module that runs in the Envoys of this pod: it shares memory with them, in which they
// spend leases without a call.
//
// A [SegmentServer] listens on a unix socket. Each connection is one Envoy and has a [LeaseSegment] of its own: the leases
// in it end with the connection. A [LeaseBook] determines which leases it contains. PROTOCOL.md in this folder describes the
// messages and the memory.
//
// Envoys are not trusted. They can write any byte of their segment at any time, so this package keeps its own copy of all
// that it has written there, and reads only numbers from the segment, which it checks.
package module

import (
	"errors"

	"github.com/keyward/keyward/internal/config"
)

// LeaseBook determines the leases in segments.
//
// Its methods are called on the goroutines of connections, those of one connection one at a time. They must not block for
// long. Opened and Closed are called once each, and Interested only between them.
type LeaseBook interface {
	// Opened is called when an Envoy has connected, before it has the segment.
	Opened(c *EnvoyConn)
	// Interested is called when an Envoy had no tokens for a descriptor. i is valid until Interested returns.
	Interested(c *EnvoyConn, i *Interest)
	// Closed is called when the connection has ended. The segment can be used until Closed returns: what is unspent in it
	// then will not be spent.
	Closed(c *EnvoyConn)
}

// Interest states that an Envoy had no tokens for a descriptor, so that it called the rate limit service.
type Interest struct {
	Hits    uint32 // for which it had none, since the last Interest of this descriptor
	Domain  string
	Entries []config.Entry
}

// Hello is the first message of an Envoy.
type Hello struct {
	Node string // the node id in Envoy's configuration; may be empty
	ABI  string // of dynamic modules in this Envoy, as v0.2.0
}

// Fingerprint identifies a descriptor of a domain in one segment. The zero value is none.
type Fingerprint struct{ Lo, Hi uint64 }

// errCorrupt is the error of a segment with a number that this member cannot have caused. Its lease counts as spent.
var errCorrupt = errors.New("a lease in an Envoy's memory is corrupt")
