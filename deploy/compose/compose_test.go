// Package compose tests the files that docker-compose.yml mounts.
package compose

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/keyward/keyward/envoy/snippet"
	"github.com/keyward/keyward/internal/config"
)

var update = flag.Bool("update", false, "write the Envoy files instead of comparing them")

// TestEnvoyFiles requires that the Envoys' files equal the output of `keyward envoy-config`.
func TestEnvoyFiles(t *testing.T) {
	names, err := filepath.Glob("rules/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatalf("no rules: %v", err)
	}
	var files []config.File
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, config.File{Name: n, Content: b})
	}
	rules, err := config.Load(files, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	common := snippet.Options{
		Rules: rules, From: map[string]string{"api_key": "header:x-api-key"}, Admin: "0.0.0.0:9901", FailureModeDeny: true, EnvoyVersion: "1.40",
	}
	edge := common
	edge.XDS, edge.XDSNames = "xds:18000", []string{"spiffe://keyward.demo/xds"}
	edge.TLSCert, edge.TLSKey, edge.TLSCA = "/certs/envoy.crt", "/certs/envoy.key", "/certs/ca.crt"

	routes, direct, pod := edge, edge, common
	routes.Shape, routes.Listen = snippet.Routes, "0.0.0.0:10000"
	direct.Shape, direct.Listen, direct.Upstream = snippet.OwnerDirect, "0.0.0.0:10001", "app:8000"
	pod.Shape, pod.Listen = snippet.Plain, "0.0.0.0:10002"
	for name, o := range map[string]snippet.Options{"edge": routes, "edge-direct": direct, "pod": pod} {
		want, warnings, err := snippet.Generate(o)
		if err != nil || len(warnings) > 0 {
			t.Fatalf("%s: %v %v", name, err, warnings)
		}
		file := filepath.Join("envoy", name+".yaml")
		if *update {
			if err := os.WriteFile(file, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("%s differs from the generated configuration: go test ./deploy/compose -update", file)
		}
	}
}
