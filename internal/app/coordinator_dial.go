package app

import (
	"cmp"
	"errors"
	"net"
	"net/url"
	"strings"

	"github.com/keyward/keyward/federation/remote"
	"github.com/keyward/keyward/internal/certs"
)

// keywardScheme begins the URLs of coordinators that cmd/coordinator serves.
const keywardScheme = "keyward"

// dialCoordinator returns a client of the coordinator at keyward://host:port. It presents the certificate of
// --tls-cert, and uses no TLS only with --insecure.
func (x *federations) dialCoordinator(at string, s *security) (*remote.CoordinatorClient, error) {
	u, err := url.Parse(at)
	if err != nil || u.Hostname() == "" || u.User != nil || u.RawQuery+u.Fragment+strings.Trim(u.Path, "/") != "" {
		return nil, errors.New("want keyward://host:port, and nothing else")
	}
	o := remote.DialOptions{
		Address: net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), remote.Port)),
		Region:  x.region, Epoch: x.layout.Epoch, Logger: s.log,
	}
	switch {
	case !s.flags.TLS.Empty():
		o.TLS, err = certs.Client(s.flags.TLS, certs.ClientOptions{
			ServerName: u.Hostname(), NextProtos: []string{remote.ALPN}, Reload: certs.Reload{Logger: s.log},
		})
		if err != nil {
			return nil, err
		}
	case !s.flags.Insecure:
		return nil, errors.New("needs --tls-cert, --tls-key and --tls-ca, or --insecure on a laptop")
	}
	return remote.Dial(o), nil
}
