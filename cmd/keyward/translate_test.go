package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/keyward/keyward/internal/ops/translate"
)

const policies = "../../internal/ops/translate/testdata/"

// TestTranslateCommand runs the command on the policies of each gateway: rules on the standard output, findings on the
// standard error, and exit code 1 if something is not translated.
func TestTranslateCommand(t *testing.T) {
	for _, row := range []struct {
		args     []string
		out, err string
		complete bool
	}{
		{[]string{"envoy-gateway.yaml"}, "domain: infra/edge/web\n", "", true},
		{[]string{"contour.yaml", "--limit", "100/minute", "--limit", "api_key=7/day"}, "- key: api_key\n        rate_limit: {unit: day, requests_per_unit: 7}",
			"contour.yaml:25: field spec.routes[0].rateLimitPolicy.local: each Envoy", false},
		{[]string{"kuadrant.yaml", "kgateway.yaml"}, "key: limit.odd__", "kgateway.yaml:3", false},
		{[]string{"kuadrant.yaml"}, "", "note: field", false},
	} {
		args := append([]string{"translate"}, row.args...)
		for i, a := range args {
			if strings.HasSuffix(a, ".yaml") {
				args[i] = policies + a
			}
		}
		var out, errs bytes.Buffer
		root := newRoot()
		root.SetOut(&out)
		root.SetErr(&errs)
		root.SetArgs(args)
		err := root.Execute()
		if !strings.Contains(out.String(), row.out) || !strings.Contains(errs.String(), row.err) || (err == nil) != row.complete {
			t.Errorf("%v: %v\n%s\n%s", row.args, err, out.String(), errs.String())
		}
	}
}

// TestTranslateWrites requires that the files of --out pass the check.
func TestTranslateWrites(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "rules")
	if out, err := run(t, "translate", policies+"envoy-gateway.yaml", "--out", dir); err != nil || out != "" {
		t.Fatalf("%v\n%s", err, out)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 3 {
		t.Fatalf("%v: %v", files, err)
	}
	if out, err := run(t, "check", dir); err != nil || !strings.Contains(out, "all rate limit configs ok") {
		t.Errorf("%v\n%s", err, out)
	}
	out, err := run(t, "translate", policies+"envoy-gateway.yaml", "-o", "json")
	var g translate.GatewayRules
	if err != nil || json.Unmarshal([]byte(out), &g) != nil || g.Policies != 2 || len(g.Files) != 3 {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestTranslateRefuses lists calls without a result.
func TestTranslateRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"requires at least 1 arg": {}, "no such file": {"absent.yaml"}, "no policy found": {"testdata/shop.yaml"},
		"--limit 5: want N/UNIT": {"--limit", "5", "testdata/shop.yaml"}, "--limit k=5/eon: want N/UNIT": {"--limit", "k=5/eon", "testdata/shop.yaml"},
	} {
		if _, err := run(t, append([]string{"translate"}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", args, err, want)
		}
	}
}
