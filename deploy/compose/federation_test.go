package compose

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/app"
	"github.com/keyward/keyward/internal/config"
)

// composed are the services of docker-compose.yml.
type composed struct {
	Services map[string]struct {
		Profiles    []string
		Command     []string
		Environment map[string]string
		Volumes     []string
	}
}

// TestRegions requires that the profile federation, and nothing else, starts the regions of the layout and a coordinator,
// that sidecars accept their flags, that there are certificates for them, and that their rules are limits of the federation.
func TestRegions(t *testing.T) {
	text, err := os.ReadFile("../../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	var c composed
	if err := yaml.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile("federation/layout.yaml")
	if err != nil {
		t.Fatal(err)
	}
	layouts, err := federation.ParseLayouts("layout.yaml", content)
	if err != nil {
		t.Fatal(err)
	}
	layout := layouts[0]
	var profiled []string
	for name, s := range c.Services {
		if slices.Contains(s.Profiles, "federation") {
			profiled = append(profiled, name)
		}
	}
	want := []string{"coordinator"}
	for _, name := range layout.Names() {
		want = append(want, "region-"+name)
	}
	slices.Sort(want)
	if slices.Sort(profiled); !slices.Equal(profiled, want) {
		t.Errorf("the profile has %v, want %v", profiled, want)
	}
	for _, name := range layout.Names() {
		s := c.Services["region-"+name]
		if s.Environment["KEYWARD_REGION"] != name || s.Environment["KEYWARD_TLS_CERT"] != "/certs/region-"+name+".crt" {
			t.Errorf("%s: %v", name, s.Environment)
		}
		if _, err := app.Parse("sidecar", "", s.Command[1:], func(v string) string { return s.Environment[v] }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if made := strings.Join(c.Services["certs"].Command, " "); !strings.Contains(made, "--region "+strings.Join(layout.Names(), ",")+" --host coordinator") {
		t.Errorf("certificates are created with %s", made)
	}
	checkRegionRules(t, layout)
}

func checkRegionRules(t *testing.T, layout *federation.Layout) {
	t.Helper()
	names, err := filepath.Glob("federation/rules/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatalf("no rules: %v", err)
	}
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err != nil {
			t.Fatal(err)
		}
		o := config.Options{Federation: &config.FederationOptions{Name: layout.Name, Coordinator: layout.Coordinator, Authorities: []string{"home"}}}
		rules, err := config.Load([]config.File{{Name: n, Content: b}}, o)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rules.Rules() {
			if r.Extension.Federation == nil {
				t.Errorf("%s is not shared", r.FullKey)
			}
		}
	}
}
