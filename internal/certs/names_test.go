package certs

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestURIPatterns(t *testing.T) {
	for _, tt := range []struct {
		uri, pattern string
		want         bool
	}{
		{"spiffe://td/ns/a/sa/rl", "spiffe://td/ns/a/sa/rl", true},
		{"spiffe://td/ns/a/sa/rl", "spiffe://td/ns/*/sa/rl", true},
		{"spiffe://td/ns/a/sa/other", "spiffe://td/ns/*/sa/rl", false},
		{"spiffe://td/ns/a/b/sa/rl", "spiffe://td/ns/*/sa/rl", false},
		{"spiffe://td/ns//sa/rl", "spiffe://td/ns/*/sa/rl", false},
		{"spiffe://other/ns/a/sa/rl", "spiffe://td/ns/*/sa/rl", false},
		{"spiffe://other/ns/a", "spiffe://*/ns/a", false},
		{"https://td/ns/a/sa/rl", "spiffe://td/ns/*/sa/rl", false},
		{"spiffe://td/ns/*/sa/rl", "spiffe://td/ns/a/sa/rl", false},
		{"spiffe://td/x/envoy", "spiffe://td/*", false},
	} {
		if got := matches(tt.uri, tt.pattern); got != tt.want {
			t.Errorf("%s by %s: %v", tt.uri, tt.pattern, got)
		}
	}
}

// A claimed name is not a pattern, and a pattern in a certificate proves no name.
func TestClaimedNamesAreComparedExactly(t *testing.T) {
	const id = "spiffe://td/keyward/a"
	uri, err := url.Parse(id)
	if err != nil {
		t.Fatal(err)
	}
	cert := []*x509.Certificate{{URIs: []*url.URL{uri}, DNSNames: []string{"a.keyward.test", "*.wild.test"}, IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)}}}
	for _, name := range []string{id, "a.keyward.test", "10.0.0.1"} {
		if err := CheckName(cert, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{
		"spiffe://td/keyward/*", "spiffe://td/*/a", "spiffe://td/keyward/A", "spiffe://td/keyward/a/", "*.keyward.test", "A.keyward.test",
		"a.keyward.test.", "b.wild.test", "[10.0.0.1]", "",
	} {
		var wrong *NameError
		if err := CheckName(cert, name); !errors.As(err, &wrong) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := CheckName(nil, id); err == nil {
		t.Error("no certificate proves a name")
	}
}

// Reasons name what an operator must fix. crypto/tls reports two of them only as text, which may change.
func TestReasons(t *testing.T) {
	c := newClock()
	dir, other := demo(t, c, DemoOptions{}), demo(t, c, DemoOptions{})
	old := newClock()
	old.add(-48 * time.Hour)
	expired := demo(t, old, DemoOptions{Lifetime: 24 * time.Hour})
	r := Reload{Now: c.now}
	both := Files{CA: filepath.Join(t.TempDir(), "ca.crt")}
	var text []byte
	for _, d := range []string{dir, expired} {
		b, err := os.ReadFile(DemoFiles(d, "envoy").CA)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, b...)
	}
	if err := os.WriteFile(both.CA, text, 0o600); err != nil {
		t.Fatal(err)
	}
	file := func(dir, role string) Files { f := DemoFiles(dir, role); f.CA = both.CA; return f }
	for want, client := range map[string]Files{
		"no_certificate": {CA: both.CA}, "authority": file(other, "envoy"), "expired": file(expired, "envoy"), "name": file(dir, "xds"),
	} {
		_, _, err := handshake(t, mustServer(t, file(dir, "sidecar"), ServerOptions{ClientSANs: []string{DemoSAN("envoy")}, Reload: r}),
			mustClient(t, client, ClientOptions{Reload: r}))
		if got := reasonOfServer(err); got != want {
			t.Errorf("%s: got %s of %v", want, got, err)
		}
	}
}

// reasonOfServer returns the reason for the server's error, the last of the joined errors.
func reasonOfServer(err error) string {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		errs := all.Unwrap()
		return Reason(errs[len(errs)-1])
	}
	return Reason(err)
}

func TestExpiryIsReadAtEveryScrape(t *testing.T) {
	c := newClock()
	dir := demo(t, c, DemoOptions{Lifetime: time.Hour})
	m := NewMetrics(nil, map[string]Files{"member": DemoFiles(dir, "sidecar"), "none": {Cert: filepath.Join(dir, "none")}})
	want := func(end time.Time) string {
		var b bytes.Buffer
		b.WriteString("# HELP keyward_certificate_expiry_timestamp_seconds Expiry of the certificate, Unix time; of a file with several CAs, the latest.\n# TYPE keyward_certificate_expiry_timestamp_seconds gauge\n")
		for _, v := range []struct {
			kind string
			end  time.Time
		}{{"member", end}, {"member_ca", c.now().Add(10 * 365 * 24 * time.Hour)}} {
			b.WriteString(fmt.Sprintf("keyward_certificate_expiry_timestamp_seconds{kind=%q} %d\n", v.kind, v.end.Unix()))
		}
		return b.String()
	}
	if err := testutil.CollectAndCompare(m, strings.NewReader(want(c.now().Add(time.Hour)))); err != nil {
		t.Error(err)
	}
	if err := MakeDemo(dir, DemoOptions{Now: c.now, Renew: true, Lifetime: 2 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	if err := testutil.CollectAndCompare(m, strings.NewReader(want(c.now().Add(2*time.Hour)))); err != nil {
		t.Error(err)
	}
}
