package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/ops/translate"
)

// translatedRoutes is a configuration of Envoy without the rate limits of its route.
const translatedRoutes = `static_resources:
  listeners:
    - name: l
      address: {socket_address: {address: 127.0.0.1, port_value: 0}}
      filter_chains:
        - filters:
            - name: http
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: l
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes:
                        - match: {prefix: /}
                          direct_response: {status: 200}
                          typed_per_filter_config:
                            envoy.filters.http.ratelimit:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                              rate_limits:
`

// TestEnvoyAcceptsTranslatedActions lets Envoy judge the rate limits that keyward translate prints as comments.
func TestEnvoyAcceptsTranslatedActions(t *testing.T) {
	inputs, err := filepath.Glob("../../internal/ops/translate/testdata/*.yaml")
	if err != nil || len(inputs) == 0 {
		t.Fatal(inputs, err)
	}
	limits, b := 0, strings.Builder{}
	b.WriteString(translatedRoutes)
	for _, in := range inputs {
		content, err := os.ReadFile(in)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range translate.Translate([]config.File{{Name: in, Content: content}}, translate.Options{Actions: true, Envoys: 2}).Files {
			for line := range strings.Lines(f.YAML) {
				if list, ok := strings.CutPrefix(line, "#   "); ok {
					limits += strings.Count(list, "- actions:")
					b.WriteString(strings.Repeat(" ", 32) + list)
				}
			}
		}
	}
	if limits < 50 {
		t.Fatalf("only %d rate limits", limits)
	}
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(envoyBinary(t), "--mode", "validate", "-c", file, "-l", "error").CombinedOutput(); err != nil {
		t.Errorf("%v\n%.2000s", err, out)
	}
}
