// Package dashboards holds the tests of what people look at: every panel and alert asks for metrics that exist.
package dashboards

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

type dashboard struct {
	UID, Title string
	Panels     []panel
	Templating struct {
		List []struct{ Name, Definition string }
	}
	Annotations struct {
		List []struct{ Name, Expr string }
	}
}

type panel struct {
	ID                       int
	Type, Title, Description string
	Datasource               struct{ UID string }
	GridPos                  struct{ X, Y, W, H int }
	Targets                  []struct{ RefID, Expr, LegendFormat string }
}

// query is one expression of a dashboard and where it stands.
type query struct{ where, expr string }

func readDashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	files, err := filepath.Glob("*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no dashboards: %v", err)
	}
	all := map[string]dashboard{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var d dashboard
		if err := json.Unmarshal(b, &d); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		all[f] = d
	}
	return all
}

// queries are all expressions of a dashboard.
func (d dashboard) queries() []query {
	var qs []query
	for _, p := range d.Panels {
		for _, t := range p.Targets {
			qs = append(qs, query{fmt.Sprintf("panel %q, %s", p.Title, t.RefID), t.Expr})
		}
	}
	for _, v := range d.Templating.List {
		if expr, ok := strings.CutPrefix(v.Definition, "label_values("); ok {
			expr = expr[:strings.LastIndexByte(expr, ',')]
			if !strings.Contains(expr, "{") {
				expr += "{}"
			}
			qs = append(qs, query{fmt.Sprintf("variable %q", v.Name), expr})
		}
	}
	for _, a := range d.Annotations.List {
		if a.Expr != "" {
			qs = append(qs, query{fmt.Sprintf("annotation %q", a.Name), a.Expr})
		}
	}
	return qs
}

func TestEveryQueryAsksForWhatTheCodeHas(t *testing.T) {
	metrics := metricsOfTheCode(t)
	for file, d := range readDashboards(t) {
		qs := d.queries()
		if len(qs) < 40 {
			t.Errorf("%s: only %d queries", file, len(qs))
		}
		for _, q := range qs {
			for _, fault := range metrics.faults(q.expr) {
				t.Errorf("%s: %s: %s\n\t%s", file, q.where, fault, q.expr)
			}
		}
	}
}

var placeholder = regexp.MustCompile(`\{\{(\w+)\}\}`)

func TestPanelsAreWellMade(t *testing.T) {
	for file, d := range readDashboards(t) {
		if d.UID == "" || d.Title == "" {
			t.Errorf("%s: a dashboard needs a uid, so that links to it last, and a title", file)
		}
		ids, taken := map[int]bool{}, map[[2]int]string{}
		for _, p := range d.Panels {
			if ids[p.ID] {
				t.Errorf("%s: %q: id %d is taken", file, p.Title, p.ID)
			}
			ids[p.ID] = true
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other, ok := taken[[2]int{x, y}]; ok {
						t.Fatalf("%s: %q and %q overlap", file, p.Title, other)
					}
					taken[[2]int{x, y}] = p.Title
				}
			}
			if p.GridPos.X+p.GridPos.W > 24 {
				t.Errorf("%s: %q is wider than the page", file, p.Title)
			}
			if p.Type == "row" {
				continue
			}
			if p.Datasource.UID != "${datasource}" {
				t.Errorf("%s: %q does not use the variable datasource", file, p.Title)
			}
			if len(p.Targets) == 0 {
				t.Errorf("%s: %q asks for nothing", file, p.Title)
			}
			for _, q := range p.Targets {
				p.checkTarget(t, file, q.Expr, q.LegendFormat)
			}
		}
	}
}

// checkTarget wants every query to follow the variables, and its legend to use labels that the result has.
func (p panel) checkTarget(t *testing.T, file, expr, legend string) {
	t.Helper()
	for _, v := range []string{`cluster=~"$cluster"`, `instance=~"$instance"`} {
		if strings.Count(expr, v) != strings.Count(expr, "{") {
			t.Errorf("%s: %q does not follow %s everywhere: %s", file, p.Title, v, expr)
		}
	}
	var kept []string
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		for l := range strings.SplitSeq(m[1], ",") {
			kept = append(kept, strings.TrimSpace(l))
		}
	}
	for _, m := range placeholder.FindAllStringSubmatch(legend, -1) {
		if len(kept) > 0 && !slices.Contains(kept, m[1]) {
			t.Errorf("%s: %q: the legend names %s, which the query does not keep: %s", file, p.Title, m[1], expr)
		}
	}
}

func TestEveryMetricIsExplained(t *testing.T) {
	page, err := os.ReadFile("../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	for name := range metricsOfTheCode(t) {
		if strings.HasPrefix(name, "keyward_") && !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/operating.md does not explain %s", name)
		}
	}
}

var flagDefinition = regexp.MustCompile(`s\.\w+Var\(&[\w.]+, "([a-z0-9-]+)"`)

func TestEveryFlagIsExplained(t *testing.T) {
	page, err := os.ReadFile("../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("../cmd/internal/boot/flags.go")
	if err != nil {
		t.Fatal(err)
	}
	flags := flagDefinition.FindAllStringSubmatch(string(source), -1)
	if len(flags) < 20 {
		t.Fatalf("only %d flags found in the source", len(flags))
	}
	for _, f := range flags {
		if !strings.Contains(string(page), "| `--"+f[1]+"` |") {
			t.Errorf("docs/operating.md does not explain --%s", f[1])
		}
	}
}
