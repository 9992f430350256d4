package main

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/certs"
)

// apiServer answers like a Kubernetes API server that knows one namespace and lets one token read and replace some
// Secrets.
type apiServer struct {
	t       *testing.T
	secrets map[string]secret
	allowed map[string]bool
	version int
	racing  string // a Secret that another client changes between reading and writing
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, ok := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/shop/secrets/")
	switch {
	case r.Header.Get("Authorization") != "Bearer token":
		a.refuse(w, http.StatusUnauthorized, "Unauthorized")
	case !ok || !a.allowed[name]:
		a.refuse(w, http.StatusForbidden, fmt.Sprintf("secrets %q is forbidden", name))
	case a.secrets[name] == nil:
		a.refuse(w, http.StatusNotFound, fmt.Sprintf("secrets %q not found", name))
	case r.Method == http.MethodGet:
		_ = json.NewEncoder(w).Encode(a.secrets[name])
		if name == a.racing {
			a.store(name, a.secrets[name])
		}
	case r.Method == http.MethodPut:
		var s secret
		if err := json.NewDecoder(r.Body).Decode(&s); err != nil {
			a.t.Error(err)
		}
		old, _ := json.Marshal(a.secrets[name]["metadata"])
		if now, _ := json.Marshal(s["metadata"]); !bytes.Equal(old, now) {
			a.refuse(w, http.StatusConflict, "the object has been modified")
			return
		}
		a.store(name, s)
		_ = json.NewEncoder(w).Encode(s)
	}
}

func (a *apiServer) refuse(w http.ResponseWriter, code int, message string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "message": message})
}

func (a *apiServer) store(name string, s secret) {
	a.version++
	s["metadata"] = map[string]any{"name": name, "labels": map[string]any{"app": "keyward"}, "resourceVersion": fmt.Sprint(a.version)}
	a.secrets[name] = s
}

// cluster is an API server with the Secrets of a release whose certificates are so old, and the folder of a service
// account for it.
func cluster(t *testing.T, age time.Duration) (*apiServer, string) {
	t.Helper()
	dir, account := t.TempDir(), t.TempDir()
	born := time.Now().Add(-age)
	if err := certs.MakeDemo(dir, certs.DemoOptions{Lifetime: 90 * 24 * time.Hour, Now: func() time.Time { return born }}); err != nil {
		t.Fatal(err)
	}
	file := func(name string) []byte {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	a := &apiServer{t: t, secrets: map[string]secret{}, allowed: map[string]bool{}}
	add := func(name string, entries map[string]any) {
		b, err := json.Marshal(map[string]any{"kind": "Secret", "type": "kubernetes.io/tls", "data": entries})
		if err != nil {
			t.Fatal(err)
		}
		var s secret
		if err := json.Unmarshal(b, &s); err != nil {
			t.Fatal(err)
		}
		a.store(name, s)
		a.allowed[name] = true
	}
	add("keyward-ca", map[string]any{"tls.crt": file("ca.crt"), "tls.key": file("ca.key")})
	for name, role := range map[string]string{"keyward-tls": "sidecar", "keyward-xds-tls": "xds", "keyward-envoy-tls": "envoy"} {
		add(name, map[string]any{"tls.crt": file(role + ".crt"), "tls.key": file(role + ".key"), "ca.crt": file("ca.crt")})
	}
	server := httptest.NewTLSServer(a)
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(u.Host)
	t.Setenv("KUBERNETES_SERVICE_HOST", host)
	t.Setenv("KUBERNETES_SERVICE_PORT", port)
	for name, raw := range map[string][]byte{"token": []byte("token\n"), "namespace": []byte("shop"),
		"ca.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})} {
		if err := os.WriteFile(filepath.Join(account, name), raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return a, account
}

// renewIn runs the command as the chart's CronJob does.
func renewIn(t *testing.T, account string, args ...string) (string, error) {
	t.Helper()
	root := newRoot()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetArgs(append([]string{"certs", "--service-account", account, "--lifetime", "2160h", "--before", "720h"}, args...))
	err := root.Execute()
	return out.String(), err
}

// ends is when a Secret's certificate ends.
func (a *apiServer) ends(name string) time.Time {
	a.t.Helper()
	pair, err := tls.X509KeyPair(a.secrets[name].entry("tls.crt"), a.secrets[name].entry("tls.key"))
	if err != nil {
		a.t.Fatal(name, err)
	}
	return pair.Leaf.NotAfter
}

var ofRelease = []string{"--ca-secret", "keyward-ca", "--secret", "keyward-tls,keyward-xds-tls,keyward-envoy-tls"}

// TestCertsInSecrets renews certificates 29 days before their end, and leaves them alone in the next run.
func TestCertsInSecrets(t *testing.T) {
	a, account := cluster(t, 61*24*time.Hour)
	out, err := renewIn(t, account, ofRelease...)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"keyward-tls", "keyward-xds-tls", "keyward-envoy-tls"} {
		if left := time.Until(a.ends(name)); left < 89*24*time.Hour || !strings.Contains(out, name+": renewed, ends ") {
			t.Errorf("%s ends in %s\n%s", name, left, out)
		}
		if a.secrets[name]["type"] != "kubernetes.io/tls" || !bytes.Equal(a.secrets[name].entry("ca.crt"), a.secrets["keyward-ca"].entry("tls.crt")) {
			t.Errorf("%s is not what it was: %v", name, a.secrets[name])
		}
	}
	writes := a.version
	if out, err = renewIn(t, account, ofRelease...); err != nil || a.version != writes || strings.Count(out, ": kept, ") != 4 {
		t.Errorf("a second run: %d writes, %v\n%s", a.version-writes, err, out)
	}
}

// TestCertsInSecretsCA renews the CA in time, and with it every certificate.
func TestCertsInSecretsCA(t *testing.T) {
	a, account := cluster(t, 3640*24*time.Hour)
	if _, err := renewIn(t, account, ofRelease...); err != nil {
		t.Fatal(err)
	}
	if left := time.Until(a.ends("keyward-ca")); left < 3600*24*time.Hour {
		t.Errorf("the CA ends in %s", left)
	}
	if !bytes.Equal(a.secrets["keyward-tls"].entry("ca.crt"), a.secrets["keyward-ca"].entry("tls.crt")) {
		t.Error("members do not get the new CA")
	}
}

// TestCertsInSecretsFaults holds that each fault is named, and that one Secret's does not keep the others from renewal.
func TestCertsInSecretsFaults(t *testing.T) {
	a, account := cluster(t, 61*24*time.Hour)
	delete(a.secrets, "keyward-tls")
	a.racing = "keyward-xds-tls"
	out, err := renewIn(t, account, ofRelease...)
	for _, want := range []string{`Secret keyward-tls: GET 404 Not Found: secrets "keyward-tls" not found`, "Secret keyward-xds-tls: PUT 409 Conflict: the object has been modified"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if !strings.Contains(out, "keyward-envoy-tls: renewed") {
		t.Errorf("the third is not renewed: %s", out)
	}
	a.allowed["keyward-ca"] = false
	for want, args := range map[string][]string{
		"Secret keyward-ca: GET 403 Forbidden": ofRelease,
		"give both":                            {"--ca-secret", "keyward-ca"},
		"below the first":                      append([]string{"--before", "2160h"}, ofRelease...),
		"token: no such file":                  append([]string{"--service-account", t.TempDir()}, ofRelease...),
	} {
		if _, err := renewIn(t, account, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := renewIn(t, account, ofRelease...); err == nil || !strings.Contains(err.Error(), "not in a cluster") {
		t.Errorf("outside of a cluster: %v", err)
	}
}
