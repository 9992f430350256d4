package dashboards

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	yamlv3 "go.yaml.in/yaml/v3"
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
			t.Errorf("%s: says nothing to whoever is woken", a.Alert)
		}
		if !strings.Contains(string(page), "`"+a.Alert+"`") {
			t.Errorf("docs/operating.md does not explain %s", a.Alert)
		}
	}
}

// TestAlertsFire runs the alerts on made-up series, by Prometheus itself.
func TestAlertsFire(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "testdata/alerts.test.yml"}} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
