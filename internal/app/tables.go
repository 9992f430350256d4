package app

import "github.com/prometheus/client_golang/prometheus"

// newTables says how many counters this member keeps exactly, in all and of one domain, so that what it has can be held
// against them. The options of owner have the same defaults.
func newTables(f *flags) prometheus.Collector {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "keyward_keys_max", Help: "Counters that this member keeps exactly, at most: of all domains, and of one domain.",
	}, []string{"of"})
	quota := f.DomainQuota
	if quota == 0 {
		quota = max(1, f.MaxKeys/2)
	}
	v.WithLabelValues("member").Set(float64(f.MaxKeys))
	v.WithLabelValues("domain").Set(float64(quota))
	return v
}
