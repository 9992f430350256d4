package source

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	version      *prometheus.GaugeVec
	disagreement prometheus.Gauge
	waiting      prometheus.Gauge
	reloads      *prometheus.CounterVec
	succeeded    prometheus.Gauge
	successful   prometheus.Gauge
	switches     *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		version: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "keyward_rules_version_info", Help: "Versions of the rules on this member, by state: in_force or prepared.",
		}, []string{"version", "state"}),
		disagreement: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "keyward_rules_disagreement", Help: "Live members that use other rules than this one.",
		}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "keyward_rules_waiting_members", Help: "Live members that have not yet loaded the rules that this member " +
				"has prepared.",
		}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "keyward_config_reloads_total", Help: "Attempts to load rules, by source (files, xds) and result (success, " +
				"error).",
		}, []string{"source", "result"}),
		succeeded: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "keyward_config_last_success_timestamp_seconds", Help: "Unix time of the last successful attempt to load " +
				"rules.",
		}),
		successful: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "keyward_config_last_reload_successful", Help: "1 if the last attempt to load rules succeeded, otherwise 0.",
		}),
		switches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "keyward_rules_switches_total", Help: "Versions that came into force, by reason: first, agreed, or timeout " +
				"(a member had not loaded it).",
		}, []string{"reason"}),
	}
	for _, r := range []reason{first, agreed, timeout} {
		m.switches.WithLabelValues(string(r))
	}
	if reg != nil {
		reg.MustRegister(m.version, m.disagreement, m.waiting, m.reloads, m.succeeded, m.successful, m.switches)
	}
	return m
}

func (m *metrics) read(e LoadResult, now time.Time) {
	if e.Err != nil {
		m.reloads.WithLabelValues(e.Source, "error").Inc()
		m.successful.Set(0)
		return
	}
	m.reloads.WithLabelValues(e.Source, "success").Inc()
	m.successful.Set(1)
	m.succeeded.Set(float64(now.UnixNano()) / 1e9)
}

func (m *metrics) show(a *agreement) {
	m.version.Reset()
	if a.inForce != 0 {
		m.version.WithLabelValues(Hex(a.inForce), "in_force").Set(1)
	}
	if a.prepared != 0 {
		m.version.WithLabelValues(Hex(a.prepared), "prepared").Set(1)
	}
	m.disagreement.Set(float64(len(a.disagreeing())))
	m.waiting.Set(float64(len(a.lacking())))
}

// Hex formats a version for metrics, logs and pages.
func Hex(version uint64) string { return fmt.Sprintf("%016x", version) }
