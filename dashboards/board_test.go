package dashboards

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the boards' JSON")

// TestCommitted requires that the committed JSON equals what the code renders, and that there are no other boards.
func TestCommitted(t *testing.T) {
	want, err := Files()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range want {
		if *update {
			if err := os.WriteFile(name, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%s differs from the code (%v): go run ./dashboards/generate", name, err)
		}
	}
	files, err := filepath.Glob("*.json")
	if names := slices.Sorted(maps.Keys(want)); err != nil || !slices.Equal(files, names) {
		t.Errorf("here are %v (%v), the boards are %v", files, err, names)
	}
}

func TestQueriesUseExistingMetrics(t *testing.T) {
	metrics := metricsOfTheCode(t)
	for _, b := range boards() {
		if n := len(queriesOf(b)); n < 30 {
			t.Errorf("%s: only %d queries", b.Title, n)
		}
		for _, q := range queriesOf(b) {
			for _, fault := range metrics.faults(expand(q.Expr)) {
				t.Errorf("%s: %s\n\t%s", q.where, fault, q.Expr)
			}
		}
	}
}

// TestOriginalStatistics requires every Prometheus name of envoyproxy/ratelimit's statistics in a panel, so that users
// who migrate find them.
func TestOriginalStatistics(t *testing.T) {
	var text strings.Builder
	for _, b := range boards() {
		for _, q := range queriesOf(b) {
			text.WriteString(q.Expr + "\n")
		}
	}
	names := statistics(t)
	if len(names) < 10 {
		t.Fatalf("only %d names", len(names))
	}
	for name := range names {
		if name != "ratelimit_service_rate_limit_total_negative_hits" && !strings.Contains(text.String(), name) {
			t.Errorf("no panel shows %s", name)
		}
	}
}

// placed is a panel as Grafana reads it.
type placed struct {
	ID                       int
	Type, Title, Description string
	Datasource               struct{ UID string }
	GridPos                  struct{ X, Y, W, H int }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Links                    []struct{ URL string }
	Targets                  []struct{ RefID, Expr, LegendFormat string }
}

func TestPanelsAreComplete(t *testing.T) {
	for _, b := range boards() {
		text, err := b.render()
		if err != nil {
			t.Fatal(err)
		}
		var board struct {
			UID, Title, Description string
			Panels                  []placed
		}
		if err := json.Unmarshal(text, &board); err != nil {
			t.Fatal(err)
		}
		if board.UID == "" || board.Title == "" || board.Description == "" {
			t.Errorf("%s: a board needs a uid, a title and a description", b.Title)
		}
		ids, taken := map[int]bool{}, map[[2]int]string{}
		for _, p := range board.Panels {
			if ids[p.ID] {
				t.Errorf("%s: %q: id %d is taken", b.Title, p.Title, p.ID)
			}
			ids[p.ID] = true
			p.cover(t, b.Title, taken)
			if p.Type != "row" {
				p.check(t, b.Title)
			}
		}
	}
}

// cover marks the cells that the panel covers.
func (p placed) cover(t *testing.T, board string, taken map[[2]int]string) {
	t.Helper()
	for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
		for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
			if other, ok := taken[[2]int{x, y}]; ok {
				t.Fatalf("%s: %q and %q overlap", board, p.Title, other)
			}
			taken[[2]int{x, y}] = p.Title
		}
	}
	if p.GridPos.X+p.GridPos.W > 24 {
		t.Errorf("%s: %q is wider than the page", board, p.Title)
	}
}

func (p placed) check(t *testing.T, board string) {
	t.Helper()
	if p.Description == "" || p.FieldConfig.Defaults.Unit == "" {
		t.Errorf("%s: %q: a panel needs a description (%q) and a unit (%q)", board, p.Title, p.Description, p.FieldConfig.Defaults.Unit)
	}
	if p.Datasource.UID != "${datasource}" {
		t.Errorf("%s: %q does not use the variable datasource", board, p.Title)
	}
	if len(p.Targets) == 0 {
		t.Errorf("%s: %q has no query", board, p.Title)
	}
	for _, l := range p.Links {
		if _, err := os.Stat(filepath.Join("../docs/runbooks", filepath.Base(l.URL))); err != nil {
			t.Errorf("%s: %q: %v", board, p.Title, err)
		}
	}
	for _, q := range p.Targets {
		p.checkTarget(t, board, q.Expr, q.LegendFormat)
	}
}

var placeholder = regexp.MustCompile(`\{\{(\w+)\}\}`)

// checkTarget requires that every selector uses the variables, that all placeholders are expanded, and that the legend
// uses labels of the result.
func (p placed) checkTarget(t *testing.T, board, expr, legend string) {
	t.Helper()
	if n := strings.Count(expr, `cluster=~"$cluster"`); n == 0 || n != strings.Count(expr, "{") {
		t.Errorf("%s: %q has a selector without the variables: %s", board, p.Title, expr)
	}
	if strings.ContainsAny(expr, "@~") && strings.Contains(strings.ReplaceAll(expr, "=~", ""), "~") && !strings.Contains(expr, "!~") || strings.Contains(expr, "@") {
		t.Errorf("%s: %q has placeholders left: %s", board, p.Title, expr)
	}
	var kept []string
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		for l := range strings.SplitSeq(m[1], ",") {
			kept = append(kept, strings.TrimSpace(l))
		}
	}
	for _, m := range placeholder.FindAllStringSubmatch(legend, -1) {
		if len(kept) > 0 && !slices.Contains(kept, m[1]) {
			t.Errorf("%s: %q: the legend uses %s, which the query drops: %s", board, p.Title, m[1], expr)
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
	source, err := os.ReadFile("../internal/app/flags.go")
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
