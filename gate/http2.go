package gate

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials"

	"github.com/keyward/keyward/certs"
)

// Credentials secure a gRPC server's connections with t, or leave them in the clear without, and count those that fail:
// in the TLS handshake, in HTTP/2's preface, by a stream or a connection that the server ends because HTTP/2's rules or
// bounds were broken. gRPC bounds the time of all handshakes together. Where all calls are unary, what comes of calls that
// are not whole yet is bounded, too: see unfinished.
func (s *Surface) Credentials(t *tls.Config, unary bool) credentials.TransportCredentials {
	c := &creds{surface: s, unary: unary}
	if t != nil {
		c.TransportCredentials = credentials.NewTLS(t)
	}
	return c
}

// creds are the server's half of gRPC's credentials.
type creds struct {
	credentials.TransportCredentials // nil: in the clear
	surface                          *Surface
	unary                            bool
}

// ServerHandshake secures one connection and reads HTTP/2's preface from it.
func (c *creds) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	var info credentials.AuthInfo
	secure := raw
	if c.TransportCredentials != nil {
		var err error
		if secure, info, err = c.TransportCredentials.ServerHandshake(raw); err != nil {
			c.surface.Refuse(certs.Reason(err))
			return nil, nil, err
		}
	}
	head := make([]byte, len(http2.ClientPreface))
	if n, err := io.ReadFull(secure, head); err != nil || string(head) != http2.ClientPreface {
		if n > 0 || !errors.Is(err, io.EOF) { // a probe that only connects is no harm
			c.surface.Refuse(NotHTTP2)
		}
		return nil, nil, errors.Join(errors.New("no HTTP/2 preface"), err)
	}
	w := &watched{Conn: secure, raw: raw, surface: c.surface, head: head}
	if c.unary && c.surface != nil {
		w.calls = &unfinished{of: &c.surface.gates.unfinished, streams: map[uint32]int{}}
	}
	return w, info, nil
}

// ClientHandshake is never called: these are a server's.
func (c *creds) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("credentials of a server")
}

// Info tells of TLS, or of its absence.
func (c *creds) Info() credentials.ProtocolInfo {
	if c.TransportCredentials == nil {
		return credentials.ProtocolInfo{SecurityProtocol: "insecure"}
	}
	return c.TransportCredentials.Info()
}

// Clone copies them.
func (c *creds) Clone() credentials.TransportCredentials {
	d := *c
	if d.TransportCredentials != nil {
		d.TransportCredentials = d.TransportCredentials.Clone()
	}
	return &d
}

// OverrideServerName is for clients.
func (c *creds) OverrideServerName(string) error { return errors.New("credentials of a server") }

// watched is a connection of a gRPC server. It gives the preface back that has been read, and looks at the heads of the
// frames that the server writes: those that say no are refusals. gRPC tells of them in no other way that costs nothing
// at each call.
type watched struct {
	net.Conn
	raw     net.Conn // below TLS
	surface *Surface
	head    []byte      // of the preface, not read again yet
	in, out frames      // of the one goroutine that reads, and of the one that writes
	calls   *unfinished // nil: not bounded

	ended  atomic.Bool // the other side has ended it, or it broke
	parted atomic.Bool // the server has said that it will end it
	closed atomic.Bool
}

// Read reads.
func (w *watched) Read(b []byte) (int, error) {
	if len(w.head) > 0 {
		n := copy(b, w.head)
		w.head = w.head[n:]
		return n, nil
	}
	n, err := w.Conn.Read(b)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		w.ended.Store(true)
	}
	if w.calls == nil {
		return n, err
	}
	if w.in.scan(b[:n], w.calls.received); w.calls.tooMuch() {
		w.surface.Refuse(Unfinished)
		w.ended.Store(true)
		w.Conn.Close()
		return 0, errUnfinished
	}
	return n, err
}

// Write writes. Only gRPC's one writing goroutine calls it.
func (w *watched) Write(b []byte) (int, error) {
	w.out.scan(b, func(f *frame) {
		switch f.typ() {
		case http2.FrameGoAway:
			w.parted.Store(true)
		case http2.FrameData:
			Answered(w.raw)
		}
		if code := f.code(); code != http2.ErrCodeNo {
			w.surface.Refuse(strings.ToLower(code.String()))
		}
		if w.calls != nil {
			w.calls.sent(f)
		}
	})
	return w.Conn.Write(b)
}

// Close closes. A server that closes a connection without a word has found it to break the rules.
func (w *watched) Close() error {
	if !w.closed.Swap(true) {
		if !w.ended.Load() && !w.parted.Load() {
			w.surface.Refuse(Cut)
		}
		if w.calls != nil {
			w.calls.end()
		}
	}
	return w.Conn.Close()
}
