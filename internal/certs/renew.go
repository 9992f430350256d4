package certs

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// Bundle is a certificate with its key and the CA that verifies it, in PEM: the three entries of a Secret.
type Bundle struct {
	Cert, Key, CA []byte
}

// RenewOptions configure [Renew] and [RenewCA]. All fields are required.
type RenewOptions struct {
	Lifetime time.Duration // of a new certificate
	Before   time.Duration // a certificate that expires within this time is replaced; less than Lifetime
	Now      time.Time
}

// Validate returns an error if the options are inconsistent.
func (o RenewOptions) Validate() error {
	if o.Lifetime <= 0 || o.Before <= 0 || o.Before >= o.Lifetime {
		return fmt.Errorf("renew certificates: a lifetime of %s and a renewal %s before its end: want both above 0 and the second below the first", o.Lifetime, o.Before)
	}
	return nil
}

// Renew returns a bundle that is valid until at least o.Now plus o.Before, and reports whether it is new. A new
// certificate has the subject, names and usages of the old one, and a new key. Renew also replaces a bundle of
// another CA.
func Renew(ca, old Bundle, o RenewOptions) (Bundle, bool, error) {
	signer, signerKey, err := readPair(ca)
	if err != nil {
		return Bundle{}, false, fmt.Errorf("read the CA: %w", err)
	}
	if !signer.IsCA {
		return Bundle{}, false, errors.New("read the CA: the certificate is not a CA's")
	}
	leaf, _, err := readPair(old)
	if err != nil {
		return Bundle{}, false, fmt.Errorf("read the certificate: %w", err)
	}
	if leaf.NotAfter.Sub(o.Now) > o.Before && bytes.Equal(old.CA, ca.Cert) && leaf.CheckSignatureFrom(signer) == nil {
		return old, false, nil
	}
	t := &x509.Certificate{
		RawSubject: leaf.RawSubject, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: leaf.ExtKeyUsage,
		DNSNames: leaf.DNSNames, URIs: leaf.URIs, IPAddresses: leaf.IPAddresses,
		NotBefore: o.Now.Add(-time.Hour), // for clocks that are behind
		NotAfter:  o.Now.Add(o.Lifetime),
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Bundle{}, false, err
	}
	cert, err := certify(t, signer, key.Public(), signerKey)
	if err != nil {
		return Bundle{}, false, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	return Bundle{cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), ca.Cert}, true, err
}

// RenewCA returns the certificate of a CA that outlives every certificate that [Renew] signs now, and reports whether
// it is new. A new one has the key and subject of the old one, so that both verify what either signed. It has the
// lifetime of the old one.
func RenewCA(old Bundle, o RenewOptions) ([]byte, bool, error) {
	ca, key, err := readPair(old)
	if err != nil {
		return nil, false, fmt.Errorf("read the CA: %w", err)
	}
	if ca.NotAfter.Sub(o.Now) > o.Lifetime+o.Before {
		return old.Cert, false, nil
	}
	t := &x509.Certificate{
		RawSubject: ca.RawSubject, SubjectKeyId: ca.SubjectKeyId, KeyUsage: ca.KeyUsage, ExtKeyUsage: ca.ExtKeyUsage,
		IsCA: true, BasicConstraintsValid: true,
		NotBefore: o.Now.Add(-time.Hour),
		NotAfter:  o.Now.Add(max(ca.NotAfter.Sub(ca.NotBefore), 2*(o.Lifetime+o.Before))),
	}
	cert, err := certify(t, t, key.Public(), key)
	return cert, true, err
}

// readPair decodes a certificate and its key.
func readPair(b Bundle) (*x509.Certificate, crypto.Signer, error) {
	pair, err := tls.X509KeyPair(b.Cert, b.Key)
	if err != nil {
		return nil, nil, err
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, nil, errors.New("the key cannot sign")
	}
	return pair.Leaf, key, nil
}

// certify signs a certificate and returns it in PEM.
func certify(t, parent *x509.Certificate, public crypto.PublicKey, by crypto.Signer) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	t.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, t, parent, public, by)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), err
}
