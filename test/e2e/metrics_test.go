package e2e

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/keyward/keyward/internal/lab"
)

// metrics reads a page of metrics.
func metrics(t testing.TB, addr string) map[string]*dto.MetricFamily {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	fam, err := scrape(ctx, addr)
	if err != nil {
		t.Fatal(err)
	}
	return fam
}

// scrape reads the named metrics of a page of metrics, or all when none is named. To parse a few costs far less.
func scrape(ctx context.Context, addr string, names ...string) (map[string]*dto.MetricFamily, error) {
	body, err := lab.Get(ctx, "http://"+addr+"/metrics")
	if err != nil {
		return nil, err
	}
	if len(names) > 0 {
		var some []byte
		for line := range bytes.Lines(body) {
			if slices.ContainsFunc(names, func(n string) bool { return bytes.HasPrefix(line, []byte(n)) }) {
				some = append(some, line...)
			}
		}
		body = some
	}
	p := expfmt.NewTextParser(model.UTF8Validation)
	return p.TextToMetricFamilies(bytes.NewReader(body))
}

// sum adds up a metric's series whose labels include all of want (name, value, ...), over all running sidecars.
func sum(t testing.TB, l *lab.Lab, name string, want ...string) float64 {
	t.Helper()
	total := 0.0
	for _, s := range l.Sidecars {
		if s.Running() {
			total += value(metrics(t, s.Metrics), name, want...)
		}
	}
	return total
}

func value(fam map[string]*dto.MetricFamily, name string, want ...string) float64 {
	total := 0.0
	for _, m := range fam[name].GetMetric() {
		if hasLabels(m, want) {
			total += m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
		}
	}
	return total
}

func hasLabels(m *dto.Metric, want []string) bool {
	for i := 0; i < len(want); i += 2 {
		found := false
		for _, l := range m.GetLabel() {
			found = found || l.GetName() == want[i] && l.GetValue() == want[i+1]
		}
		if !found {
			return false
		}
	}
	return true
}
