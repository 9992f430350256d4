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

// NameError says that a certificate is good and is somebody else's.
type NameError struct {
	Has, Wants []string
}

func (e *NameError) Error() string {
	return fmt.Sprintf("the certificate is for %q, and none of these is %q", e.Has, e.Wants)
}

// CheckName says whether the leaf, the first of a verified chain, carries the name, byte by byte: nil, or a [*NameError].
// Neither a * in the name nor one in the certificate stands for anything else: whoever claims the name has chosen it.
func CheckName(certs []*x509.Certificate, name string) error {
	if len(certs) == 0 {
		return errNoCertificate
	}
	if has := sansOf(certs[0]); !slices.Contains(has, name) {
		return &NameError{Has: has, Wants: []string{name}}
	}
	return nil
}

// Reason is why a handshake failed, in one word for a metric: no_certificate, expired, authority (an unknown CA), usage, name,
// not_tls, version, timeout, or tls for all else.
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
	case strings.Contains(err.Error(), "didn't provide a certificate"): // crypto/tls has no type for these two
		return "no_certificate"
	case strings.Contains(err.Error(), "unsupported versions"):
		return "version"
	}
	return "tls"
}

// hasURI says whether the leaf carries the URI. A * in the name's path stands for any one segment that is not empty.
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
