package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
)

// NameError means that a certificate is valid, but carries none of the wanted names.
type NameError struct {
	Has, Wants []string
}

func (e *NameError) Error() string {
	return fmt.Sprintf("the certificate is for %q, and none of these is %q", e.Has, e.Wants)
}

// CheckName returns a [*NameError] unless the leaf, the first certificate of a verified chain, carries exactly the
// name. A * is never a wildcard, neither in the name nor in the certificate: the peer chose the name.
func CheckName(certs []*x509.Certificate, name string) error {
	if len(certs) == 0 {
		return errNoCertificate
	}
	if has := sansOf(certs[0]); !slices.Contains(has, name) {
		return &NameError{Has: has, Wants: []string{name}}
	}
	return nil
}

// Reason returns the reason for a failed handshake as one word for a metric: no_certificate, expired, authority (an
// unknown CA), usage, name, not_tls, version, timeout, or tls for all others.
func Reason(err error) string {
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	var name *NameError
	var record tls.RecordHeaderError
	var network net.Error
	switch {
	case errors.As(err, &name):
		return "name"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "expired"
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return "usage"
	case errors.As(err, &unknown):
		return "authority"
	case errors.As(err, &record):
		return "not_tls"
	case errors.As(err, &network) && network.Timeout():
		return "timeout"
	case strings.Contains(err.Error(), "didn't provide a certificate"): // crypto/tls has no types for these two
		return "no_certificate"
	case strings.Contains(err.Error(), "unsupported versions"):
		return "version"
	}
	return "tls"
}

// hasURI reports whether the leaf carries the URI. A * in the path of name matches any one non-empty segment.
func hasURI(leaf *x509.Certificate, name string) bool {
	for _, u := range leaf.URIs {
		if matches(u.String(), name) {
			return true
		}
	}
	return false
}

func matches(uri, pattern string) bool {
	scheme, path, ok := strings.Cut(pattern, "://")
	if !ok || !strings.Contains(path, "/*") {
		return uri == pattern
	}
	rest, ok := strings.CutPrefix(uri, scheme+"://")
	have, want := strings.Split(rest, "/"), strings.Split(path, "/")
	if !ok || len(have) != len(want) || have[0] != want[0] { // the trust domain is never a pattern
		return false
	}
	for i := range want {
		if want[i] != have[i] && (want[i] != "*" || have[i] == "") {
			return false
		}
	}
	return true
}
