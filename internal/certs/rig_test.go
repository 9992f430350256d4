package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// clock is a time set by tests.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// demo returns a directory with a demo CA and certificates created at c's time.
func demo(t testing.TB, c *clock, o DemoOptions) string {
	t.Helper()
	dir := t.TempDir()
	o.Now = c.now
	if err := MakeDemo(dir, o); err != nil {
		t.Fatal(err)
	}
	return dir
}

// handshake connects over loopback, sends a byte in each direction, and returns the errors of client and server, and
// the certificates that each received.
func handshake(t testing.TB, server, client *tls.Config) (seenByClient, seenByServer *x509.Certificate, err error) {
	t.Helper()
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	type side struct {
		cert *x509.Certificate
		err  error
	}
	done := make(chan side, 1)
	go func() {
		raw, err := l.Accept()
		if err != nil {
			done <- side{err: err}
			return
		}
		c := tls.Server(raw, server)
		defer c.Close()
		cert, err := exchange(c)
		done <- side{cert, err}
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if client.ServerName == "" {
		client = client.Clone()
		client.ServerName = "localhost" // as tls.Dial does with the name that is dialled
	}
	c := tls.Client(raw, client)
	defer c.Close()
	seenByClient, errClient := exchange(c)
	if errClient != nil {
		raw.Close()
	}
	s := <-done
	return seenByClient, s.cert, errors.Join(errClient, s.err)
}

// exchange runs the handshake and sends a byte in each direction: with TLS 1.3, a client learns of a refusal only
// when it reads.
func exchange(c *tls.Conn) (*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	if _, err := c.Write([]byte{1}); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil { // Read may give the byte along with the end
		return nil, err
	}
	if certs := c.ConnectionState().PeerCertificates; len(certs) > 0 {
		return certs[0], nil
	}
	return nil, nil
}

func mustServer(t testing.TB, f Files, o ServerOptions) *tls.Config {
	t.Helper()
	c, err := Server(f, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func mustClient(t testing.TB, f Files, o ClientOptions) *tls.Config {
	t.Helper()
	c, err := Client(f, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func copyFiles(t *testing.T, f Files) Files {
	t.Helper()
	dir := t.TempDir()
	for _, p := range []*string{&f.Cert, &f.Key, &f.CA} {
		raw, err := os.ReadFile(*p)
		if err != nil {
			t.Fatal(err)
		}
		*p = filepath.Join(dir, filepath.Base(*p))
		write(t, *p, raw)
	}
	return f
}

func write(t *testing.T, file string, raw []byte) {
	t.Helper()
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}
