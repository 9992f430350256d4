// Command sidecar is one member of a Keyward cluster. It answers Envoy's rate limit calls, counts the keys that it
// owns, and forwards requests for other keys to their owners. When it is called by the name ratelimit, it listens
// where envoyproxy/ratelimit does.
package main

import (
	"os"
	"path/filepath"

	"github.com/keyward/keyward/internal/app"
	"github.com/keyward/keyward/internal/settings"
)

const about = `A Keyward sidecar answers Envoy's rate limit calls. Each key is counted by one member of the cluster, its owner; the
sidecar counts the keys that it owns and forwards requests for other keys to their owners.

Rules, ports and statistics are configured by the environment variables of envoyproxy/ratelimit (RUNTIME_ROOT,
RUNTIME_SUBDIRECTORY, GRPC_PORT, USE_STATSD, ...; see docs/environment.md). A single sidecar needs no flags:

  RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit RUNTIME_WATCH_ROOT=false sidecar

To join the other sidecars of a cluster, which DNS lists:

  sidecar --join dns+keyward-gossip:7946 --gossip-key-file gossip.key --tls-cert tls.crt --tls-key tls.key --tls-ca ca.crt \
          --rls-advertise $POD_IP:8082 --xds 127.0.0.1:18000`

func main() {
	p := app.Program{Name: "sidecar", About: about, Run: app.RunSidecar}
	if filepath.Base(os.Args[0]) != "ratelimit" {
		p.Defaults = podDefaults
	}
	os.Exit(p.Main(os.Args[1:]))
}

// podDefaults keeps the listeners that need no certificate within the pod, and sends no statistics to statsd, unless
// the environment says otherwise.
func podDefaults(s *settings.Settings) {
	for name, host := range map[string]*string{"GRPC_HOST": &s.Server.GRPCHost, "HOST": &s.Server.Host, "DEBUG_HOST": &s.Server.DebugHost} {
		if !s.Set(name) {
			*host = "127.0.0.1"
		}
	}
	if !s.Set("USE_STATSD") {
		s.Stats.Statsd = false // few pods have a statsd at envoyproxy/ratelimit's default address; Prometheus is always served
	}
}
