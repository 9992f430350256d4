package certs

import (
	"errors"
	"os"
	"path/filepath"
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
