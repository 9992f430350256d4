// Package compose tests the files that docker-compose.yml mounts.
package compose

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/keyward/keyward/envoy/snippet"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/config/source"
)

var update = flag.Bool("update", false, "write the Envoy files instead of comparing them")

// TestEnvoyFiles requires that the Envoys' files equal the output of `keyward envoy-config`.
func TestEnvoyFiles(t *testing.T) {
	common := snippet.Options{
		Rules: rulesOf(t, "demo"), From: map[string]string{"api_key": "header:x-api-key"}, Admin: "0.0.0.0:9901", FailureModeDeny: true, EnvoyVersion: "1.40",
	}
	edge := common
	edge.XDS, edge.XDSNames = "xds:18000", []string{"spiffe://keyward.demo/xds"}
	edge.TLSCert, edge.TLSKey, edge.TLSCA = "/certs/envoy.crt", "/certs/envoy.key", "/certs/ca.crt"

	routes, direct, pod := edge, edge, common
	routes.Shape, routes.Listen = snippet.Routes, "0.0.0.0:10000"
	direct.Shape, direct.Listen, direct.Upstream = snippet.OwnerDirect, "0.0.0.0:10001", "app:8000"
	pod.Shape, pod.Listen = snippet.Plain, "0.0.0.0:10002"
	frugal := common
	frugal.Shape, frugal.Listen, frugal.Admin, frugal.Rules = snippet.RLQS, "0.0.0.0:10004", "0.0.0.0:9902", rulesOf(t, "no-call")
	for name, o := range map[string]snippet.Options{"edge": routes, "edge-direct": direct, "pod": pod, "no-call": frugal} {
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

// rulesOf returns the rules of one file.
func rulesOf(t *testing.T, name string) *config.Rules {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("rules", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	rules, err := config.Load([]config.File{{Name: name, Content: content}}, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// TestRules requires that the members can load all files together.
func TestRules(t *testing.T) {
	files, err := source.ReadDir("rules")
	if err != nil || len(files) < 2 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	if _, err := config.Load(files, config.Options{}); err != nil {
		t.Error(err)
	}
}
