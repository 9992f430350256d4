package app

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"strings"
	"testing"

	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/peer"
	"github.com/keyward/keyward/ring"
)

// With --tls-bind-name a certificate proves the one member name in it, and no name that a client could choose to
// match it.
func TestBoundNames(t *testing.T) {
	dir := t.TempDir()
	if err := certs.MakeDemo(dir, certs.DemoOptions{Hosts: []string{"a.keyward.test", "*.wild.test"}}); err != nil {
		t.Fatal(err)
	}
	files := certs.DemoFiles(dir, "sidecar")
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	chain := []*x509.Certificate{pair.Leaf}
	for bind, proved := range map[string]string{"{node}.keyward.test": "a", "spiffe://keyward.demo/{node}": "sidecar", "{node}.wild.test": "none"} {
		s := newSecurity(&flags{securityFlags: securityFlags{TLS: files, TLSBindName: bind}}, certs.Files{}, newRegistry(), slog.New(slog.DiscardHandler))
		o := peer.Options{Self: "a"}
		if err := s.peer(&o); err != nil {
			t.Fatal(err)
		}
		for _, id := range []ring.ID{"a", "sidecar", "*", "A", "b", ""} {
			if err := o.VerifyMember(id, chain); (err == nil) != (string(id) == proved) {
				t.Errorf("%s claimed by %q: %v", bind, id, err)
			}
		}
	}
}

// A member whose name other members refuse does not start: it would count alone.
func TestNameThatOthersRefuse(t *testing.T) {
	for _, name := range []ring.ID{"*", "ns/pod", "a\nb"} {
		_, err := Parse("sidecar", "", []string{"--node", string(name)}, func(string) string { return "" })
		if err == nil || !strings.Contains(err.Error(), "--node") {
			t.Errorf("%q: %v", name, err)
		}
	}
}
