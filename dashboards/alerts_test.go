package dashboards

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	yamlv3 "go.yaml.in/yaml/v3"

	"github.com/keyward/keyward/internal/cluster"
)

type alertRule struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

func readAlerts(t *testing.T) []alertRule {
	t.Helper()
	b, err := os.ReadFile("alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct{ Rules []alertRule }
	}
	if err := yamlv3.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	var all []alertRule
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("no alerts")
	}
	return all
}

func TestAlerts(t *testing.T) {
	metrics, severities := metricsOfTheCode(t), "info warning critical"
	page, err := os.ReadFile("../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile("testdata/alerts.test.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range readAlerts(t) {
		if !strings.HasPrefix(a.Alert, "Keyward") {
			t.Errorf("%s: alerts begin with Keyward", a.Alert)
		}
		for _, fault := range metrics.faults(a.Expr) {
			t.Errorf("%s: %s", a.Alert, fault)
		}
		if s := a.Labels["severity"]; s == "" || !strings.Contains(severities, s) {
			t.Errorf("%s: severity %q is none of %s", a.Alert, s, severities)
		}
		if a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
			t.Errorf("%s: has no summary or no description", a.Alert)
		}
		if !strings.Contains(string(page), "`"+a.Alert+"`") {
			t.Errorf("docs/operating.md does not explain %s", a.Alert)
		}
		if fires := regexp.MustCompile(`alertname(: |=")` + a.Alert + `(\n +exp_alerts:\n|"}', value: [1-9])`); !fires.Match(tests) {
			t.Errorf("no test has %s fire", a.Alert)
		}
		a.checkRunbook(t)
	}
	pages, err := filepath.Glob("../docs/runbooks/Keyward*.md")
	if alerts := len(readAlerts(t)); err != nil || len(pages) != alerts {
		t.Errorf("%d runbooks for %d alerts, %v", len(pages), alerts, err)
	}
}

// checkRunbook requires that the alert links to a page with all sections.
func (a alertRule) checkRunbook(t *testing.T) {
	t.Helper()
	if a.Annotations["runbook_url"] != runbooks+a.Alert+".md" {
		t.Errorf("%s: runbook_url is %q", a.Alert, a.Annotations["runbook_url"])
	}
	page, err := os.ReadFile("../docs/runbooks/" + a.Alert + ".md")
	if err != nil {
		t.Errorf("%s has no runbook: %v", a.Alert, err)
	}
	for _, part := range []string{"# " + a.Alert, "**" + a.Labels["severity"] + ".**", "## Meaning\n", "## Impact\n", "## Diagnosis\n\n```sh\n", "## Resolution\n", "\n**Resolved when**: "} {
		if !strings.Contains(string(page), part) {
			t.Errorf("the runbook of %s lacks %q", a.Alert, part)
		}
	}
}

// TestAlertsFire evaluates the alerts on synthetic series with promtool.
func TestAlertsFire(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		missing(t, "promtool")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "testdata/alerts.test.yml"}} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// TestAlertsAreShown requires a panel for every metric that an alert uses, because operators look at the boards next.
func TestAlertsAreShown(t *testing.T) {
	shown := map[string]bool{}
	for _, b := range boards() {
		for _, q := range queriesOf(b) {
			for _, name := range metric.FindAllString(q.Expr, -1) {
				shown[name] = true
			}
		}
	}
	for _, a := range readAlerts(t) {
		for _, name := range metric.FindAllString(quoted.ReplaceAllString(a.Expr, `""`), -1) {
			if !shown[name] {
				t.Errorf("%s: no panel shows %s", a.Alert, name)
			}
		}
	}
}

// TestCausesAreExplained reads the causes that keep a member off the ring from a real member, and requires that
// KeywardOffRing and its runbook explain each of them.
func TestCausesAreExplained(t *testing.T) {
	reg := prometheus.NewRegistry()
	c, err := cluster.Start(cluster.Options{Node: "a", Bind: "127.0.0.1:0", Registerer: reg})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	causes := labelsOf(t, reg, "keyward_off_ring", "cause")
	if len(causes) < 6 {
		t.Fatalf("only %d causes: %v", len(causes), causes)
	}
	alert, page := readAlert(t, "KeywardOffRing"), read(t, "../docs/runbooks/KeywardOffRing.md")
	for _, cause := range causes {
		watched := !strings.Contains(alert.Expr, `cause!="`+cause+`"`)
		if explained := strings.Contains(alert.Annotations["description"], `eq $labels.cause "`+cause+`"`); watched != explained {
			t.Errorf("cause %s: KeywardOffRing watches it: %v, explains it: %v", cause, watched, explained)
		}
		if !strings.Contains(page, "`"+cause+"`") {
			t.Errorf("the runbook of KeywardOffRing does not explain %s", cause)
		}
	}
}

// labelsOf returns the values of a label of a metric.
func labelsOf(t *testing.T, from prometheus.Gatherer, name, label string) (values []string) {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == label {
					values = append(values, l.GetValue())
				}
			}
		}
	}
	return values
}

func readAlert(t *testing.T, name string) alertRule {
	t.Helper()
	for _, a := range readAlerts(t) {
		if a.Alert == name {
			return a
		}
	}
	t.Fatalf("there is no alert %s", name)
	return alertRule{}
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
