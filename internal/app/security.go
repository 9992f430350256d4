package app

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/connguard"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/peer"
	"github.com/keyward/keyward/internal/settings"
	"github.com/keyward/keyward/ring"
)

// peerNames returns the names, one of which another member's certificate must carry: those of --tls-peer-names, or
// else the URI and DNS names of this member's own certificate. An Envoy's certificate of the same CA carries none of
// them.
func (f *flags) peerNames() ([]string, error) {
	if len(f.TLSPeerNames) > 0 || f.TLS.Cert == "" {
		return f.TLSPeerNames, nil
	}
	pair, err := tls.LoadX509KeyPair(f.TLS.Cert, f.TLS.Key)
	if err != nil {
		return nil, fmt.Errorf("read --tls-cert and --tls-key: %w", err)
	}
	var names []string
	for _, u := range pair.Leaf.URIs {
		names = append(names, u.String())
	}
	for _, d := range pair.Leaf.DNSNames {
		if d != "localhost" && !slices.Contains(names, d) {
			names = append(names, d)
		}
	}
	if len(names) == 0 {
		return nil, errors.New("the certificate of --tls-cert has no URI or DNS name by which members recognize each other: add one, or set --tls-peer-names")
	}
	return names, nil
}

// nodePlaceholder is replaced by a member's name in --tls-bind-name.
const nodePlaceholder = "{node}"

// security holds the guards of the listeners and the metrics of certificates.
type security struct {
	flags  *flags
	log    *slog.Logger
	guards *connguard.Guards
	certs  *certs.Metrics
}

// newSecurity registers the metrics of certificates and refused connections. rls is the certificate of
// GRPC_SERVER_TLS_CERT.
func newSecurity(f *flags, rls certs.Files, reg prometheus.Registerer, log *slog.Logger) *security {
	kinds := map[string]certs.Files{}
	if !f.TLS.Empty() {
		kinds["member"] = f.TLS
	}
	if !rls.Empty() {
		kinds["rls"] = rls
	}
	return &security{f, log, connguard.New(reg), certs.NewMetrics(reg, kinds)}
}

func (s *security) reload() certs.Reload {
	return certs.Reload{Logger: s.log, OnReload: s.certs.OnReload}
}

// peer sets the options that secure members' streams. Without certificates, these use no TLS.
func (s *security) peer(o *peer.Options) error {
	o.MaxAge, o.OnRefused = s.flags.ConnectionAge, s.guards.Guard("peer").Refuse
	if s.flags.TLS.Empty() {
		return nil
	}
	names, err := s.flags.peerNames()
	if err != nil {
		return err
	}
	server, err1 := certs.Server(s.flags.TLS, certs.ServerOptions{ClientSANs: names, Reload: s.reload()})
	client, err2 := certs.Client(s.flags.TLS, certs.ClientOptions{ServerSANs: names, Reload: certs.Reload{Logger: s.log}})
	o.ServerTLS, o.ClientTLS, o.TLSReason = server, client, certs.Reason
	if bind := s.flags.TLSBindName; bind != "" {
		o.VerifyMember = func(id ring.ID, chain []*x509.Certificate) error {
			if err := membership.CheckID(id); err != nil {
				return err
			}
			return certs.CheckName(chain, strings.Replace(bind, nodePlaceholder, string(id), 1))
		}
	}
	return errors.Join(err1, err2)
}

// envoyTLS returns the configuration of a listener for Envoys, or nil without certificates. Envoy's default for such
// calls is TLS 1.2.
func (s *security) envoyTLS() (*tls.Config, error) {
	f := s.flags
	if f.TLS.Empty() {
		return nil, nil
	}
	o := certs.ServerOptions{MinVersion: tls.VersionTLS12, Reload: s.reload()}
	if len(f.TLSEnvoyNames) > 0 {
		members, err := f.peerNames() // members may take their rules from xDS
		if err != nil {
			return nil, err
		}
		o.ClientSANs = slices.Concat(f.TLSEnvoyNames, members)
	}
	return certs.Server(f.TLS, o)
}

// rlsCertFiles returns the certificate files of GRPC_SERVER_TLS_*.
func rlsCertFiles(s settings.ServerSettings) certs.Files {
	if !s.UseTLS {
		return certs.Files{}
	}
	return certs.Files{Cert: s.TLSCert, Key: s.TLSKey, CA: s.ClientCA}
}

// rlsTLS returns the configuration of the listener at GRPC_PORT, or nil without GRPC_SERVER_USE_TLS.
func (s *security) rlsTLS(server settings.ServerSettings) (*tls.Config, error) {
	if !server.UseTLS {
		return nil, nil
	}
	o := certs.ServerOptions{MinVersion: tls.VersionTLS12, Reload: s.reload()}
	if server.ClientSAN != "" {
		o.ClientSANs = []string{server.ClientSAN}
	}
	c, err := certs.Server(rlsCertFiles(server), o)
	if err != nil {
		return nil, fmt.Errorf("GRPC_SERVER_USE_TLS: %w", err)
	}
	return c, nil
}
