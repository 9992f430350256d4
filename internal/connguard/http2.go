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

// Credentials secure a gRPC server's connections with t, or leave them in the clear without, and count those that fail:
// in the TLS handshake, in HTTP/2's preface, by a stream or a connection that the server ends because HTTP/2's rules or
// bounds were broken. gRPC bounds the time of all handshakes together. What clients make gRPC keep is charged, and a frame or
// a header block that does not come whole in time ends the connection: see unfinished. unary says that no call stays open
// after its first message.
func (s *Guard) Credentials(t *tls.Config, unary bool) credentials.TransportCredentials {
	c := &creds{guard: s, unary: unary}
	if t != nil {
		c.TransportCredentials = credentials.NewTLS(t)
	}
	return c
}

// creds are the server's half of gRPC's credentials.
type creds struct {
	credentials.TransportCredentials // nil: in the clear
	guard                            *Guard
	unary                            bool
}

// ServerHandshake secures one connection and reads HTTP/2's preface from it.
func (c *creds) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	account := c.guard.Account().Open()
	secure, info, err := c.secure(raw, account)
	if err != nil {
		account.Close()
		return nil, nil, err
	}
	head := make([]byte, len(http2.ClientPreface))
	if n, err := io.ReadFull(secure, head); err != nil || string(head) != http2.ClientPreface {
		if n > 0 || !errors.Is(err, io.EOF) { // a probe that only connects is no harm
			c.guard.Refuse(NotHTTP2)
		}
		account.Close()
		return nil, nil, errors.Join(errors.New("no HTTP/2 preface"), err)
	}
	w := &watched{Conn: secure, raw: raw, guard: c.guard, head: head}
	if c.guard != nil {
		w.calls = &unfinished{account: account, streams: !c.unary, calls: map[uint32]held{}}
	}
	return w, info, nil
}

// secure does the TLS handshake, if there is to be one, and counts one that fails.
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
	read.Settle()
	return secure, info, nil
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
	guard   *Guard
	head    []byte      // of the preface, not read again yet
	in, out frames      // of the one goroutine that reads, and of the one that writes
	calls   *unfinished // nil: not bounded
	stall   *time.Timer // for the rest of what has begun; of the goroutine that reads. gRPC sets read deadlines itself
	frame   int         // the frame that it is for
	timed   atomic.Bool // it runs

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
	w.in.scan(b[:n], w.calls.received)
	w.calls.rest(w.in.rest())
	if w.calls.tooMuch() {
		w.guard.Refuse(Unfinished)
		w.ended.Store(true)
		w.Conn.Close()
		return 0, errUnfinished
	}
	w.time()
	return n, err
}

// time sets the time for the rest of a frame or a header block that has begun, and lifts it when that is whole.
func (w *watched) time() {
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

// stalled ends a connection on which something has begun and not come whole in time.
func (w *watched) stalled() {
	if w.timed.Load() && !w.ended.Swap(true) {
		w.guard.Refuse(Stalled)
		w.Conn.Close()
	}
}

// Write writes. Only gRPC's one writing goroutine calls it.
func (w *watched) Write(b []byte) (int, error) {
	w.out.scan(b, func(f *frame) {
		switch f.typ() {
		case http2.FrameGoAway:
			w.parted.Store(true)
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

// Close closes. A server that closes a connection without a word has found it to break the rules.
func (w *watched) Close() error {
	if !w.closed.Swap(true) {
		w.timed.Store(false)
		if !w.ended.Load() && !w.parted.Load() {
			w.guard.Refuse(Cut)
		}
		if w.calls != nil {
			w.calls.end()
		}
	}
	return w.Conn.Close()
}
