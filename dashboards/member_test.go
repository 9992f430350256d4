package dashboards

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/internal/admin"
	"github.com/keyward/keyward/internal/cluster"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/config/source"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/peer"
	"github.com/keyward/keyward/owner"
)

// TestMemberOfAnotherCluster uses the metrics of a real member that joins an address of another cluster. It must raise
// the alert with the cause, and not the one for processes without a cause.
func TestMemberOfAnotherCluster(t *testing.T) {
	t.Parallel()
	other, err := cluster.Start(cluster.Options{Node: "other", Bind: "127.0.0.1:0", Insecure: true, Join: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	stays, reg := make(chan membership.Cause, 1), prometheus.NewRegistry()
	lost, err := cluster.Start(cluster.Options{
		Node: "lost", Bind: "127.0.0.1:0", Insecure: true, Cluster: "another", Join: []string{other.Gossip()}, Registerer: reg,
		OnView: func(v *membership.View) {
			if v.Cause != "" {
				select {
				case stays <- v.Cause:
				default:
				}
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lost.Close)
	select {
	case cause := <-stays:
		if cause != membership.CauseGossip {
			t.Fatalf("cause %s", cause)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it does not report why it stays off the ring")
	}
	fires(t, reg, `{alertname="KeywardOffRing", alertstate="firing", cause="gossip", instance="m", severity="critical"}`)
}

// TestMemberWithInvalidRules uses the metrics of real rules. Invalid rules raise one alert for a member without earlier
// rules, and another for a member with earlier rules.
func TestMemberWithInvalidRules(t *testing.T) {
	t.Parallel()
	fault := source.LoadResult{Source: source.FromFiles, Err: errors.New("shop.yaml:4: unknown unit")}
	reg, rules := rulesOf(t)
	rules.Offer(fault)
	fires(t, reg, `{alertname="KeywardNoRules", alertstate="firing", instance="m", severity="critical"}`)

	reg, rules = rulesOf(t)
	good, err := config.Load([]config.File{{Name: "a.yaml", Content: []byte("domain: app\ndescriptors:\n- {key: k, rate_limit: {unit: minute, requests_per_unit: 1}}\n")}}, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	rules.Offer(source.LoadResult{Source: source.FromFiles, Rules: good})
	fires(t, reg)
	rules.Offer(fault)
	fires(t, reg, `{alertname="KeywardRulesNotRead", alertstate="firing", instance="m", severity="warning"}`)
}

// rulesOf returns the rules of a member that has read none yet, and its metrics.
func rulesOf(t *testing.T) (*prometheus.Registry, *source.Versions) {
	t.Helper()
	reg := prometheus.NewRegistry()
	p, err := peer.New(peer.Options{Node: owner.New(owner.Options{Self: "m"}), Self: "m"})
	if err != nil {
		t.Fatal(err)
	}
	v := source.NewVersions(source.VersionsOptions{Self: "m", Registerer: reg})
	t.Cleanup(func() { v.Close(); _ = p.Close() })
	reg.MustRegister(admin.NewCollector(p.Stats))
	return reg, v
}

// fires requires that exactly these alerts fire if the member's metrics stay unchanged for five minutes.
func fires(t *testing.T, from prometheus.Gatherer, alerts ...string) {
	t.Helper()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		missing(t, "promtool")
	}
	rules, err := filepath.Abs("alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "rule_files: [%s]\nevaluation_interval: 5s\ntests:\n- interval: 10s\n  input_series:\n", rules)
	for _, s := range seriesOf(t, from) {
		fmt.Fprintf(&text, "  - series: '%s'\n    values: %gx30\n", s.name, s.value)
	}
	text.WriteString("  promql_expr_test:\n  - expr: ALERTS{alertstate=\"firing\"}\n    eval_time: 5m\n    exp_samples:\n")
	for _, a := range alerts {
		fmt.Fprintf(&text, "    - {labels: 'ALERTS%s', value: 1}\n", a)
	}
	file := filepath.Join(t.TempDir(), "member.test.yml")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), promtool, "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

// series is a metric with its labels, in Prometheus syntax, and its value.
type series struct {
	name  string
	value float64
}

// seriesOf returns the gauges and counters of a member m.
func seriesOf(t *testing.T, from prometheus.Gatherer) (all []series) {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := []string{`instance="m"`}
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			s := series{name: f.GetName() + "{" + strings.Join(labels, ",") + "}"}
			switch {
			case m.GetGauge() != nil:
				s.value = m.GetGauge().GetValue()
			case m.GetCounter() != nil:
				s.value = m.GetCounter().GetValue()
			default:
				continue
			}
			all = append(all, s)
		}
	}
	return all
}
