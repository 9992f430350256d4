package redis

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"strings"
	"testing"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/lab"
)

func TestParseURL(t *testing.T) {
	for _, tt := range []struct {
		url  string
		want server
	}{
		{"redis://cache", server{address: "cache:6379", layout: keyward}},
		{"redis://u:p%40ss@[::1]:1/3?wait=2", server{
			address: "[::1]:1", username: "u", password: "p@ss", database: 3, wait: 2, layout: keyward,
		}},
		{"redis://:p@cache:1/?layout=envoyproxy", server{address: "cache:1", password: "p", layout: envoyproxy}},
	} {
		if got, err := parseURL(tt.url, nil); err != nil || got != tt.want {
			t.Errorf("%s: %+v %v", tt.url, got, err)
		}
	}
	s, err := parseURL("rediss://cache:1", nil)
	if err != nil || s.tls == nil || s.tls.ServerName != "cache" || s.tls.MinVersion != tls.VersionTLS12 {
		t.Errorf("%+v %v", s, err)
	}
}

func TestErrorsHideThePassword(t *testing.T) {
	for url, want := range map[string]string{
		"redis://u:hidden@%zz":                          "malformed URL",
		"redis://u:hidden@cache:port":                   "malformed URL",
		"http://u:hidden@cache":                         `unknown scheme "http"`,
		"redis://u:hidden@":                             "no host",
		"redis://u:hidden@cache/name":                   "not a database's number",
		"redis://u:hidden@cache?wait=one":               "wait=one",
		"redis://u:hidden@cache?layout=other":           "layout=other",
		"redis://u:hidden@cache?password=x":             "unknown parameter password",
		"redis://u:hidden\n@cache":                      "malformed URL",
		"redis://u:hidden@127.0.0.1:1/?layout=keyward":  "",
		"rediss://u:hidden@127.0.0.1:1/?layout=keyward": "",
	} {
		c, err := Open(t.Context(), Options{URL: url})
		if want == "" && err == nil {
			err = c.Healthy(t.Context())
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestPassword(t *testing.T) {
	s := startServer(t, "--requirepass", "correct")
	for password, want := range map[string]string{"correct": "", "hidden": "WRONGPASS", "": "NOAUTH"} {
		c, err := Open(t.Context(), Options{URL: "redis://:" + password + "@" + s.address + "/1"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		err = c.Healthy(t.Context())
		if want != "" {
			fails(t, err, want)
		} else if err != nil {
			t.Error(err)
		}
		if err != nil && strings.Contains(err.Error(), "hidden") {
			t.Errorf("%v contains the password", err)
		}
	}
}

// TestTLS requires that rediss verifies the server with the authorities of Options.TLS.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	if err := certs.MakeDemo(dir, certs.DemoOptions{}); err != nil {
		t.Fatal(err)
	}
	files := certs.DemoFiles(dir, "sidecar")
	s := startServer(t, "--tls-cert-file", files.Cert, "--tls-key-file", files.Key, "--tls-ca-cert-file", files.CA,
		"--tls-auth-clients", "no")
	secure, err := lab.Ports{}.Addr()
	if err != nil {
		t.Fatal(err)
	}
	s.do("CONFIG", "SET", "tls-port", secure[strings.LastIndex(secure, ":")+1:])
	ca, err := os.ReadFile(files.CA)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	for _, config := range []*tls.Config{nil, {RootCAs: roots, MinVersion: tls.VersionTLS13}} {
		c, err := Open(t.Context(), Options{URL: "rediss://" + secure, Terms: federation.Always(testEpoch), TLS: config})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		if config == nil {
			fails(t, c.Healthy(t.Context()), "unknown authority")
			continue
		}
		grant(t, c, "a", request(year, 1))
	}
}
