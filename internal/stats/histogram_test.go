package stats

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// DurationHistogram exports the same as Prometheus's own histogram.
func TestHistogramIsPrometheuss(t *testing.T) {
	for name, o := range map[string]prometheus.HistogramOpts{
		"default":     {Name: "h", Help: "h", ConstLabels: prometheus.Labels{"a": "b"}},
		"fine":        {Name: "h", Help: "h", Buckets: []float64{1e-9, 2.5e-6, 1e-3, 0.3}},
		"to infinity": {Name: "h", Help: "h", Buckets: []float64{0.1, math.Inf(1)}},
	} {
		ours, theirs := NewDurationHistogram(o, time.Second), prometheus.NewHistogram(o)
		r := rand.New(rand.NewPCG(1, 2))
		durations := []time.Duration{0, 1, 2, 2500, 2501, time.Millisecond, time.Millisecond + 1, 5 * time.Millisecond, 300 * time.Millisecond, 10 * time.Second, time.Hour}
		for range 1000 {
			durations = append(durations, time.Duration(math.Pow(10, 11*r.Float64())))
		}
		for _, d := range durations {
			ours.Observe(d)
			theirs.Observe(d.Seconds())
		}
		a, b := written(t, ours.metric()), written(t, theirs)
		if a.GetHistogram().GetSampleCount() != b.GetHistogram().GetSampleCount() || len(a.Label) != len(b.Label) {
			t.Errorf("%s: %v, want %v", name, a, b)
		}
		if x, y := a.Histogram.GetSampleSum(), b.Histogram.GetSampleSum(); math.Abs(x-y) > 1e-9*y {
			t.Errorf("%s: sum %v, want %v", name, x, y)
		}
		if len(a.Histogram.Bucket) != len(b.Histogram.Bucket) {
			t.Fatalf("%s: %d buckets, want %d", name, len(a.Histogram.Bucket), len(b.Histogram.Bucket))
		}
		for i, x := range a.Histogram.Bucket {
			if y := b.Histogram.Bucket[i]; x.GetUpperBound() != y.GetUpperBound() || x.GetCumulativeCount() != y.GetCumulativeCount() {
				t.Errorf("%s: bucket %v, want %v", name, x, y)
			}
		}
	}
}

func written(t *testing.T, m prometheus.Metric) *dto.Metric {
	t.Helper()
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		t.Fatal(err)
	}
	return &out
}

func BenchmarkHistogram(b *testing.B) {
	o := prometheus.HistogramOpts{Name: "h", Help: "h"}
	ours, theirs := NewDurationHistogram(o, time.Second), prometheus.NewHistogram(o)
	for name, observe := range map[string]func(){"ours": func() { ours.Observe(3000) }, "Prometheus's": func() { theirs.Observe(time.Duration(3000).Seconds()) }} {
		b.Run(name+" alone", func(b *testing.B) {
			for b.Loop() {
				observe()
			}
		})
		b.Run(name+" on all cores", func(b *testing.B) {
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					observe()
				}
			})
		})
	}
}
