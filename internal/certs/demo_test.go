package certs

import (
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestMakeDemo(t *testing.T) {
	c := newClock()
	dir := demo(t, c, DemoOptions{})
	ca := func() string {
		raw, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	first := ca()
	err := MakeDemo(dir, DemoOptions{Now: c.now})
	if !errors.Is(err, os.ErrExist) || !strings.Contains(err.Error(), "ca.crt") {
		t.Errorf("a second CA: error %v", err)
	}
	for range 2 {
		if err := MakeDemo(dir, DemoOptions{Now: c.now, Renew: true}); err != nil {
			t.Fatal(err)
		}
	}
	if ca() != first {
		t.Error("renewing replaced the CA")
	}
	// If a certificate is missing, its existing key is still kept.
	if err := os.Remove(filepath.Join(dir, "ca.crt")); err != nil {
		t.Fatal(err)
	}
	if err := MakeDemo(dir, DemoOptions{Now: c.now}); !errors.Is(err, os.ErrExist) || !strings.Contains(err.Error(), "ca.key") {
		t.Errorf("over an old key: error %v", err)
	}
	if err := MakeDemo(dir, DemoOptions{Now: c.now, Renew: true}); err == nil || !strings.Contains(err.Error(), "ca.crt") {
		t.Errorf("renewing without the CA's certificate: error %v", err)
	}
	if err := MakeDemo(dir, DemoOptions{Now: c.now, Overwrite: true}); err != nil {
		t.Fatal(err)
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 8 {
		t.Errorf("files left: %v", entries)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(e.Name(), ".key") && info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v", e.Name(), info.Mode())
		}
	}
	if err := MakeDemo(filepath.Join(dir, "ca.crt", "sub"), DemoOptions{}); err == nil || !strings.Contains(err.Error(), "ca.crt") {
		t.Errorf("a directory that cannot be: error %v", err)
	}
}

// TestRegionCertificates requires that the certificate of a region has the name of sidecars, and one name of a region, and
// that names cannot leave the folder.
func TestRegionCertificates(t *testing.T) {
	dir := demo(t, newClock(), DemoOptions{Regions: []string{"eu", "us"}})
	for role, want := range map[string][]string{
		"sidecar": {DemoSAN("sidecar")}, RegionRole("eu"): {DemoSAN("sidecar"), DemoSAN("keyward/region/eu")},
		RegionRole("us"): {DemoSAN("sidecar"), DemoSAN("keyward/region/us")},
	} {
		f := DemoFiles(dir, role)
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, u := range pair.Leaf.URIs {
			names = append(names, u.String())
		}
		if !slices.Equal(names, want) {
			t.Errorf("%s has the names %v, want %v", role, names, want)
		}
	}
	for _, name := range []string{"", "../eu", "a/b", `a\b`} {
		if err := MakeDemo(t.TempDir(), DemoOptions{Regions: []string{name}}); err == nil {
			t.Errorf("a certificate of the region %q", name)
		}
	}
}
