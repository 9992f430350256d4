package h2

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// eventually waits for the effect of another goroutine.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func TestLargeMessages(t *testing.T) {
	_, l, r := start(t, "tcp", Options{})
	c := client(t, l)
	for _, n := range []int{1 << 20, 16 << 20} {
		if out, err := ask(t.Context(), c, size, strings.Repeat("x", n)); err != nil || out != fmt.Sprint(n) {
			t.Errorf("%d bytes: %s, %v", n, out, err)
		}
	}
	_, err := ask(t.Context(), c, size, strings.Repeat("x", 16<<20+1))
	if want := "grpc: received message larger than max (16777217 vs. 16777216)"; status.Code(err) != codes.ResourceExhausted || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("a byte more: %v", err)
	}
	if r.of(TooLarge) != 1 {
		t.Error("not counted")
	}
	if out, err := ask(t.Context(), c, echo, "small"); err != nil || out != "small" {
		t.Errorf("after that: %s, %v", out, err)
	}
}

func TestStreaming(t *testing.T) {
	_, l, _ := start(t, "tcp", Options{})
	c := client(t, l)
	for _, n := range []int{0, 1, 1000} {
		s, err := c.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, count)
		if err != nil {
			t.Fatal(err)
		}
		in, out := strings.Repeat("x", n), ""
		if err := errors.Join(s.SendMsg(&in), s.CloseSend()); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			if err := s.RecvMsg(&out); err != nil || out != fmt.Sprint(i) {
				t.Fatalf("message %d is %q: %v", i, out, err)
			}
		}
		if err := s.RecvMsg(&out); !errors.Is(err, io.EOF) {
			t.Errorf("the end: %v", err)
		}
	}
}

// When a client gives up a call, the handler is notified and its place is freed.
func TestCancelAndDeadline(t *testing.T) {
	_, l, _ := start(t, "tcp", Options{Limits: Limits{Streams: 4}})
	c := client(t, l)
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		if _, err := ask(ctx, c, gives, ""); status.Code(err) != codes.DeadlineExceeded {
			t.Fatalf("not given up: %v", err)
		}
		cancel()
	}
	if out, err := ask(t.Context(), c, late, "here"); err != nil || out != "here" {
		t.Fatalf("after that: %s, %v", out, err)
	}
}

// Draining connections repeatedly does not lose a call.
func TestNoCallIsLostWhenConnectionsAge(t *testing.T) {
	var conns atomic.Int64
	_, l, r := start(t, "tcp", Options{MaxAge: 30 * time.Millisecond, MaxAgeGrace: time.Minute, Served: func(net.Conn) { conns.Add(1) }})
	c := client(t, l)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := 0; conns.Load() < 10; j++ {
				in := fmt.Sprint(i, j)
				if out, err := ask(t.Context(), c, []string{echo, late}[j%2], in); err != nil || out != in {
					t.Errorf("%q: %q, %v", in, out, err)
					return
				}
			}
		})
	}
	all.Wait()
	if len(r.n) != 0 {
		t.Errorf("counted as refused: %v", r.n)
	}
}

func TestShutdownWaitsForCalls(t *testing.T) {
	asked, answer := make(chan bool), make(chan bool)
	s, l, _ := start(t, "tcp", Options{Methods: map[string]Handler{late: method(func(c *Stream) {
		go func() {
			asked <- true
			<-answer
			c.Reply(text("done"))
		}()
	})}})
	c := client(t, l)
	result := make(chan error, 1)
	go func() {
		_, err := ask(t.Context(), c, late, "")
		result <- err
	}()
	<-asked
	down := make(chan bool)
	go func() {
		s.Shutdown(t.Context())
		close(down)
	}()
	eventually(t, "the listener is closed", func() bool {
		_, err := net.Dial("tcp", l.Addr().String())
		return err != nil
	})
	select {
	case <-down:
		t.Error("it did not wait")
	default:
	}
	answer <- true
	if err := <-result; err != nil {
		t.Errorf("the call that was under way: %v", err)
	}
	<-down
}

func TestShutdownCuts(t *testing.T) {
	s, l, _ := start(t, "tcp", Options{})
	c := client(t, l)
	result := make(chan error, 1)
	go func() {
		_, err := ask(t.Context(), c, gives, "")
		result <- err
	}()
	if _, err := ask(t.Context(), c, echo, ""); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.Shutdown(ctx)
	if err := <-result; status.Code(err) != codes.Unavailable {
		t.Errorf("a call that was cut: %v", err)
	}
}

// Clients that ping often stay connected.
func TestKeepalive(t *testing.T) {
	_, l, r := start(t, "tcp", Options{})
	raw, f := speak(t, l)
	for i := range 500 {
		_ = f.WritePing(false, [8]byte{byte(i), byte(i >> 8)})
	}
	_ = raw.SetReadDeadline(time.Now().Add(10 * time.Second))
	for acks := 0; acks < 500; {
		got, err := f.ReadFrame()
		if err != nil {
			t.Fatalf("after %d answers: %v", acks, err)
		}
		if p, ok := got.(*http2.PingFrame); ok && p.IsAck() {
			acks++
		}
	}
	c := client(t, l, grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, PermitWithoutStream: true}))
	if _, err := ask(t.Context(), c, echo, ""); err != nil || len(r.n) != 0 {
		t.Error(err, r.n)
	}
}

// selfSigned returns a certificate for 127.0.0.1.
func selfSigned(t testing.TB) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

func TestTLS(t *testing.T) {
	cert, pool := selfSigned(t)
	_, l, r := start(t, "tcp", Options{TLS: &tls.Config{Certificates: []tls.Certificate{cert}}, TLSReason: func(error) string { return "tls reason" }, MaxAge: 50 * time.Millisecond})
	c := client(t, l, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool})))
	for i := range 2000 {
		in := fmt.Sprint(i)
		if out, err := ask(t.Context(), c, []string{echo, late}[i%2], in); err != nil || out != in {
			t.Fatalf("%q: %q, %v", in, out, err)
		}
	}
	if out, err := ask(t.Context(), c, size, strings.Repeat("x", 1<<20)); err != nil || out != fmt.Sprint(1<<20) {
		t.Errorf("a large message: %s, %v", out, err)
	}
	if len(r.n) != 0 {
		t.Errorf("counted as refused: %v", r.n)
	}
	for what, cfg := range map[string]*tls.Config{
		"no trust": {NextProtos: []string{"h2"}},
		"no ALPN":  {RootCAs: pool},
	} {
		before := r.of("tls reason")
		raw, err := tls.Dial("tcp", l.Addr().String(), cfg)
		if err == nil {
			_, err = raw.Read(make([]byte, 1))
			raw.Close()
		}
		if err == nil {
			t.Errorf("%s: it was answered", what)
		}
		eventually(t, what+" counted", func() bool { return r.of("tls reason") > before })
	}
}

// The HTTP/2 client of net/http sends frames and header blocks unlike those of gRPC clients.
func TestHTTPTransport(t *testing.T) {
	_, l, _ := start(t, "tcp", Options{})
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	for i := range 100 {
		in := strings.Repeat("x", i*1000)
		body := append([]byte{0, 0, byte(len(in) >> 16), byte(len(in) >> 8), byte(len(in))}, in...)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+l.Addr().String()+[]string{echo, late}[i%2], bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/grpc")
		res, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || !bytes.Equal(got, body) || res.Trailer.Get("Grpc-Status") != "0" || res.Header.Get("Content-Type") != "application/grpc" {
			t.Fatalf("%d: %d bytes, not %d, trailers %v, %v", i, len(got), len(body), res.Trailer, err)
		}
	}
}

// speak opens an HTTP/2 connection by hand.
func speak(t testing.TB, l net.Listener) (net.Conn, *http2.Framer) {
	t.Helper()
	c, err := net.Dial(l.Addr().Network(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, hello(t, c)
}

func hello(t testing.TB, c net.Conn) *http2.Framer {
	t.Helper()
	f := http2.NewFramer(c, c)
	f.AllowIllegalWrites = true
	_, err := io.WriteString(c, http2.ClientPreface)
	if err := errors.Join(err, f.WriteSettings()); err != nil {
		t.Fatal(err)
	}
	return f
}
