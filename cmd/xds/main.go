// Command xds serves Envoys the ring of a Keyward cluster: CDS, EDS, LDS, RDS and RateLimitConfig. It watches the
// members' gossip and counts nothing.
package main

import (
	"os"

	"github.com/keyward/keyward/internal/app"
)

const about = `Keyward's xDS server configures Envoys to send each rate limit call to the sidecar that owns its key.

It joins the sidecars' gossip as an observer and serves CDS, EDS, LDS and RDS. If RUNTIME_ROOT is set, it also serves the
rules in it as RateLimitConfig. Several servers may run at a time: they serve the same. While none runs, Envoys keep the
configuration that they have. A sidecar serves the same to its own Envoy with --xds.

  xds --join dns+keyward-gossip:7946 --gossip-key-file gossip.key --tls-cert tls.crt --tls-key tls.key --tls-ca ca.crt`

func main() {
	os.Exit(app.Program{Name: "xds", About: about, Run: app.RunXDS}.Main(os.Args[1:]))
}
