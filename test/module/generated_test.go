package module

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/envoy/snippet"
	"github.com/keyward/keyward/internal/config"
)

// generated returns the setup with the output of `keyward envoy-config --shape module --module-as AS` for rules in YAML, one string
// for a domain. Headers have the values of descriptors.
func generated(t *testing.T, r release, as string, p *peer, rules ...string) setup {
	var files []config.File
	for i, text := range rules {
		files = append(files, config.File{Name: fmt.Sprintf("%d.yaml", i), Content: []byte(text)})
	}
	loaded, err := config.Load(files, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return setup{print: func(service, app string) string {
		text, warnings, err := snippet.Generate(snippet.Options{
			Shape: snippet.Module, ModuleAs: as, Rules: loaded, From: map[string]string{"api_key": "header:x-key", "tenant": "header:x-tenant"}, EnvoyVersion: r.version, ModuleSocket: p.path,
			Sidecar: service, Upstream: app, Listen: "127.0.0.1:10000", Admin: "127.0.0.1:9901", Timeout: 10 * time.Second,
		})
		if err != nil || len(warnings) > 0 {
			t.Fatal(err, warnings)
		}
		return strings.NewReplacer("10000", "@PORT@", "9901", "@ADMINPORT@", "name: upstream", "name: app", "cluster: upstream", "cluster: app", "cluster_name: upstream", "cluster_name: app").Replace(string(text))
	}}
}

// TestGeneratedConfiguration spends leases with the output of `keyward envoy-config --shape module`.
func TestGeneratedConfiguration(t *testing.T) {
	const rules = "domain: \"it's: app\"\ndescriptors:\n- key: api_key\n  rate_limit: {unit: hour, requests_per_unit: 100}\n- key: %s\n  rate_limit: {unit: hour, requests_per_unit: 100}\n"
	each(t, func(t *testing.T, r release) {
		as, key, entry := snippet.ModuleFilter, "remote_address", "remote_address=127.0.0.1"
		if r.matcher {
			as, key, entry = snippet.ModuleMatcher, "tenant", "tenant=t"
		}
		p := listen(t, ordinary(64))
		s := start(t, r, generated(t, r, as, p, fmt.Sprintf(rules, key)))
		l := p.link(0)
		s.service.allow(1)
		s.want("status", s.get("/", "x-key", "k"), http.StatusOK)
		s.want("status", s.get("/", "x-key", "k"), http.StatusTooManyRequests)
		s.want("calls without leases", len(s.service.take()), 2)
		l.segment.lend(0, 5, time.Minute, "it's: app", "api_key=k")
		l.segment.lend(0, 3, time.Minute, "it's: app", entry)
		admitted, refused := s.burst(2, 10, "x-key", "k", "x-tenant", "t")
		s.want("admitted", admitted, 3)
		s.want("refused", refused, 7)
		s.want("calls", len(s.service.take()), 7)
	})
}
