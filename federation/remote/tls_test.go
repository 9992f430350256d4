package remote

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/certs"
)

// issue returns the files of a new certificate of the demo's CA in dir, with a URI name, for 127.0.0.1.
func issue(t *testing.T, dir, name, uri string) certs.Files {
	t.Helper()
	ca, err := tls.LoadX509KeyPair(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		URIs:        []*url.URL{u}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.Leaf, &key.PublicKey, ca.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	f := certs.Files{Cert: filepath.Join(dir, name+".crt"), Key: filepath.Join(dir, name+".key"), CA: filepath.Join(dir, "ca.crt")}
	for file, block := range map[string]*pem.Block{f.Cert: {Type: "CERTIFICATE", Bytes: der}, f.Key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// authority returns a folder with a CA.
func authority(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := certs.MakeDemo(dir, certs.DemoOptions{}); err != nil {
		t.Fatal(err)
	}
	return dir
}

func clientConfig(t *testing.T, f certs.Files) *tls.Config {
	t.Helper()
	c, err := certs.Client(f, certs.ClientOptions{ServerName: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestCertificates requires that a client proves the region for which it calls.
func TestCertificates(t *testing.T) {
	dir, elsewhere := authority(t), authority(t)
	server, err := certs.Server(issue(t, dir, "coordinator", "spiffe://example.org/keyward/coordinator"), certs.ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, ServeOptions{Coordinator: memory(), TLS: server, Schedule: layoutOf([]string{"a", "b", "eu west", "z/keyward/region/a"}...)})
	for _, tt := range []struct{ region, uri, want string }{
		{"a", "spiffe://example.org/keyward/region/a", ""},
		{"a", "spiffe://example.org/production/keyward/region/a", ""},
		{"eu west", "spiffe://example.org/keyward/region/eu%20west", ""},
		{"z/keyward/region/a", "spiffe://example.org/keyward/region/z/keyward/region/a", ""},
		{"a", "spiffe://example.org/keyward/region/b", `region "a": the certificate has no URI name that ends in /keyward/region/a`},
		{"a", "spiffe://example.org/keyward/region/z/keyward/region/a", "has no URI name"},
		{"a", "spiffe://example.org/keyward/region/a/b", "has no URI name"},
		{"a", "spiffe://example.org/keyward/region/", "has no URI name"},
		{"", "spiffe://example.org/keyward/region/", "not in the layout"},
		{"a", "spiffe://example.org/keyward/region/b?x=/keyward/region/a", "has no URI name"},
		{"a", "spiffe://example.org/keyward/region/a?x", "has no URI name"},
		{"a", "spiffe://example.org/sidecar", "has no URI name"},
	} {
		c := dial(t, s.Addr().String(), func(o *DialOptions) {
			o.Region, o.TLS = tt.region, clientConfig(t, issue(t, dir, "client", tt.uri))
		})
		_, err := c.Lease(bounded(t), tt.region, []federation.PoolRequest{request(1)})
		if tt.want == "" && err != nil {
			t.Errorf("%s with %s: %v", tt.region, tt.uri, err)
		}
		if tt.want != "" {
			fails(t, err, tt.want)
		}
		c.Close()
	}
	for want, config := range map[string]*tls.Config{
		"EOF": nil, // no TLS
		"certificate signed by unknown authority": clientConfig(t, issue(t, elsewhere, "client", "spiffe://example.org/keyward/region/a")),
		"tls": clientConfig(t, certs.Files{CA: filepath.Join(dir, "ca.crt")}),
	} {
		c := dial(t, s.Addr().String(), func(o *DialOptions) { o.TLS = config })
		_, err := c.Lease(bounded(t), "a", []federation.PoolRequest{request(1)})
		fails(t, err, want)
	}
}

// TestOtherProtocol requires that both ends refuse a connection for which no protocol was negotiated.
func TestOtherProtocol(t *testing.T) {
	dir := authority(t)
	f := issue(t, dir, "region", "spiffe://example.org/keyward/region/a")
	server, err := certs.Server(f, certs.ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, ServeOptions{Coordinator: memory(), TLS: server})
	config := clientConfig(t, f)
	config.NextProtos = nil
	conn, err := tls.Dial("tcp", s.Addr().String(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := newClientStream(t.Context(), conn, pace{}.orDefaults())
	fails(t, c.handshake(hello{version, version, testEpoch, "a"}), "did not negotiate the protocol keyward-federation")

	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: server.Certificates, GetCertificate: server.GetCertificate})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).HandshakeContext(t.Context())
		}
	}()
	d := dial(t, ln.Addr().String(), func(o *DialOptions) { o.TLS = clientConfig(t, f) })
	fails(t, d.Healthy(bounded(t)), "did not negotiate the protocol keyward-federation")
}
