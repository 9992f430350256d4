package mirror

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// metrics are keyward_mirror_*.
type metrics struct {
	requests    *prometheus.CounterVec // service, code
	seconds     *prometheus.HistogramVec
	compared    prometheus.Counter
	differences *prometheus.CounterVec // class
	fields      *prometheus.CounterVec // field
	notCompared *prometheus.CounterVec // reason
	fellBack    prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "keyward_mirror_answers_total", Help: "Responses of each service: ok, over_limit or error.",
		}, []string{"service", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "keyward_mirror_answer_seconds", Help: "Time that each service took to respond.",
			Buckets: prometheus.ExponentialBuckets(0.000125, 2, 14),
		}, []string{"service"}),
		compared: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "keyward_mirror_compared_total", Help: "Calls whose two responses were compared.",
		}),
		differences: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "keyward_mirror_differences_total", Help: "Calls whose two responses differ, by the class of the difference.",
		}, []string{"class"}),
		fields: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "keyward_mirror_different_fields_total", Help: "Fields of responses that differ without an explanation.",
		}, []string{"field"}),
		notCompared: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "keyward_mirror_not_compared_total", Help: "Calls that were not compared, by reason.",
		}, []string{"reason"}),
		fellBack: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "keyward_mirror_fallbacks_total", Help: "With --answer new: calls answered by the old service because the " +
				"new one failed.",
		}),
	}
	m.initialize()
	if reg != nil {
		reg.MustRegister(m.requests, m.seconds, m.compared, m.differences, m.fields, m.notCompared, m.fellBack)
	}
	return m
}

// initialize creates all series, so that they are exported as 0.
func (m *metrics) initialize() {
	for _, service := range []string{"old", "new"} {
		for _, code := range []string{"ok", "over_limit", "error"} {
			m.requests.WithLabelValues(service, code)
		}
		m.seconds.WithLabelValues(service)
	}
	for _, c := range classes() {
		m.differences.WithLabelValues(string(c))
	}
	for _, r := range reasons() {
		m.notCompared.WithLabelValues(string(r))
	}
}

// number returns the value of a counter.
func number(m prometheus.Metric) uint64 {
	var out dto.Metric
	if m.Write(&out) != nil {
		return 0
	}
	return uint64(out.GetCounter().GetValue())
}

// quantile returns the upper bound, in seconds, of the bucket that contains the q-quantile, or of the largest bucket if
// it is above all of them. It returns 0 if nothing was observed.
func quantile(m prometheus.Metric, q float64) float64 {
	var out dto.Metric
	if m.Write(&out) != nil || out.GetHistogram().GetSampleCount() == 0 {
		return 0
	}
	buckets := out.GetHistogram().GetBucket()
	for _, b := range buckets {
		if float64(b.GetCumulativeCount()) >= q*float64(out.GetHistogram().GetSampleCount()) {
			return b.GetUpperBound()
		}
	}
	return buckets[len(buckets)-1].GetUpperBound()
}
