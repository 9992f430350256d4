package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/keyward/keyward/ring"
)

// dial opens a stream with purpose f: TCP, TLS unless insecure, and the handshake. It returns the protocol version.
func (p *Peer) dial(ctx context.Context, l *link, f purpose) (net.Conn, uint16, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*dialTime)
	defer cancel()
	d := net.Dialer{Timeout: dialTime}
	conn, err := d.DialContext(ctx, "tcp", l.address)
	if err != nil {
		return nil, 0, err
	}
	conn, version, err := p.handshake(ctx, conn, l, f)
	if err != nil {
		conn.Close()
		return nil, 0, err
	}
	return conn, version, nil
}

// handshake performs the requester's side of the handshake. Also with an error it returns the connection to close.
func (p *Peer) handshake(ctx context.Context, conn net.Conn, l *link, f purpose) (net.Conn, uint16, error) {
	raw := conn
	defer context.AfterFunc(ctx, func() { raw.SetDeadline(time.Unix(1, 0)) })()
	if p.o.ClientTLS != nil {
		secure := tls.Client(conn, clientTLS(p.o.ClientTLS, l.address))
		if err := secure.HandshakeContext(ctx); err != nil {
			return conn, 0, fmt.Errorf("tls: %w", err)
		}
		conn = secure
	}
	if err := p.verifyMember(conn, l.to); err != nil {
		return conn, 0, fmt.Errorf("tls: %w", err)
	}
	h := p.hello
	h.to, h.toBoot, h.purpose = l.to, l.bootID, f
	if _, err := conn.Write(appendHello(nil, h)); err != nil {
		return conn, 0, fmt.Errorf("handshake: %w", err)
	}
	payload, err := readHandshake(conn, frameWelcome)
	if err != nil {
		return conn, 0, fmt.Errorf("handshake: %w", err)
	}
	w, err := parseWelcome(payload)
	if err != nil {
		return conn, 0, fmt.Errorf("handshake: %w", err)
	}
	if w.refusal != refusalNone {
		return conn, 0, refusalError(w, h)
	}
	if h.versions.common(versions{w.version, w.version}) == 0 {
		return conn, 0, fmt.Errorf("handshake: peer chose unsupported version %d", w.version)
	}
	return conn, w.version, nil
}

// refusalError returns an error with what an operator needs to know about a refused stream.
func refusalError(w welcome, h hello) error {
	if w.refusal == refusalVersion {
		return fmt.Errorf("refused: %v: the peer supports %d to %d, this member %d to %d",
			w.refusal, w.versions.min, w.versions.max, h.versions.min, h.versions.max)
	}
	return fmt.Errorf("refused: %v", w.refusal)
}

// alpn prevents a client of another protocol with the same certificates from being taken for a peer.
const alpn = "keyward-peer"

// clientTLS returns the configuration for one address.
func clientTLS(base *tls.Config, hostPort string) *tls.Config {
	c := peerTLS(base)
	if c.ServerName == "" {
		c.ServerName, _, _ = net.SplitHostPort(hostPort)
	}
	return c
}

// serverTLS returns the configuration of the listener, which also applies to what base.GetConfigForClient returns.
func serverTLS(base *tls.Config) *tls.Config {
	c := peerTLS(base)
	if choose := base.GetConfigForClient; choose != nil {
		c.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			chosen, err := choose(h)
			if chosen == nil || err != nil {
				return nil, err
			}
			return peerTLS(chosen), nil
		}
	}
	return c
}

func peerTLS(base *tls.Config) *tls.Config {
	c := base.Clone()
	c.MinVersion = tls.VersionTLS13
	c.NextProtos = []string{alpn}
	c.DynamicRecordSizingDisabled = true // a batch is one write
	return c
}

// verifyMember returns an error if the other end of a TLS stream is not the given member. Without TLS it verifies
// nothing.
func (p *Peer) verifyMember(conn net.Conn, id ring.ID) error {
	secure, ok := conn.(*tls.Conn)
	if !ok {
		return nil
	}
	return p.o.VerifyMember(id, secure.ConnectionState().PeerCertificates)
}

// reasonTLS is the reason for the metric if there is no better one.
const reasonTLS = "tls"

// mutual returns an error unless both sides have certificates, whatever configuration GetConfigForClient returned.
func mutual(s tls.ConnectionState) error {
	if s.Version < tls.VersionTLS13 {
		return errors.New("older than TLS 1.3")
	}
	if len(s.PeerCertificates) == 0 {
		return errors.New("no client certificate")
	}
	return nil
}
