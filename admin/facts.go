package admin

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/owner"
)

// facts tells Prometheus what a node knows of itself.
type facts struct {
	read func() owner.Facts

	keys, bound, open, decisions, admitted, overflowKeys, overflowHits, sketches, refunds, deny *prometheus.Desc
}

// NewFacts is a collector of a node's facts; read is called at every scrape.
func NewFacts(read func() owner.Facts) prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("keyward_"+name, help, labels, nil)
	}
	return &facts{
		read:         read,
		keys:         desc("keys", "Counters in memory, by table: owned, or of answers given for an owner that could not be reached.", "table"),
		bound:        desc("overadmission_bound", "Most hits that this member may have added to one key's present window above its limit, fail_open apart; the cluster's bound is the sum."),
		open:         desc("fail_open_admitted", "Most hits that this member has admitted of one key in its present window under fail_open, which the limit does not bound."),
		decisions:    desc("authority_total", "Decisions by the right by which they were made.", "authority"),
		admitted:     desc("degraded_admitted_hits_total", "Hits admitted for owners that could not be reached.", "authority"),
		overflowKeys: desc("overflow_keys_total", "Keys that did not fit in memory and are counted by a sketch that never admits too much."),
		overflowHits: desc("overflow_charges_total", "Charges counted by the sketch."),
		sketches:     desc("overflow_sketches", "Sketches in memory, 64 KiB each."),
		refunds:      desc("refunds_dropped_total", "Refunds that could not be applied."),
		deny:         desc("deny_cache_total", "Questions that the cache of refusals knew or did not know.", "result"),
	}
}

// authorities are the names of owner.Authority in metrics, by number.
func authorities() []string {
	return []string{"full", "part", "share", "fail_open", "fail_closed", "overflow", "cached"}
}

// Describe implements prometheus.Collector.
func (f *facts) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(f, ch) }

// Collect implements prometheus.Collector.
func (f *facts) Collect(ch chan<- prometheus.Metric) {
	x := f.read()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(f.keys, float64(x.Keys), "owned")
	gauge(f.keys, float64(x.ShareKeys), "share")
	gauge(f.keys, float64(x.OpenKeys), "fail_open")
	gauge(f.keys, float64(x.ClosedKeys), "fail_closed")
	gauge(f.keys, float64(x.DenyKeys), "deny")
	gauge(f.bound, float64(x.Bound()))
	gauge(f.open, float64(x.Open))
	for i, name := range authorities() {
		counter(f.decisions, x.Decided[i], name)
		if owner.Authority(i) == owner.Share || owner.Authority(i) == owner.Open || owner.Authority(i) == owner.Closed {
			counter(f.admitted, x.Admitted[i], name)
		}
	}
	counter(f.overflowKeys, x.OverflowKeys)
	counter(f.overflowHits, x.OverflowCharges)
	gauge(f.sketches, float64(x.Sketches))
	counter(f.refunds, x.RefundsDropped)
	counter(f.deny, x.DenyHits, "hit")
	counter(f.deny, x.DenyMisses, "miss")
}
