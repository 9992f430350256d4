// Package h2 serves unary, server-streaming and bidirectional gRPC calls over HTTP/2, with one goroutine per connection.
//
// [InlineServer.Serve] starts a goroutine for each connection. It reads what is available, processes all complete
// frames, calls [Handler.Serve] for each complete call and writes all responses at once. Serve runs on the
// connection's goroutine and must not block. A call may also be answered later, on any goroutine. A connection writes
// such responses from a second goroutine, which it starts with the first of them. In steady state a call does not
// allocate.
//
// Frames and header blocks are parsed by golang.org/x/net/http2. [Limits] bounds what a client may do. What exceeds
// the limits is refused as RFC 9113 requires, and reported to [Options.Refuse].
//
// Requests may be compressed by gzip (grpc-encoding). Responses are not compressed. In a bidirectional call, see
// [Duplex], neither are requests.
package h2

import (
	"crypto/tls"
	"log/slog"
	"net"
	"time"

	"github.com/keyward/keyward/internal/budget"
)

// Options configure an InlineServer.
type Options struct {
	Methods map[string]Handler // by full name, "/pkg.Service/Method"; other calls fail with UNIMPLEMENTED
	Headers []KeptHeader       // request headers kept for Stream.Header; others are skipped

	// Refuse is called with the reason for everything that is refused before it is a call; nil: not called. The
	// reasons are the constants of this package and the names of HTTP/2 error codes in lower case. It may be called
	// on any goroutine.
	Refuse func(reason string)

	// Served is called once per connection, after the first call on it that succeeded, with the connection that the
	// listener accepted; nil: not called.
	Served func(net.Conn)

	Limits Limits

	// Account is charged with the memory that clients make the process keep, in addition to the account of this
	// server, which is limited by Limits.Unfinished; nil: no further account.
	Account *budget.Account

	// PingInterval is the time between the pings of a watched connection; default 3 s.
	PingInterval time.Duration

	MaxAge      time.Duration // time after which a connection is drained, plus or minus 10 %; 0: never
	MaxAgeGrace time.Duration // time after MaxAge at which the connection is closed; 0: never
	TLS         *tls.Config   // nil: the listener's connections are plaintext or already secured

	// TLSReason returns the reason to report to Refuse for a failed TLS handshake; nil: always "tls".
	TLSReason func(error) string

	Log *slog.Logger // logs client faults at debug level; nil: no logs
}

// KeptHeader is a request header that is kept for Stream.Header.
type KeptHeader struct {
	Name string // in lower case
	// Bytes of the value; Max+1 bytes of a longer value are kept, so that readers can tell; 0: Limits.HeaderList.
	Max int
}

// Reasons for Options.Refuse, in addition to the names of HTTP/2 error codes.
const (
	NotHTTP2 = "preface" // the connection did not begin with the HTTP/2 preface, or not in time
	// The client went silent in the HTTP/2 handshake, or does not read its responses.
	Cut = "cut"
	// The client makes the process keep too much: incomplete calls, buffers, open streams.
	Unfinished = "unfinished"
	// The client sent part of a frame or header block and not the rest in time.
	Stalled     = "stalled"
	TooSlow     = "question_canceled"          // the message of a call did not arrive in time
	TooLarge    = "question_resourceexhausted" // the message of a call is too large
	Undecodable = "question_internal"          // the message of a call cannot be decompressed
)

// Limits bound what a client may do. A zero field means its default.
type Limits struct {
	Streams     uint32 // open calls per connection; default 4096
	HeaderList  int    // bytes of a call's headers, decoded, plus 32 for each; default 128 KiB
	Message     int    // bytes of a call's message, and of its content if it is compressed; default 16 MiB
	KeepMessage int    // bytes of the message that are kept, the rest is counted and dropped; default: all
	Unfinished  int64  // bytes that all connections together may make the process keep; default 18 MiB
	// Bytes that one connection may always make it keep, up to its part of Unfinished; default 128 KiB.
	FairShare int64
	Output    int // bytes of responses per connection that wait for the client to read; default 4 MiB
	// Frames that carry no call before the connection is closed; default 1000, and 100 more per second.
	ControlFrames    int
	HandshakeTimeout time.Duration // for TLS, preface and settings; default 5 s
	StallTimeout     time.Duration // for the rest of a frame or header block that has begun; default 5 s
	// For a call's message to arrive, and for the client's window to admit a response; default 30 s.
	MessageTimeout time.Duration
	WriteTimeout   time.Duration // for the client to read; default 30 s, accurate to half of it
	IdleTimeout    time.Duration // time without a call after which a connection is drained; 0: never
	Continuations  int           // CONTINUATION frames of one header block; default 64
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
