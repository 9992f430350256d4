package gate

import (
	"context"
	"crypto/tls"
	"encoding/binary"
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
// bounds were broken. gRPC bounds the time of all handshakes together.
func (s *Surface) Credentials(t *tls.Config) credentials.TransportCredentials {
	c := &creds{surface: s}
	if t != nil {
		c.TransportCredentials = credentials.NewTLS(t)
	}
	return c
}

// creds are the server's half of gRPC's credentials.
type creds struct {
	credentials.TransportCredentials // nil: in the clear
	surface                          *Surface
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
	return &watched{Conn: secure, surface: c.surface, head: head}, info, nil
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
	surface *Surface
	head    []byte // of the preface, not read again yet
	frames  heads

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
	return n, err
}

// Write writes. Only gRPC's one writing goroutine calls it.
func (w *watched) Write(b []byte) (int, error) {
	w.frames.scan(b, func(typ http2.FrameType, code http2.ErrCode) {
		if typ == http2.FrameGoAway {
			w.parted.Store(true)
		}
		if code != http2.ErrCodeNo {
			w.surface.Refuse(strings.ToLower(code.String()))
		}
	})
	return w.Conn.Write(b)
}

// Close closes. A server that closes a connection without a word has found it to break the rules.
func (w *watched) Close() error {
	if !w.closed.Swap(true) && !w.ended.Load() && !w.parted.Load() {
		w.surface.Refuse(Cut)
	}
	return w.Conn.Close()
}

const (
	frameHead = 9 // bytes of an HTTP/2 frame's head
	codeEnd   = 8 // bytes of a GOAWAY's payload up to the end of its code; a RST_STREAM's has half
)

// heads finds the frames with error codes in a stream of frames that comes in pieces of any size.
type heads struct {
	part [frameHead + codeEnd]byte // what is needed of the frame at hand
	have int                       // bytes of it so far
	skip int                       // bytes of payload to pass over
}

// scan calls found for each RST_STREAM and GOAWAY.
func (h *heads) scan(b []byte, found func(http2.FrameType, http2.ErrCode)) {
	for len(b) > 0 {
		if h.skip > 0 {
			n := min(h.skip, len(b))
			h.skip -= n
			b = b[n:]
			continue
		}
		n := copy(h.part[h.have:h.need()], b)
		h.have += n
		b = b[n:]
		if h.have < frameHead || h.have < h.need() {
			continue
		}
		if code := h.code(); code > 0 {
			found(http2.FrameType(h.part[3]), http2.ErrCode(binary.BigEndian.Uint32(h.part[h.have-4:])))
		}
		h.skip, h.have = h.length()+frameHead-h.have, 0
	}
}

func (h *heads) length() int { return int(h.part[0])<<16 | int(h.part[1])<<8 | int(h.part[2]) }

// need is how much of the frame at hand has to be seen, as far as is known.
func (h *heads) need() int {
	if h.have < frameHead {
		return frameHead
	}
	return frameHead + h.code()
}

// code is where in its payload the error code of the frame at hand ends; 0 when it has none.
func (h *heads) code() int {
	switch http2.FrameType(h.part[3]) {
	case http2.FrameRSTStream:
		return min(codeEnd/2, h.length())
	case http2.FrameGoAway:
		return min(codeEnd, h.length())
	}
	return 0
}
