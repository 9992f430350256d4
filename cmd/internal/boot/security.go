package boot

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/keyward/keyward/certs"
	"github.com/keyward/keyward/envoy/settings"
)

// peerNames are the names, one of which another member's certificate must carry: the given ones, else the URI and DNS
// names of this member's own certificate. An Envoy's certificate of the same CA carries none of them.
func (f *Flags) peerNames() ([]string, error) {
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
		return nil, errors.New("the certificate of --tls-cert has no URI or DNS name by which members could know each other: give it one, or --tls-peer-names")
	}
	return names, nil
}

// peerTLS secures the members' streams; both are nil without certificates.
func (f *Flags) peerTLS(log *slog.Logger) (server, client *tls.Config, err error) {
	if f.TLS.Empty() {
		return nil, nil, nil
	}
	names, err := f.peerNames()
	if err != nil {
		return nil, nil, err
	}
	reload := certs.Reload{Logger: log}
	server, err1 := certs.Server(f.TLS, certs.ServerOptions{ClientSANs: names, Reload: reload})
	client, err2 := certs.Client(f.TLS, certs.ClientOptions{ServerSANs: names, Reload: reload})
	return server, client, errors.Join(err1, err2)
}

// doorTLS secures a port for Envoys; nil without certificates. Envoy's own default for such calls is TLS 1.2.
func (f *Flags) doorTLS(log *slog.Logger) (*tls.Config, error) {
	if f.TLS.Empty() {
		return nil, nil
	}
	return certs.Server(f.TLS, certs.ServerOptions{MinVersion: tls.VersionTLS12, Reload: certs.Reload{Logger: log}})
}

// ownDoorTLS secures the port that the original's environment describes; nil without GRPC_SERVER_USE_TLS.
func ownDoorTLS(s settings.Server, log *slog.Logger) (*tls.Config, error) {
	if !s.UseTLS {
		return nil, nil
	}
	o := certs.ServerOptions{MinVersion: tls.VersionTLS12, Reload: certs.Reload{Logger: log}}
	if s.ClientSAN != "" {
		o.ClientSANs = []string{s.ClientSAN}
	}
	c, err := certs.Server(certs.Files{Cert: s.TLSCert, Key: s.TLSKey, CA: s.ClientCA}, o)
	if err != nil {
		return nil, fmt.Errorf("GRPC_SERVER_USE_TLS: %w", err)
	}
	return c, nil
}
