package gateways

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// writeSecrets writes the Secrets that the chart makes, as the folders of volumes keyward-tls (of a member), keyward-xds-tls,
// keyward-envoy-tls and keyward-gossip, and returns these folders by name.
func writeSecrets() (map[string]string, error) {
	ca, caKey, err := makeCertificate("keyward CA", nil, nil)
	if err != nil {
		return nil, err
	}
	volumes := map[string]string{"keyward-gossip": file("files", "keyward-gossip")}
	errs := []error{writeFile(filepath.Join(volumes["keyward-gossip"], "gossip.key"), []byte(strings.Repeat("QUFB", 10)+"QUE="))}
	for volume, name := range map[string]string{"keyward-tls": "keyward", "keyward-xds-tls": "keyward-xds", "keyward-envoy-tls": "keyward-envoy"} {
		leaf, key, err := makeCertificate(name+"."+namespace+".svc", ca, caKey)
		if err != nil {
			return nil, err
		}
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return nil, err
		}
		dir := file("files", volume)
		volumes[volume] = dir
		errs = append(errs,
			writeFile(filepath.Join(dir, "tls.crt"), pemOf("CERTIFICATE", leaf.Raw)),
			writeFile(filepath.Join(dir, "tls.key"), pemOf("PRIVATE KEY", der)),
			writeFile(filepath.Join(dir, "ca.crt"), pemOf("CERTIFICATE", ca.Raw)))
	}
	return volumes, errors.Join(errs...)
}

func pemOf(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// makeCertificate returns a certificate of a DNS name by a CA. Without a CA it is a CA itself.
func makeCertificate(name string, ca *x509.Certificate, caKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, DNSNames: []string{name},
	}
	if ca == nil {
		t.IsCA, t.BasicConstraintsValid, t.KeyUsage, t.ExtKeyUsage, t.DNSNames = true, true, x509.KeyUsageCertSign, nil, nil
		ca, caKey = t, key
	}
	der, err := x509.CreateCertificate(rand.Reader, t, ca, &key.PublicKey, caKey)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate of %s: %w", name, err)
	}
	c, err := x509.ParseCertificate(der)
	return c, key, err
}

// writeFile writes a file that any user may read, and its folder. Watchers of the folder see the file appear complete.
func writeFile(path string, text []byte) error {
	dir, name := filepath.Split(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	part := filepath.Join(dir, "."+name)
	return errors.Join(os.WriteFile(part, text, 0o644), os.Rename(part, path))
}
