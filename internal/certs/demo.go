package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// DemoTrustDomain is the trust domain of the demo certificates' URI names.
const DemoTrustDomain = "keyward.demo"

// DemoOptions configure [MakeDemo]. The zero value creates everything in an empty directory.
type DemoOptions struct {
	Hosts     []string         // host names and IP addresses in addition to localhost, 127.0.0.1 and ::1
	Regions   []string         // regions of a federation: a certificate RegionRole(name) for the members of each
	Renew     bool             // keep the CA in the directory and create new certificates
	Overwrite bool             // replace the CA in the directory, so that its certificates are no longer trusted
	Lifetime  time.Duration    // of the certificates; default 365 days. The CA is valid for ten years
	Now       func() time.Time // default [time.Now]
}

// role is the holder of one certificate of the demo.
type role struct {
	name  string
	usage []x509.ExtKeyUsage
	paths []string // of the URI names
}

func demoRoles(regions []string) []role {
	both := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	all := []role{{"sidecar", both, []string{"/sidecar"}}, {"xds", both, []string{"/xds"}}, {"envoy", both[1:], []string{"/envoy"}}}
	for _, name := range regions {
		all = append(all, role{RegionRole(name), both, []string{"/sidecar", "/keyward/region/" + name}})
	}
	return all
}

// RegionRole returns the role of the demo whose certificate belongs to the members of a region. It has the name of
// sidecars, and a name by which coordinators recognize the region.
func RegionRole(region string) string { return "region-" + region }

// DemoSAN returns the URI name of a role of the demo: sidecar, xds or envoy.
func DemoSAN(role string) string { return "spiffe://" + DemoTrustDomain + "/" + role }

// DemoFiles returns the files of a role in a directory of [MakeDemo].
func DemoFiles(dir, role string) Files {
	return Files{Cert: filepath.Join(dir, role+".crt"), Key: filepath.Join(dir, role+".key"),
		CA: filepath.Join(dir, "ca.crt")}
}

// MakeDemo creates a CA (ca.crt, ca.key) and certificates for sidecar, xds and envoy (NAME.crt and NAME.key) in dir.
// It replaces an existing CA only if o.Overwrite is set. The CA's key is stored next to the certificates, so this is
// only for demos and tests.
func MakeDemo(dir string, o DemoOptions) error {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Lifetime <= 0 {
		o.Lifetime = 365 * 24 * time.Hour
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make demo certificates: %w", err)
	}
	ca, err := demoCA(dir, o)
	if err != nil {
		return fmt.Errorf("make demo certificates: %w", err)
	}
	var faults []error
	for _, name := range o.Regions {
		if name == "" || strings.ContainsAny(name, "/\\") || strings.Contains(name, "..") {
			return fmt.Errorf("make demo certificates: region %q: want a name without slashes", name)
		}
	}
	for _, r := range demoRoles(o.Regions) {
		if err := ca.issue(dir, r, o); err != nil {
			faults = append(faults, fmt.Errorf("make demo certificates: %w", err))
		}
	}
	return errors.Join(faults...)
}

// authority is a CA with its key.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func demoCA(dir string, o DemoOptions) (*authority, error) {
	certFile, keyFile := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	for _, file := range []string{certFile, keyFile} {
		_, err := os.Lstat(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return nil, err
		case o.Overwrite:
			continue
		case o.Renew:
			return readAuthority(certFile, keyFile)
		}
		return nil, fmt.Errorf("%s: %w: renew its certificates, or replace the CA", file, fs.ErrExist)
	}
	return newAuthority(certFile, keyFile, o.Now())
}

func readAuthority(certFile, keyFile string) (*authority, error) {
	m, err := Files{Cert: certFile, Key: keyFile}.load()
	if err != nil {
		return nil, err
	}
	key, ok := m.cert.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !m.cert.Leaf.IsCA {
		return nil, fmt.Errorf("%s: not a CA of this program", certFile)
	}
	return &authority{m.cert.Leaf, key}, nil
}

func newAuthority(certFile, keyFile string, now time.Time) (*authority, error) {
	t := template("keyward demo CA", now, 10*365*24*time.Hour)
	t.IsCA, t.BasicConstraintsValid = true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	key, der, err := sign(t, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", certFile, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", certFile, err)
	}
	return &authority{cert, key}, writePair(certFile, keyFile, der, key)
}

func (a *authority) issue(dir string, r role, o DemoOptions) error {
	f := DemoFiles(dir, r.name)
	t := template("keyward "+r.name, o.Now(), o.Lifetime)
	t.ExtKeyUsage, t.KeyUsage = r.usage, x509.KeyUsageDigitalSignature
	for _, path := range r.paths {
		t.URIs = append(t.URIs, &url.URL{Scheme: "spiffe", Host: DemoTrustDomain, Path: path})
	}
	for _, host := range append([]string{"localhost", "127.0.0.1", "::1"}, o.Hosts...) {
		if ip := net.ParseIP(host); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else if host != "" && !slices.Contains(t.DNSNames, host) {
			t.DNSNames = append(t.DNSNames, host)
		}
	}
	key, der, err := sign(t, a)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Cert, err)
	}
	return writePair(f.Cert, f.Key, der, key)
}

func template(name string, now time.Time, lifetime time.Duration) *x509.Certificate {
	return &x509.Certificate{
		Subject:   pkix.Name{CommonName: name, Organization: []string{"keyward demo"}},
		NotBefore: now.Add(-time.Hour), // for clocks that are behind
		NotAfter:  now.Add(lifetime),
	}
}

// sign creates a key and a certificate for it, signed by a, or self-signed if a is nil.
func sign(t *x509.Certificate, a *authority) (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if t.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, nil, err
	}
	by := authority{t, key}
	if a != nil {
		by = *a
	}
	der, err := x509.CreateCertificate(rand.Reader, t, by.cert, &key.PublicKey, by.key)
	return key, der, err
}

// writePair replaces both files, each atomically. A program that reads between the two finds a pair that does not
// match, keeps the old one and reads again.
func writePair(certFile, keyFile string, der []byte, key *ecdsa.PrivateKey) error {
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("%s: %w", keyFile, err)
	}
	return errors.Join(
		writePEM(keyFile, "PRIVATE KEY", secret, 0o600),
		writePEM(certFile, "CERTIFICATE", der, 0o644),
	)
}

func writePEM(file, kind string, der []byte, mode fs.FileMode) error {
	tmp, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	defer os.Remove(tmp.Name()) // fails after the rename
	err = errors.Join(
		tmp.Chmod(mode),
		pem.Encode(tmp, &pem.Block{Type: kind, Bytes: der}),
		tmp.Close(),
	)
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}
