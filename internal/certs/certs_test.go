package certs

import (
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestHandshake(t *testing.T) {
	c := newClock()
	dir, other := demo(t, c, DemoOptions{Hosts: []string{"keyward.example", "10.1.2.3"}}), demo(t, c, DemoOptions{})
	old := newClock()
	old.add(-48 * time.Hour)
	expired := demo(t, old, DemoOptions{Lifetime: 24 * time.Hour})
	r := Reload{Now: c.now}

	files := func(role string) Files { return DemoFiles(dir, role) }
	noClient := Files{CA: files("envoy").CA}
	noCA := func(f Files) Files { f.CA = ""; return f }
	withCA := func(f Files, ca string) Files { f.CA = ca; return f }
	expiredWithCA := withCA(DemoFiles(expired, "sidecar"), filepath.Join(expired, "ca.crt"))

	tests := []struct {
		name   string
		server Files
		so     ServerOptions
		client Files
		co     ClientOptions
		want   string // part of the error; empty: the handshake succeeds
	}{
		{"mutual", files("sidecar"), ServerOptions{}, files("envoy"), ClientOptions{}, ""},
		{"server alone", noCA(files("sidecar")), ServerOptions{}, noClient, ClientOptions{}, ""},
		{"client without a certificate", files("sidecar"), ServerOptions{}, noClient, ClientOptions{}, "didn't provide a certificate"},
		{"client of another CA", files("sidecar"), ServerOptions{}, withCA(DemoFiles(other, "envoy"), files("envoy").CA), ClientOptions{}, "unknown authority"},
		{"server of another CA", DemoFiles(other, "sidecar"), ServerOptions{}, files("envoy"), ClientOptions{}, "unknown authority"},
		{"expired server", expiredWithCA, ServerOptions{}, withCA(files("envoy"), filepath.Join(expired, "ca.crt")), ClientOptions{}, "expired"},
		{"expired client", withCA(files("sidecar"), filepath.Join(expired, "ca.crt")), ServerOptions{}, withCA(DemoFiles(expired, "envoy"), files("envoy").CA), ClientOptions{}, "expired"},
		{"a client's certificate does not serve", files("envoy"), ServerOptions{}, files("envoy"), ClientOptions{}, "incompatible key usage"},

		{"server by host", files("sidecar"), ServerOptions{}, files("envoy"), ClientOptions{ServerName: "keyward.example"}, ""},
		{"server by address", files("sidecar"), ServerOptions{}, files("envoy"), ClientOptions{ServerName: "10.1.2.3"}, ""},
		{"server by IPv6 address", files("sidecar"), ServerOptions{}, files("envoy"), ClientOptions{ServerName: "::1"}, ""},
		{"server by another host", files("sidecar"), ServerOptions{}, files("envoy"), ClientOptions{ServerName: "else.example"}, "else.example"},
		{"server by another address", files("sidecar"), ServerOptions{}, files("envoy"), ClientOptions{ServerName: "10.1.2.4"}, "10.1.2.4"},
		{"server by URI", files("sidecar"), ServerOptions{}, files("envoy"), ClientOptions{ServerSANs: []string{"spiffe://x/y", DemoSAN("sidecar")}}, ""},
		{"server by another URI", files("xds"), ServerOptions{}, files("envoy"), ClientOptions{ServerSANs: []string{DemoSAN("sidecar")}}, "none of these"},

		{"client by URI", files("sidecar"), ServerOptions{ClientSANs: []string{DemoSAN("envoy")}}, files("envoy"), ClientOptions{}, ""},
		{"client by another URI", files("sidecar"), ServerOptions{ClientSANs: []string{DemoSAN("sidecar")}}, files("envoy"), ClientOptions{}, "none of these"},
		{"client by a prefix of its URI", files("sidecar"), ServerOptions{ClientSANs: []string{"spiffe://keyward.demo/env"}}, files("envoy"), ClientOptions{}, "none of these"},
		{"client by host", files("sidecar"), ServerOptions{ClientSANs: []string{"keyward.example"}}, files("envoy"), ClientOptions{}, ""},
		{"client by address", files("sidecar"), ServerOptions{ClientSANs: []string{"10.1.2.3"}}, files("envoy"), ClientOptions{}, ""},

		{"TLS 1.2 refused", files("sidecar"), ServerOptions{}, files("envoy"), ClientOptions{MinVersion: tls.VersionTLS12}, "protocol version"},
		{"TLS 1.2 allowed", files("sidecar"), ServerOptions{MinVersion: tls.VersionTLS12}, files("envoy"), ClientOptions{MinVersion: tls.VersionTLS12}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.so.Reload, tt.co.Reload = r, r
			server, client := mustServer(t, tt.server, tt.so), mustClient(t, tt.client, tt.co)
			if strings.HasPrefix(tt.name, "TLS 1.2") {
				client.MaxVersion = tls.VersionTLS12
			}
			_, _, err := handshake(t, server, client)
			if tt.want == "" && err != nil {
				t.Fatalf("refused: %v", err)
			}
			if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Fatalf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

// A dialed address is not part of the connection's state, so only an option can provide a name to verify.
func TestClientDialsAddress(t *testing.T) {
	c := newClock()
	dir := demo(t, c, DemoOptions{})
	server := mustServer(t, DemoFiles(dir, "sidecar"), ServerOptions{Reload: Reload{Now: c.now}})
	client := mustClient(t, DemoFiles(dir, "envoy"), ClientOptions{Reload: Reload{Now: c.now}})
	client.ServerName = "127.0.0.1" // what tls.Dial sets
	if _, _, err := handshake(t, server, client); err == nil || !strings.Contains(err.Error(), "no name to verify") {
		t.Fatalf("error %v, want a refusal", err)
	}
}

func TestReload(t *testing.T) {
	c := newClock()
	dir := demo(t, c, DemoOptions{})
	server := mustServer(t, DemoFiles(dir, "sidecar"), ServerOptions{Reload: Reload{Now: c.now}})
	client := mustClient(t, DemoFiles(dir, "envoy"), ClientOptions{Reload: Reload{Now: c.now}})
	serials := func() string {
		t.Helper()
		a, b, err := handshake(t, server, client)
		if err != nil {
			t.Fatal(err)
		}
		return a.SerialNumber.String() + " " + b.SerialNumber.String()
	}
	first := serials()

	if err := MakeDemo(dir, DemoOptions{Renew: true, Now: c.now}); err != nil {
		t.Fatal(err)
	}
	if got := serials(); got != first {
		t.Error("files were read again within a second")
	}
	c.add(time.Second)
	second := serials()
	if a, b, _ := strings.Cut(second, " "); strings.Contains(first, a) || strings.Contains(first, b) {
		t.Errorf("serials %s after %s: not both renewed", second, first)
	}

	// After a change of the CA both sides use the new one, and a client that still uses the old one is refused.
	stale := mustClient(t, copyFiles(t, DemoFiles(dir, "envoy")), ClientOptions{Reload: Reload{Now: c.now}})
	if err := MakeDemo(dir, DemoOptions{Overwrite: true, Now: c.now}); err != nil {
		t.Fatal(err)
	}
	c.add(time.Second)
	if got := serials(); got == second {
		t.Error("the new CA's certificates are not in use")
	}
	if _, _, err := handshake(t, server, stale); err == nil {
		t.Error("a client with the old CA got in")
	}
}

func TestReloadKeepsWhatWorks(t *testing.T) {
	c := newClock()
	dir := demo(t, c, DemoOptions{})
	f := copyFiles(t, DemoFiles(dir, "sidecar"))
	good, _ := os.ReadFile(f.Cert)
	past := newClock()
	past.add(-48 * time.Hour)
	expired := DemoFiles(demo(t, past, DemoOptions{Lifetime: time.Hour}), "sidecar")
	expiredCert, _ := os.ReadFile(expired.Cert)
	expiredKey, _ := os.ReadFile(expired.Key)
	key, _ := os.ReadFile(f.Key)

	var said []error
	server := mustServer(t, f, ServerOptions{Reload: Reload{Now: c.now, OnReload: func(err error) { said = append(said, err) }}})
	client := mustClient(t, DemoFiles(dir, "envoy"), ClientOptions{Reload: Reload{Now: c.now}})
	steps := []struct {
		name  string
		spoil func()
		said  string // part of the one report; "ok": reloaded; "": none
	}{
		{"half written", func() { write(t, f.Cert, good[:len(good)/2]) }, f.Cert},
		{"still half written", func() {}, ""},
		{"of another key", func() { write(t, f.Cert, expiredCert) }, "private key does not match"},
		{"expired", func() { write(t, f.Key, expiredKey) }, "expired on"},
		{"gone", func() { os.Remove(f.Cert) }, "no such file"},
		{"back", func() { write(t, f.Cert, good); write(t, f.Key, key) }, ""},
		{"empty CA", func() { write(t, f.CA, nil) }, f.CA + ": no PEM certificate"},
	}
	for _, s := range steps {
		s.spoil()
		c.add(2 * time.Second)
		said = nil
		for range 3 {
			if _, _, err := handshake(t, server, client); err != nil {
				t.Fatalf("%s: %v", s.name, err)
			}
			c.add(2 * time.Second)
		}
		switch {
		case s.said == "" && len(said) == 0:
		case s.said == "" || len(said) != 1 || said[0] == nil || !strings.Contains(said[0].Error(), s.said):
			t.Errorf("%s: reports %v, want one with %q", s.name, said, s.said)
		}
	}
}

// Kubernetes replaces a directory with a symlink, so that all files change at once.
func TestReloadSymlink(t *testing.T) {
	c := newClock()
	a, b := demo(t, c, DemoOptions{}), demo(t, c, DemoOptions{})
	mount := t.TempDir()
	link := func(to string) {
		t.Helper()
		tmp := filepath.Join(mount, "..data_tmp")
		if err := errors.Join(os.Symlink(to, tmp), os.Rename(tmp, filepath.Join(mount, "..data"))); err != nil {
			t.Fatal(err)
		}
	}
	link(a)
	for _, name := range []string{"sidecar.crt", "sidecar.key", "ca.crt"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(mount, name)); err != nil {
			t.Fatal(err)
		}
	}
	server := mustServer(t, DemoFiles(mount, "sidecar"), ServerOptions{Reload: Reload{Now: c.now}})
	clientA := mustClient(t, DemoFiles(a, "envoy"), ClientOptions{Reload: Reload{Now: c.now}})
	clientB := mustClient(t, DemoFiles(b, "envoy"), ClientOptions{Reload: Reload{Now: c.now}})
	if _, _, err := handshake(t, server, clientA); err != nil {
		t.Fatal(err)
	}
	link(b)
	c.add(time.Second)
	if _, _, err := handshake(t, server, clientB); err != nil {
		t.Fatal(err)
	}
	if _, _, err := handshake(t, server, clientA); err == nil {
		t.Error("a client of the old CA got in")
	}
}

func TestConcurrentHandshakes(t *testing.T) {
	dir := demo(t, newClock(), DemoOptions{})
	c := newClock()
	server := mustServer(t, DemoFiles(dir, "sidecar"), ServerOptions{Reload: Reload{Now: c.now}})
	client := mustClient(t, DemoFiles(dir, "envoy"), ClientOptions{Reload: Reload{Now: c.now}})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5 {
				if _, _, err := handshake(t, server, client); err != nil {
					t.Error(err)
				}
				c.add(time.Second)
			}
		})
	}
	for range 5 {
		if err := MakeDemo(dir, DemoOptions{Renew: true, Now: c.now}); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
}

func TestBadFiles(t *testing.T) {
	c := newClock()
	f := DemoFiles(demo(t, c, DemoOptions{}), "sidecar")
	junk := filepath.Join(t.TempDir(), "junk.pem")
	write(t, junk, []byte("no PEM"))
	tests := []struct {
		name string
		f    Files
		want []string
	}{
		{"no certificate", Files{CA: f.CA}, []string{"requires a certificate"}},
		{"no key", Files{Cert: f.Cert}, []string{"must be given together"}},
		{"missing files, all named", Files{Cert: "/no/c.crt", Key: "/no/c.key", CA: "/no/ca.crt"}, []string{"/no/c.crt", "/no/c.key", "/no/ca.crt"}},
		{"junk, all named", Files{Cert: junk, Key: f.Key, CA: junk}, []string{junk + " with key " + f.Key, junk + ": no PEM certificate"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Server(tt.f, ServerOptions{})
			for _, want := range tt.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want one with %q", err, want)
				}
			}
		})
	}
	if _, err := Server(Files{Cert: f.Cert, Key: f.Key}, ServerOptions{ClientSANs: []string{"x"}}); err == nil {
		t.Error("a check of client names without a CA was accepted")
	}
}
