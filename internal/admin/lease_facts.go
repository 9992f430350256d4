package admin

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/owner"
)

// leaseMetric is one number of a node's LeaseFacts, by all values of its label, of which there may be none.
type leaseMetric struct {
	name, help, label string
	gauge             bool
	values            func(x *owner.LeaseStats) map[string]uint64
}

// single is the value of a metric without a label.
func single(read func(x *owner.LeaseStats) uint64) func(*owner.LeaseStats) map[string]uint64 {
	return func(x *owner.LeaseStats) map[string]uint64 { return map[string]uint64{"": read(x)} }
}

// holderMetrics are what a member has borrowed.
func holderMetrics() []leaseMetric {
	return []leaseMetric{
		{name: "lease_held", help: "Keys of which this member holds a lease.", gauge: true, values: single(func(x *owner.LeaseStats) uint64 { return uint64(x.Held) })},
		{name: "lease_held_hits", help: "Hits that this member holds and has not spent.", gauge: true, values: single(func(x *owner.LeaseStats) uint64 { return x.HeldHits })},
		{name: "lease_local_hits_total", help: "Hits admitted from leases, without asking the owner.", values: single(func(x *owner.LeaseStats) uint64 { return x.LocalHits })},
		{name: "lease_local_denials_total", help: "Questions refused by what an owner had said, without asking it.", values: single(func(x *owner.LeaseStats) uint64 { return x.LocalDenied })},
		{name: "lease_renewals_total", help: "Requests for hits that owners answered: with hits, or with none.", label: "result", values: func(x *owner.LeaseStats) map[string]uint64 {
			return map[string]uint64{"granted": x.Granted, "empty": x.Empty}
		}},
		{name: "lease_failures_total", help: "Requests that were not answered in time or refused, and keys that found no room.", label: "reason", values: func(x *owner.LeaseStats) map[string]uint64 {
			return map[string]uint64{"timeout": x.Timeouts, "refused": x.Refused, "no_room": x.NoRoom}
		}},
		{name: "lease_stranded_tokens_total", help: "Hits that this member held when their window ended: charged, and spent by nobody.", values: single(func(x *owner.LeaseStats) uint64 { return x.Stranded })},
		{name: "approximate_hits_total", help: "Hits of approximate rules admitted before their owners knew of them.", values: single(func(x *owner.LeaseStats) uint64 { return x.Approximated })},
		{name: "approximate_reconciliations_total", help: "Reports of approximate rules that were merged, here or by their owner.", values: single(func(x *owner.LeaseStats) uint64 { return x.Reconciled })},
		{name: "approximate_unsynced_hits", help: "Hits of approximate rules admitted here that their owners do not know of yet.", gauge: true, values: single(func(x *owner.LeaseStats) uint64 { return x.Unsynced })},
	}
}

// grantorMetrics are what a member has lent.
func grantorMetrics() []leaseMetric {
	return []leaseMetric{
		{name: "hot_keys", help: "Keys of this member that are hot.", gauge: true, values: single(func(x *owner.LeaseStats) uint64 { return uint64(x.HotKeys) })},
		{name: "lease_keys", help: "Keys of which this member lends parts.", gauge: true, values: single(func(x *owner.LeaseStats) uint64 { return uint64(x.LentKeys) })},
		{name: "lease_holders", help: "Members that hold leases of this one, summed over keys.", gauge: true, values: single(func(x *owner.LeaseStats) uint64 { return uint64(x.Holders) })},
		{name: "lease_unreachable_holders", help: "Holders with hits that have not been heard for 3 s.", gauge: true, values: single(func(x *owner.LeaseStats) uint64 { return uint64(x.Unreachable) })},
		{name: "lease_outstanding", help: "Hits that this member has lent and that may not be spent.", gauge: true, values: single(func(x *owner.LeaseStats) uint64 { return x.Outstanding })},
		{name: "lease_hits_total", help: "Hits lent, given back, and taken back of holders that were silent.", label: "event", values: func(x *owner.LeaseStats) map[string]uint64 {
			return map[string]uint64{"lent": x.Lent, "credited": x.Credited, "reclaimed": x.Reclaimed}
		}},
		{name: "lease_violations_total", help: "Breaches of the conditions that leases are safe by, each of which was prevented.", label: "condition", values: violations},
	}
}

func violations(x *owner.LeaseStats) map[string]uint64 {
	v := map[string]uint64{}
	for c, n := range x.Violations {
		if c > 0 { // they are counted from 1
			v[fmt.Sprintf("C%d", c)] = n
		}
	}
	return v
}

// leaseCollector tells Prometheus of leases and hot keys.
type leaseCollector struct {
	metrics []leaseMetric
	descs   []*prometheus.Desc
	size    *prometheus.Desc
}

func newLeaseCollector() leaseCollector {
	f := leaseCollector{
		metrics: append(holderMetrics(), grantorMetrics()...),
		size:    prometheus.NewDesc("keyward_lease_size", "Hits of one grant to this member.", nil, nil),
	}
	for _, m := range f.metrics {
		labels := []string{m.label}
		if m.label == "" {
			labels = nil
		}
		f.descs = append(f.descs, prometheus.NewDesc("keyward_"+m.name, m.help, labels, nil))
	}
	return f
}

func (f *leaseCollector) collect(ch chan<- prometheus.Metric, x *owner.LeaseStats) {
	for i, m := range f.metrics {
		kind := prometheus.CounterValue
		if m.gauge {
			kind = prometheus.GaugeValue
		}
		for label, v := range m.values(x) {
			labels := []string{label}
			if m.label == "" {
				labels = nil
			}
			ch <- prometheus.MustNewConstMetric(f.descs[i], kind, float64(v), labels...)
		}
	}
	ch <- prometheus.MustNewConstSummary(f.size, x.Granted, float64(x.GrantedHits), nil)
}
