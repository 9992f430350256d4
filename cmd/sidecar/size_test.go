package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// modules are the modules whose packages are in the sidecar. A new one belongs here only if TestSize still passes, and the
// commit that adds it states how much larger the sidecar becomes.
var modules = []string{
	"cel.dev/expr",
	"github.com/beorn7/perks",
	"github.com/buraksezer/consistent",
	"github.com/cenkalti/backoff/v5",
	"github.com/cespare/xxhash/v2",
	"github.com/cncf/xds/go",
	"github.com/dchest/siphash",
	"github.com/envoyproxy/go-control-plane",
	"github.com/envoyproxy/go-control-plane/envoy",
	"github.com/envoyproxy/go-control-plane/ratelimit",
	"github.com/envoyproxy/protoc-gen-validate",
	"github.com/fsnotify/fsnotify",
	"github.com/go-logr/logr",
	"github.com/go-logr/stdr",
	"github.com/gomodule/redigo",
	"github.com/google/btree",
	"github.com/google/uuid",
	"github.com/grpc-ecosystem/grpc-gateway/v2",
	"github.com/hashicorp/errwrap",
	"github.com/hashicorp/go-immutable-radix",
	"github.com/hashicorp/go-metrics",
	"github.com/hashicorp/go-msgpack/v2",
	"github.com/hashicorp/go-multierror",
	"github.com/hashicorp/go-sockaddr",
	"github.com/hashicorp/golang-lru",
	"github.com/hashicorp/memberlist",
	"github.com/keyward/keyward",
	"github.com/miekg/dns",
	"github.com/munnerz/goautoneg",
	"github.com/prometheus/client_golang",
	"github.com/prometheus/client_model",
	"github.com/prometheus/common",
	"github.com/prometheus/procfs",
	"github.com/prometheus/statsd_exporter",
	"github.com/sean-/seed",
	"github.com/spf13/pflag",
	"go.opentelemetry.io/auto/sdk",
	"go.opentelemetry.io/otel",
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace",
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc",
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp",
	"go.opentelemetry.io/otel/log",
	"go.opentelemetry.io/otel/metric",
	"go.opentelemetry.io/otel/sdk",
	"go.opentelemetry.io/otel/trace",
	"go.opentelemetry.io/proto/otlp",
	"go.yaml.in/yaml/v2",
	"go.yaml.in/yaml/v3",
	"golang.org/x/net",
	"golang.org/x/sys",
	"golang.org/x/text",
	"golang.org/x/time",
	"google.golang.org/genproto/googleapis/api",
	"google.golang.org/genproto/googleapis/rpc",
	"google.golang.org/grpc",
	"google.golang.org/protobuf",
	"gopkg.in/yaml.v2",
}

// TestModules requires that the sidecar has no packages of other modules, so that it grows only on purpose.
func TestModules(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(string(out))
	slices.Sort(got)
	got = slices.Compact(got)
	for _, m := range got {
		if !slices.Contains(modules, m) {
			t.Errorf("the sidecar has packages of %s", m)
		}
	}
	for _, m := range modules {
		if !slices.Contains(got, m) {
			t.Errorf("the sidecar has no packages of %s: remove it from the list", m)
		}
	}
}

// TestSize requires that the stripped program has at most 1.5 MB more than before it had federations and holds, 0.4 MB for
// limits that Envoys spend by their quota filters, and 0.5 MB for the switch of hot keys, the module and their pages.
func TestSize(t *testing.T) {
	if testing.Short() || runtime.GOOS+runtime.GOARCH != "linuxamd64" {
		t.Skip("links a program; its size is known for linux/amd64")
	}
	const before, more = 33_284_258, 1_500_000 + 400_000 + 500_000
	program := filepath.Join(t.TempDir(), "sidecar")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	info, err := os.Stat(program)
	if err != nil {
		t.Fatal(err)
	}
	if n := info.Size(); n > before+more {
		t.Errorf("the sidecar has %d bytes, at most %d", n, before+more)
	} else {
		t.Logf("%d bytes, %d of %d more used", n, n-before, more)
	}
}
