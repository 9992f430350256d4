// Package promtext reads metrics in the Prometheus text format.
package promtext

import (
	"bytes"
	"fmt"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Page holds the series of a page of metrics by metric name. It has no values for histograms and summaries.
type Page map[string][]Series

// Series is one series of a metric.
type Series struct {
	Labels map[string]string
	Value  float64
}

// Parse reads a page in the text format.
func Parse(text []byte) (Page, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	page := Page{}
	for name, family := range families {
		for _, m := range family.GetMetric() {
			s := Series{Labels: map[string]string{}, Value: m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue()}
			for _, l := range m.GetLabel() {
				s.Labels[l.GetName()] = l.GetValue()
			}
			page[name] = append(page[name], s)
		}
	}
	return page, nil
}

// Sum returns the sum of a metric's series, or of those with one label if its name and value are given. It is 0 if
// there are none.
func (p Page) Sum(name string, label ...string) (sum float64) {
	for _, s := range p[name] {
		if len(label) < 2 || s.Labels[label[0]] == label[1] {
			sum += s.Value
		}
	}
	return sum
}
