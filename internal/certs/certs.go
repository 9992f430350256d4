// Package certs loads certificates, reloads them when they change, and creates a demo CA.
//
// [Files] names three PEM files, which [Server] and [Client] read into a [tls.Config]. Handshakes check the files
// again, at most once per second, so that a rotated Secret is used without a restart. If a new pair is unusable (half
// written, mismatched, or expired while the old one is not), the old one stays in use and the error is reported once.
package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"slices"
	"time"
)

// Files names PEM files. Cert may hold intermediates after the leaf; CA may hold several roots.
type Files struct {
	Cert string // certificate presented to the peer
	Key  string // its private key; set if and only if Cert is
	CA   string // roots to verify the peer's certificate
}

// Empty reports whether no file is named.
func (f Files) Empty() bool { return f == Files{} }

// Reload configures how files are read again. The zero value uses the defaults.
type Reload struct {
	Interval time.Duration    // shortest time between two checks of the files; default 1 s
	Logger   *slog.Logger     // logs reloads and their errors; nil: no logs
	OnReload func(error)      // called after each reload, with the error if the old certificates stay in use
	Now      func() time.Time // clock for reloading and verification; default [time.Now]
}

// ServerOptions configure which clients a server accepts. The zero value requires TLS 1.3 and, if [Files.CA] is set,
// a certificate of that CA.
type ServerOptions struct {
	MinVersion uint16 // lowest TLS version; default TLS 1.3. Use TLS 1.2 only on listeners for foreign clients
	// The client's certificate must carry one of these names; needs a CA. Empty: any certificate of the CA.
	ClientSANs []string
	NextProtos []string // ALPN; default h2
	Reload
}

// ClientOptions configure which servers a client trusts. The zero value requires TLS 1.3 and a certificate for the
// dialed name.
type ClientOptions struct {
	MinVersion uint16   // lowest TLS version; default TLS 1.3
	ServerName string   // name or IP address that the server's certificate must carry; default: the dialed host name
	ServerSANs []string // the certificate must carry one of these names instead, for members known only by address
	NextProtos []string // ALPN; default h2
	Reload
}

// Server returns a TLS configuration that presents the certificate of f. If f.CA is set, clients must present a
// certificate of that CA. The options are read once, the files repeatedly.
func Server(f Files, o ServerOptions) (*tls.Config, error) {
	if f.Cert == "" {
		return nil, errors.New("a TLS server requires a certificate and a key")
	}
	if len(o.ClientSANs) > 0 && f.CA == "" {
		return nil, errors.New("checking client names requires a client CA: without one, clients present no certificate")
	}
	s, err := open(f, o.Reload)
	if err != nil {
		return nil, err
	}
	s.server = func(m *material) *tls.Config { return serverConfig(m, o, s.now) }
	c := s.server(s.current())
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.current().cert, nil }
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.currentServer(), nil }
	return c, nil
}

func serverConfig(m *material, o ServerOptions, now func() time.Time) *tls.Config {
	c := &tls.Config{
		MinVersion:     atLeast(o.MinVersion),
		NextProtos:     protos(o.NextProtos),
		Time:           now,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return m.cert, nil },
		// A resumed session would admit a client whose CA has been removed since.
		SessionTicketsDisabled: true,
	}
	if m.roots == nil {
		return c
	}
	c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, m.roots
	if len(o.ClientSANs) > 0 {
		c.VerifyConnection = func(cs tls.ConnectionState) error { return hasSAN(cs.PeerCertificates, o.ClientSANs) }
	}
	return c
}

// Client returns a TLS configuration that trusts only f.CA, or the system's roots if it is not set. It presents the
// certificate of f when the server asks for one.
//
// crypto/tls reads its roots once, so its own verification is disabled, and VerifyConnection verifies everything:
// chain, dates, usage and name. A connection fails if the server's name is unknown: an IP address was dialed, and
// neither ServerName nor ServerSANs is set.
func Client(f Files, o ClientOptions) (*tls.Config, error) {
	s, err := open(f, o.Reload)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:         atLeast(o.MinVersion),
		ServerName:         o.ServerName,
		NextProtos:         protos(o.NextProtos),
		Time:               s.now,
		InsecureSkipVerify: true, // VerifyConnection verifies with roots that reload
		VerifyConnection:   func(cs tls.ConnectionState) error { return o.verify(cs, s.current().roots, s.now()) },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if c := s.current().cert; c != nil {
				return c, nil
			}
			return new(tls.Certificate), nil // no certificate: the server decides
		},
	}, nil
}

func (o ClientOptions) verify(cs tls.ConnectionState, roots *x509.CertPool, now time.Time) error {
	certs := cs.PeerCertificates
	if len(certs) == 0 {
		return errors.New("the server presented no certificate")
	}
	between := x509.NewCertPool()
	for _, c := range certs[1:] {
		between.AddCert(c)
	}
	if _, err := certs[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between,
		CurrentTime: now}); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: certs, Err: err}
	}
	if len(o.ServerSANs) > 0 {
		return hasSAN(certs, o.ServerSANs)
	}
	name := o.ServerName
	if name == "" {
		name = cs.ServerName
	}
	if name == "" {
		return errors.New("no name to verify the server's certificate: an address was dialed and no server name is set")
	}
	return hasSAN(certs, []string{name})
}

var errNoCertificate = errors.New("no certificate was presented")

// hasSAN returns nil if the leaf carries one of the names: a DNS name (by the rules of X.509, including wildcards),
// an IP address, or a URI. A * in the path of a given URI matches one segment.
func hasSAN(certs []*x509.Certificate, names []string) error {
	if len(certs) == 0 {
		return errNoCertificate
	}
	leaf := certs[0]
	for _, name := range names {
		if leaf.VerifyHostname(name) == nil || slices.Contains(leaf.DNSNames, name) || hasURI(leaf, name) {
			return nil
		}
	}
	return &NameError{Has: sansOf(leaf), Wants: names}
}

func sansOf(leaf *x509.Certificate) []string {
	names := slices.Clone(leaf.DNSNames)
	for _, ip := range leaf.IPAddresses {
		names = append(names, ip.String())
	}
	for _, u := range leaf.URIs {
		names = append(names, u.String())
	}
	return names
}

func atLeast(version uint16) uint16 {
	if version == 0 {
		return tls.VersionTLS13
	}
	return version
}

func protos(given []string) []string {
	if len(given) == 0 {
		return []string{"h2"}
	}
	return slices.Clone(given)
}
