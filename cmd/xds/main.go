// Command xds serves Envoys the ring of a Keyward cluster: CDS, EDS, LDS, RDS and RateLimitConfig. It watches the members'
// gossip and counts nothing.
package main

import (
	"os"

	"github.com/keyward/keyward/internal/app"
)

const about = `Keyward's xDS server: tells Envoys which sidecar owns which key.

It joins the sidecars' gossip as an observer and serves CDS, EDS, LDS and RDS, and the rules of RUNTIME_ROOT as
RateLimitConfig if that is set. Two of them may run side by side: they serve the same. When none runs, Envoys keep what they
have. A sidecar serves the same to its own Envoy with --xds.

  xds --join dns+keyward-gossip:7946 --gossip-key-file gossip.key --tls-cert tls.crt --tls-key tls.key --tls-ca ca.crt`

func main() {
	os.Exit(app.Program{Name: "xds", About: about, Run: app.RunXDS}.Main(os.Args[1:]))
}
