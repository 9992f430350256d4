package stats

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/prometheus/statsd_exporter/pkg/mapper"
	"go.yaml.in/yaml/v2"
)

//go:embed mapping.yaml
var builtIn string

// loadMapping loads statsd-exporter mappings from a file, or the built-in ones if file is empty.
func loadMapping(file string, milliseconds bool) (*mapper.MetricMapper, error) {
	text, name := builtIn, "built-in mapping"
	if file != "" {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read mapping: %w", err)
		}
		text, name = string(content), file
	} else if milliseconds {
		text = strings.Replace(text, "  scale: 0.001\n", "", 1)
	}
	text, err := modernize(text)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", name, err)
	}
	m := &mapper.MetricMapper{}
	if err := m.InitFromYAMLString(text); err != nil {
		return nil, fmt.Errorf("load %s: %w", name, err)
	}
	if err := checkMapping(m); err != nil {
		return nil, fmt.Errorf("load %s: %w", name, err)
	}
	return m, nil
}

// modernize converts what the statsd-exporter of envoyproxy/ratelimit accepts and the current one rejects: the keys
// timer_type, buckets and quantiles, and unknown keys.
func modernize(text string) (string, error) {
	var file struct {
		Defaults map[string]any
		Mappings []map[string]any
	}
	if err := yaml.Unmarshal([]byte(text), &file); err != nil {
		return "", err
	}
	both := []string{"observer_type", "match_type", "ttl", "summary_options", "histogram_options"}
	modernizeKeys(file.Defaults, append(both, "glob_disable_ordering"))
	for _, m := range file.Mappings {
		modernizeKeys(m, append(both, "match", "name", "labels", "honor_labels", "help", "action",
			"match_metric_type", "scale"))
	}
	out, err := yaml.Marshal(file)
	return string(out), err
}

func modernizeKeys(m map[string]any, known []string) {
	if t, ok := m["timer_type"]; ok && m["observer_type"] == nil {
		m["observer_type"] = t
	}
	if b, ok := m["buckets"]; ok && m["histogram_options"] == nil && m["observer_type"] == "histogram" {
		m["histogram_options"] = map[string]any{"buckets": b}
	}
	if q, ok := m["quantiles"]; ok && m["summary_options"] == nil && m["observer_type"] != "histogram" {
		m["summary_options"] = map[string]any{"quantiles": q}
	}
	maps.DeleteFunc(m, func(k string, _ any) bool { return !slices.Contains(known, k) })
}

// checkMapping returns an error for mappings from which a histogram or summary would panic.
func checkMapping(m *mapper.MetricMapper) error {
	var faults []error
	check := func(where string, h *mapper.HistogramOptions, s *mapper.SummaryOptions) {
		if h != nil {
			for i := 1; i < len(h.Buckets); i++ {
				if !(h.Buckets[i-1] < h.Buckets[i]) {
					faults = append(faults, fmt.Errorf("%s: buckets do not increase", where))
					break
				}
			}
		}
		if s == nil {
			return
		}
		if s.MaxAge < 0 {
			faults = append(faults, fmt.Errorf("%s: max_age is negative", where))
		}
		for _, q := range s.Quantiles {
			if !(q.Quantile >= 0 && q.Quantile <= 1) {
				faults = append(faults, fmt.Errorf("%s: quantile %v is not from 0 to 1", where, q.Quantile))
			}
		}
	}
	check("defaults", &m.Defaults.HistogramOptions, &m.Defaults.SummaryOptions)
	for i, mapping := range m.Mappings {
		check(fmt.Sprintf("mapping %d (%s)", i+1, mapping.Match), mapping.HistogramOptions, mapping.SummaryOptions)
	}
	return errors.Join(faults...)
}
