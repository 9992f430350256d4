package doctor

import (
	"bytes"
	"fmt"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics are a page of Prometheus metrics, histograms left out, by name.
type Metrics map[string][]Sample

// Sample is one series of a metric.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// ParseMetrics reads the text format.
func ParseMetrics(page []byte) (Metrics, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(page))
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	all := Metrics{}
	for name, family := range families {
		for _, m := range family.GetMetric() {
			s := Sample{Labels: map[string]string{}, Value: m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue()}
			for _, l := range m.GetLabel() {
				s.Labels[l.GetName()] = l.GetValue()
			}
			all[name] = append(all[name], s)
		}
	}
	return all, nil
}

// Sum adds up the series of a metric, those with one label alone where it is named; 0 without any.
func (m Metrics) Sum(name string, label ...string) (sum float64) {
	for _, s := range m[name] {
		if len(label) < 2 || s.Labels[label[0]] == label[1] {
			sum += s.Value
		}
	}
	return sum
}
