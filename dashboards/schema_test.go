package dashboards

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The packages of Grafana's schema and of the compiler.
const (
	grafanaSchema = "@grafana/schema@13.2.3"
	typescript    = "typescript@5.9.3"
)

// loose accepts the strings of JSON for TypeScript's enums.
const loose = `
type Loose<T> = T extends string ? ` + "`${T}`" + ` : T extends object ? { [K in keyof T]: Loose<T[K]> } : T;
`

// TestSchema checks the boards against Grafana's own types: an unknown key or an invalid value is a compiler error.
func TestSchema(t *testing.T) {
	t.Parallel()
	npm, err := exec.LookPath("npm")
	if err != nil {
		missing(t, "npm")
	}
	dir := schemaIn(t, npm)
	file := filepath.Join(dir, "check.ts")
	if err := os.WriteFile(file, []byte(asTypeScript(t)), 0o644); err != nil {
		t.Fatal(err)
	}
	tsc := exec.CommandContext(t.Context(), filepath.Join(dir, "node_modules", ".bin", "tsc"),
		"--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--moduleResolution", "bundler", "--target", "es2022", file)
	if out, err := tsc.CombinedOutput(); err != nil {
		t.Errorf("Grafana's schema rejects the boards: %v\n%.4000s", err, out)
	}
}

// schemaIn returns the folder of the packages. It installs them with npm if they are missing.
func schemaIn(t *testing.T, npm string) string {
	t.Helper()
	dir, err := filepath.Abs("../.cache/grafana-schema")
	if err != nil {
		t.Fatal(err)
	}
	stamp, want := filepath.Join(dir, "installed"), grafanaSchema+" "+typescript
	if b, err := os.ReadFile(stamp); err == nil && string(b) == want {
		return dir
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), npm, "install", "--prefix", dir, "--ignore-scripts", "--no-audit", "--no-fund", "--no-save",
		grafanaSchema, typescript).CombinedOutput()
	if err != nil {
		missing(t, fmt.Sprintf("npm's packages %s (%v: %.500s)", want, err, out))
	}
	if err := os.WriteFile(stamp, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// asTypeScript returns a program that declares every board as a dashboard, and every panel's options with the type of
// its kind.
func asTypeScript(t *testing.T) string {
	t.Helper()
	var s strings.Builder
	s.WriteString("import type { Dashboard } from '@grafana/schema/dist/esm/raw/dashboard/x/Dashboard_types.gen';\n")
	for kind, name := range map[panelKind]string{statPanel: "Stat", seriesPanel: "TimeSeries", barsPanel: "BarGauge"} {
		fields := ""
		if kind == seriesPanel {
			fields = ", FieldConfig as " + name + "Fields"
		}
		fmt.Fprintf(&s, "import type { Options as %s%s } from '@grafana/schema/dist/esm/raw/composable/%s/panelcfg/x/%sPanelCfg_types.gen';\n", name, fields, kind, name)
	}
	s.WriteString(loose)
	literal := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	checked := func(b board) object {
		o := b.grafana()
		for _, a := range o["annotations"].(object)["list"].([]object) {
			for _, own := range []string{"expr", "step", "titleFormat", "textFormat"} {
				delete(a, own) // specific to the Prometheus data source, not in the schema
			}
		}
		return o
	}
	types := map[panelKind]string{statPanel: "Stat", seriesPanel: "TimeSeries", barsPanel: "BarGauge"}
	for i, b := range boards() {
		fmt.Fprintf(&s, "const board%d: Loose<Dashboard> = %s;\n", i, literal(checked(b)))
		for j, r := range b.Rows {
			for k, p := range r.Panels {
				fmt.Fprintf(&s, "const options%d_%d_%d: Loose<%s> = %s;\n", i, j, k, types[p.Kind], literal(p.options()))
				if p.Kind == seriesPanel {
					fmt.Fprintf(&s, "const lines%d_%d_%d: Loose<TimeSeriesFields> = %s;\n", i, j, k, literal(p.lines()))
				}
			}
		}
	}
	return s.String()
}
