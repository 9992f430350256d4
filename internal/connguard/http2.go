package connguard

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials"

	"github.com/keyward/keyward/internal/budget"
	"github.com/keyward/keyward/internal/certs"
)

// Credentials secure the connections of a gRPC server with t, or leave them in plaintext if t is nil. They count
// connections that fail: in the TLS handshake, in the HTTP/2 preface, or because the server ends a stream or
// connection that violates HTTP/2 or its bounds. gRPC limits the time of all handshakes together. What clients make
// gRPC keep is charged, and a frame or header block that is not complete in time ends the connection: see unfinished.
func (s *Guard) Credentials(t *tls.Config) credentials.TransportCredentials {
	c := &creds{guard: s}
	if t != nil {
		c.TransportCredentials = credentials.NewTLS(t)
	}
	return c
}

// creds are the server's part of gRPC's credentials.
type creds struct {
	credentials.TransportCredentials // nil: plaintext
	guard                            *Guard
}

// ServerHandshake secures a connection and reads the HTTP/2 preface.
func (c *creds) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	account := c.guard.Account().Open()
	secure, info, err := c.secure(raw, account)
	if err != nil {
		account.Close()
		return nil, nil, err
	}
	head := make([]byte, len(http2.ClientPreface))
	if n, err := io.ReadFull(secure, head); err != nil || string(head) != http2.ClientPreface {
		if n > 0 || !errors.Is(err, io.EOF) { // ignore probes that only connect
			c.guard.Refuse(NotHTTP2)
		}
		account.Close()
		return nil, nil, errors.Join(errors.New("no HTTP/2 preface"), err)
	}
	w := &watched{Conn: secure, raw: raw, guard: c.guard, head: head}
	if c.guard != nil {
		w.calls = &unfinished{account: account, calls: map[uint32]callCharge{}}
	}
	return w, info, nil
}

// secure runs the TLS handshake, if there is one, and counts failures.
func (c *creds) secure(raw net.Conn, account *budget.Account) (net.Conn, credentials.AuthInfo, error) {
	if c.TransportCredentials == nil {
		return raw, nil, nil
	}
	read := budget.Conn{Conn: raw, Meter: budget.NewMeter(account, 0, func() { c.guard.Refuse(Unfinished) })}
	secure, info, err := c.TransportCredentials.ServerHandshake(read)
	if err != nil {
		if !errors.Is(err, budget.ErrOver) {
			c.guard.Refuse(certs.Reason(err))
		}
		return nil, nil, err
	}
	read.Stop()
	return secure, info, nil
}

// ClientHandshake always fails: the credentials are for servers.
func (c *creds) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("credentials of a server")
}

// Info describes the security protocol.
func (c *creds) Info() credentials.ProtocolInfo {
	if c.TransportCredentials == nil {
		return credentials.ProtocolInfo{SecurityProtocol: "insecure"}
	}
	return c.TransportCredentials.Info()
}

// Clone returns a copy.
func (c *creds) Clone() credentials.TransportCredentials {
	d := *c
	if d.TransportCredentials != nil {
		d.TransportCredentials = d.TransportCredentials.Clone()
	}
	return &d
}

// OverrideServerName always fails: it is for clients.
func (c *creds) OverrideServerName(string) error { return errors.New("credentials of a server") }

// watched is a connection of a gRPC server. It returns the preface, which has been read, and reads the headers of the
// frames that the server writes, to count refusals. gRPC has no other way to observe refusals without a cost per
// call.
type watched struct {
	net.Conn
	raw     net.Conn // below TLS
	guard   *Guard
	head    []byte      // rest of the preface to be read again
	in, out frames      // in is used by the reading goroutine, out by the writing one
	calls   *unfinished // nil: not limited
	// For the rest of what has begun; only used by the reading goroutine. gRPC sets read deadlines itself.
	stall *time.Timer
	frame int         // number of the frame that stall is for
	timed atomic.Bool // stall runs

	ended      atomic.Bool // the client closed the connection, or it broke
	goAwaySent atomic.Bool // the server has sent GOAWAY
	closed     atomic.Bool
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
	w.in.scan(b[:n], w.calls.received)
	w.calls.rest(w.in.rest())
	if w.calls.exceeded() {
		w.guard.Refuse(Unfinished)
		w.ended.Store(true)
		w.Conn.Close()
		return 0, errUnfinished
	}
	w.updateStallTimer()
	return n, err
}

// updateStallTimer starts the timer for the rest of a frame or header block that has begun, and stops it when that is complete.
func (w *watched) updateStallTimer() {
	begun := w.in.rest() > 0 || w.calls.open
	switch {
	case begun && w.timed.Load() && (w.frame == w.in.number() || w.calls.open):
	case begun:
		w.frame = w.in.number()
		w.timed.Store(true)
		if w.stall == nil {
			w.stall = time.AfterFunc(w.guard.guards.stall, w.stalled)
		} else {
			w.stall.Reset(w.guard.guards.stall)
		}
	case w.timed.Swap(false):
		w.stall.Stop()
	}
}

// stalled closes a connection on which something has begun and not arrived in time.
func (w *watched) stalled() {
	if w.timed.Load() && !w.ended.Swap(true) {
		w.guard.Refuse(Stalled)
		w.Conn.Close()
	}
}

// Write writes. Only gRPC's writing goroutine calls it.
func (w *watched) Write(b []byte) (int, error) {
	w.out.scan(b, func(f *frame) {
		switch f.typ() {
		case http2.FrameGoAway:
			w.goAwaySent.Store(true)
		case http2.FrameData:
			MarkAnswered(w.raw)
		}
		if code := f.code(); code != http2.ErrCodeNo {
			w.guard.Refuse(strings.ToLower(code.String()))
		}
		if w.calls != nil {
			w.calls.sent(f)
		}
	})
	return w.Conn.Write(b)
}

// Close closes the connection. A server that closes a connection without GOAWAY has found a protocol violation.
func (w *watched) Close() error {
	if !w.closed.Swap(true) {
		w.timed.Store(false)
		if !w.ended.Load() && !w.goAwaySent.Load() {
			w.guard.Refuse(Cut)
		}
		if w.calls != nil {
			w.calls.end()
		}
	}
	return w.Conn.Close()
}
