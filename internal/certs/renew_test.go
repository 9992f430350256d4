package certs

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const day = 24 * time.Hour

// bundles returns the CA and the certificate of a role of a demo.
func bundles(t *testing.T, dir, role string) (ca, leaf Bundle) {
	t.Helper()
	file := func(name string) []byte {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	return Bundle{file("ca.crt"), file("ca.key"), file("ca.crt")}, Bundle{file(role + ".crt"), file(role + ".key"), file("ca.crt")}
}

func leafOf(t *testing.T, b Bundle) *x509.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(b.Cert, b.Key)
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

// TestRenew follows a certificate through its lifetime: it is kept until 30 days before it expires, and the new one
// has the same names.
func TestRenew(t *testing.T) {
	c := newClock()
	ca, old := bundles(t, demo(t, c, DemoOptions{Lifetime: 90 * day, Hosts: []string{"keyward.shop.svc"}}), "sidecar")
	o := RenewOptions{Lifetime: 90 * day, Before: 30 * day, Now: c.now().Add(59 * day)}
	if b, renewed, err := Renew(ca, old, o); err != nil || renewed || string(b.Cert) != string(old.Cert) {
		t.Errorf("31 days before the end: renewed %v, %v", renewed, err)
	}
	o.Now = c.now().Add(61 * day)
	b, renewed, err := Renew(ca, old, o)
	if err != nil || !renewed {
		t.Fatalf("29 days before the end: renewed %v, %v", renewed, err)
	}
	was, is := leafOf(t, old), leafOf(t, b)
	if is.NotAfter.Sub(o.Now) != 90*day || string(b.Key) == string(old.Key) || string(b.CA) != string(ca.Cert) {
		t.Errorf("the new certificate ends %s, its key is new: %v", is.NotAfter, string(b.Key) != string(old.Key))
	}
	if strings.Join(sansOf(is), " ") != strings.Join(sansOf(was), " ") || len(sansOf(is)) < 3 || is.Subject.String() != was.Subject.String() {
		t.Errorf("the names were %v, and are %v", sansOf(was), sansOf(is))
	}
	dir := t.TempDir() // members of the old and the new certificate talk to each other
	for name, raw := range map[string][]byte{"sidecar.crt": b.Cert, "sidecar.key": b.Key, "ca.crt": b.CA, "old.crt": old.Cert, "old.key": old.Key} {
		write(t, filepath.Join(dir, name), raw)
	}
	now := func() time.Time { return o.Now }
	server := mustServer(t, DemoFiles(dir, "sidecar"), ServerOptions{ClientSANs: []string{DemoSAN("sidecar")}, Reload: Reload{Now: now}})
	client := mustClient(t, DemoFiles(dir, "old"), ClientOptions{ServerSANs: []string{DemoSAN("sidecar")}, Reload: Reload{Now: now}})
	if _, _, err := handshake(t, server, client); err != nil {
		t.Error(err)
	}
}

// TestRenewCA checks that a renewed CA verifies what the old one signed, and the old one what the new one signs: pods
// receive the new one at different times.
func TestRenewCA(t *testing.T) {
	c := newClock()
	ca, old := bundles(t, demo(t, c, DemoOptions{}), "xds")
	o := RenewOptions{Lifetime: 90 * day, Before: 30 * day, Now: c.now().Add(3650*day - 121*day)}
	if _, renewed, err := RenewCA(ca, o); err != nil || renewed {
		t.Errorf("121 days before the end: renewed %v, %v", renewed, err)
	}
	o.Now = o.Now.Add(2 * day)
	cert, renewed, err := RenewCA(ca, o)
	if err != nil || !renewed {
		t.Fatalf("119 days before the end: renewed %v, %v", renewed, err)
	}
	next := Bundle{cert, ca.Key, cert}
	leaf, _, err := Renew(next, old, o)
	if err != nil {
		t.Fatal(err)
	}
	for name, ca := range map[string]Bundle{"old": ca, "new": next} {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(ca.Cert)
		if _, err := leafOf(t, leaf).Verify(x509.VerifyOptions{Roots: pool, CurrentTime: o.Now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
			t.Errorf("the %s CA, the new certificate: %v", name, err)
		}
	}
	if err := leafOf(t, old).CheckSignatureFrom(leafOf(t, next)); err != nil { // it has ended, so Verify would say that alone
		t.Errorf("the new CA, the old certificate: %v", err)
	}
	if kept, renewed, err := Renew(next, leaf, o); err != nil || renewed || string(kept.Cert) != string(leaf.Cert) {
		t.Errorf("a second run: renewed %v, %v", renewed, err)
	}
}

// TestRenewRefuses checks that invalid input is named in the error and produces no output.
func TestRenewRefuses(t *testing.T) {
	c := newClock()
	ca, leaf := bundles(t, demo(t, c, DemoOptions{}), "envoy")
	o := RenewOptions{Lifetime: 90 * day, Before: 30 * day, Now: c.now()}
	for name, test := range map[string]struct {
		ca, leaf Bundle
		want     string
	}{
		"no CA":            {Bundle{}, leaf, "read the CA"},
		"not a CA":         {leaf, leaf, "not a CA's"},
		"no certificate":   {ca, Bundle{}, "read the certificate"},
		"keys mixed up":    {Bundle{ca.Cert, leaf.Key, ca.Cert}, leaf, "read the CA"},
		"half a key's PEM": {ca, Bundle{leaf.Cert, leaf.Key[:40], leaf.CA}, "read the certificate"},
	} {
		if _, renewed, err := Renew(test.ca, test.leaf, o); err == nil || renewed || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: renewed %v, %v", name, renewed, err)
		}
	}
	for _, o := range []RenewOptions{{}, {Lifetime: day, Before: day}, {Lifetime: day}, {Before: day}} {
		if o.Validate() == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}
