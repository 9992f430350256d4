// Package h2 serves unary and server-streaming gRPC calls over HTTP/2, one loop a connection.
//
// [Server.Serve] starts a goroutine for each connection. It reads what is there, goes through all whole frames, serves each
// whole call where it stands and writes all answers at once: [Method.Serve] is called on the connection's goroutine and must
// not block. A call may be answered later and on any goroutine; what is answered late is written by a second goroutine that a
// connection has from the first late answer on. In steady state a call costs no allocation.
//
// Frames and header blocks are those of golang.org/x/net/http2; what a client may do is bounded by [Bounds], and what goes
// beyond is refused as RFC 9113 says and told to [Options.Refuse].
package h2

import (
	"crypto/tls"
	"log/slog"
	"net"
	"time"

	"github.com/keyward/keyward/internal/budget"
)

// Options make a Server.
type Options struct {
	Methods map[string]Handler // by full name, "/pkg.Service/Method"; any other call is UNIMPLEMENTED
	Headers []KeptHeader       // request headers kept for Call.Header; others are skipped

	// Refuse is told of what is refused below the level of a call, by reason; nil: nobody is. The reasons are the constants
	// of this package and the names of HTTP/2's error codes in lower case. It may be called on any goroutine.
	Refuse func(reason string)

	// Served is called once for each connection on which a call was answered and did not fail, with what the listener
	// accepted; nil: not called.
	Served func(net.Conn)

	Limits Limits

	// Account is charged with what clients make the process keep, in addition to the account of this server, whose limit is
	// Bounds.Unfinished; nil: that alone.
	Account *budget.Account

	MaxAge      time.Duration // after which a connection is asked to end, give or take a tenth; 0: never
	MaxAgeGrace time.Duration // after which it is cut then; 0: never
	TLS         *tls.Config   // nil: the listener's connections are plain or secured already

	// TLSReason is the reason for Refuse of a handshake that failed; nil: "tls" for all.
	TLSReason func(error) string

	Log *slog.Logger // of what is of use to find faults in clients, at debug level; nil: nothing is logged
}

// KeptHeader is a request header that is kept for Call.Header.
type KeptHeader struct {
	Name string // in lower case
	Max  int    // bytes of the value; of a longer one Max+1 bytes are kept, so that its reader can tell; 0: Bounds.HeaderList
}

// Reasons for Options.Refuse, beside the names of HTTP/2's error codes.
const (
	NotHTTP2   = "preface"                    // did not begin as HTTP/2 does, or not in time
	Cut        = "cut"                        // fell silent in HTTP/2's handshake, or does not read what it asked for
	Unfinished = "unfinished"                 // made the process keep too much: calls that are not whole, buffers, open streams
	Stalled    = "stalled"                    // sent part of a frame or of a header block, and not the rest in time
	TooSlow    = "question_canceled"          // a call whose message did not come in time
	TooLarge   = "question_resourceexhausted" // a call whose message is too large
)

// Limits are what a client may do. A field that is 0 has the default.
type Limits struct {
	Streams          uint32        // calls open on a connection; 4096
	HeaderList       int           // a call's headers unpacked, with 32 more for each, in bytes; 128 KiB
	Message          int           // a call's message, in bytes; 16 MiB
	KeepMessage      int           // what is kept of it, in bytes: the rest is counted and dropped; all
	Unfinished       int64         // what all connections may make the process keep, in bytes; 18 MiB
	FairShare        int64         // what a connection may make it keep whatever the others do, but not above its part of Unfinished; 128 KiB
	Output           int           // answers that wait for a client to read, a connection, in bytes; 4 MiB
	ControlFrames    int           // frames that bring no call further, before the connection ends; 1000, and 100 more a second
	HandshakeTimeout time.Duration // for TLS, preface and settings; 5 s
	StallTimeout     time.Duration // for a frame, or a header block, to come whole once it has begun; 5 s
	MessageTimeout   time.Duration // for a call's message to arrive, and for an answer to be let in by the client's window; 30 s
	WriteTimeout     time.Duration // for the client to read; 30 s, told to within a half
	IdleTimeout      time.Duration // without a call, after which a connection is asked to end; 0: never
	Continuations    int           // frames of one header block; 64
}

func (b Limits) withDefaults() Limits {
	setDefault(&b.Streams, 1<<12)
	setDefault(&b.HeaderList, 128<<10)
	setDefault(&b.Message, 16<<20)
	setDefault(&b.KeepMessage, b.Message)
	setDefault(&b.Unfinished, 18<<20)
	setDefault(&b.FairShare, 128<<10)
	setDefault(&b.Output, 4<<20)
	setDefault(&b.ControlFrames, 1000)
	setDefault(&b.HandshakeTimeout, 5*time.Second)
	setDefault(&b.StallTimeout, 5*time.Second)
	setDefault(&b.MessageTimeout, 30*time.Second)
	setDefault(&b.WriteTimeout, 30*time.Second)
	setDefault(&b.Continuations, 64)
	return b
}

func setDefault[T comparable](to *T, or T) {
	var zero T
	if *to == zero {
		*to = or
	}
}
