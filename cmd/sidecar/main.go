// Command sidecar is one member of a Keyward cluster: it answers Envoy's rate-limit questions, counts the keys it owns and
// forwards the rest. Called by the name ratelimit it listens where envoyproxy/ratelimit does.
package main

import (
	"os"
	"path/filepath"

	"github.com/keyward/keyward/internal/app"
	"github.com/keyward/keyward/internal/settings"
)

const about = `A Keyward sidecar: answers Envoy's rate-limit questions and counts the keys that it owns.

Rules, ports and statistics come from the environment of envoyproxy/ratelimit (RUNTIME_ROOT, RUNTIME_SUBDIRECTORY,
GRPC_PORT, USE_STATSD, ...: docs/environment.md). Without --join it stands alone:

  RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit RUNTIME_WATCH_ROOT=false sidecar

With the others of its kind, found by DNS:

  sidecar --join dns+keyward-gossip:7946 --gossip-key-file gossip.key --tls-cert tls.crt --tls-key tls.key --tls-ca ca.crt \
          --rls-advertise $POD_IP:8082 --xds 127.0.0.1:18000`

func main() {
	p := app.Program{Name: "sidecar", About: about, Run: app.RunSidecar}
	if filepath.Base(os.Args[0]) != "ratelimit" {
		p.Defaults = podOnly
	}
	os.Exit(p.Main(os.Args[1:]))
}

// podOnly sends statistics to statsd only where that was asked for, and keeps the ports that need no certificate within the pod unless the environment says otherwise.
func podOnly(s *settings.Settings) {
	for name, host := range map[string]*string{"GRPC_HOST": &s.Server.GRPCHost, "HOST": &s.Server.Host, "DEBUG_HOST": &s.Server.DebugHost} {
		if !s.Set(name) {
			*host = "127.0.0.1"
		}
	}
	if !s.Set("USE_STATSD") {
		s.Stats.Statsd = false // nobody listens at the original's default in most pods; Prometheus is always served
	}
}
