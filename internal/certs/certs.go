// Package certs loads certificates, reloads them when they change, and makes a demo CA.
//
// [Files] names three PEM files -> [Server] and [Client] read them into a [tls.Config] -> every handshake looks at the
// files again, at most once a second, so that a rotated Secret is in use without a restart. A pair that cannot be used
// (half written, mismatched, expired while the old one is not) changes nothing and is reported once.
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
	Cert string // certificate shown to the other side
	Key  string // its private key; given if and only if Cert is
	CA   string // roots that the other side's certificate must chain to
}

// Empty says that no file is named at all.
func (f Files) Empty() bool { return f == Files{} }

// Reload says how files are read again. The zero value works.
type Reload struct {
	Interval time.Duration    // least time between two looks at the files; default 1 s
	Logger   *slog.Logger     // where reloads and their failures are said; default: nowhere
	OnReload func(error)      // called after each reload: nil, or why the old certificates stay; for metrics
	Now      func() time.Time // clock of reloading and of verification; default [time.Now]
}

// ServerOptions decide whom a server lets in. The zero value: TLS 1.3, and with [Files.CA] any certificate of that CA.
type ServerOptions struct {
	MinVersion uint16   // least TLS version; default TLS 1.3. Only doors for foreign clients want 1.2.
	ClientSANs []string // the client's certificate must carry one of these; needs a CA. Empty: any of the CA's.
	NextProtos []string // ALPN; default h2
	Reload
}

// ClientOptions decide whom a client trusts. The zero value: TLS 1.3, a certificate for the name that is dialled.
type ClientOptions struct {
	MinVersion uint16   // least TLS version; default TLS 1.3
	ServerName string   // name or IP address the server's certificate must be for; default: the host name dialled
	ServerSANs []string // the certificate must carry one of these instead, for members that are known by address alone
	NextProtos []string // ALPN; default h2
	Reload
}

// Server is a TLS configuration that shows f's certificate. With f.CA, clients must show a certificate of that CA;
// without, they are not asked for one. Options with MinVersion and friends are read once, files again and again.
func Server(f Files, o ServerOptions) (*tls.Config, error) {
	if f.Cert == "" {
		return nil, errors.New("a TLS server needs a certificate and a key")
	}
	if len(o.ClientSANs) > 0 && f.CA == "" {
		return nil, errors.New("a check of client names needs a client CA: without one no certificate is asked for")
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
		// A resumed session would let in a client whose CA has been taken away since.
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

// Client is a TLS configuration that trusts f.CA alone (the system's roots when none is named) and shows f's
// certificate where it is asked for one.
//
// crypto/tls reads its roots once, so its own verification is off and VerifyConnection does the whole of it: chain,
// dates, usage and name. A connection whose server name is not known (an IP address was dialled, and neither
// ServerName nor ServerSANs is set) fails.
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
		InsecureSkipVerify: true, // VerifyConnection does it, with roots that reload
		VerifyConnection:   func(cs tls.ConnectionState) error { return o.verify(cs, s.current().roots, s.now()) },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if c := s.current().cert; c != nil {
				return c, nil
			}
			return new(tls.Certificate), nil // none: the server decides whether that will do
		},
	}, nil
}

func (o ClientOptions) verify(cs tls.ConnectionState, roots *x509.CertPool, now time.Time) error {
	certs := cs.PeerCertificates
	if len(certs) == 0 {
		return errors.New("the server showed no certificate")
	}
	between := x509.NewCertPool()
	for _, c := range certs[1:] {
		between.AddCert(c)
	}
	if _, err := certs[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: now}); err != nil {
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
		return errors.New("no name to check the server's certificate against: an address was dialled and no server name is set")
	}
	return hasSAN(certs, []string{name})
}

var errNoCertificate = errors.New("no certificate was shown")

// hasSAN says whether the leaf carries one of the names: a DNS name (by the rules of X.509, wildcards included), an IP
// address or a URI, in whose path a * given here stands for any one segment.
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
