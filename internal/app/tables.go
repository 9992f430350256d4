package app

import "github.com/prometheus/client_golang/prometheus"

// newTables returns the metric of the largest numbers of exact counters, of this member and of one domain. Its
// defaults are those of owner.Options.
func newTables(f *flags) prometheus.Collector {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "keyward_keys_max", Help: "Largest number of exact counters: of this member, and of one domain.",
	}, []string{"of"})
	quota := f.DomainQuota
	if quota == 0 {
		quota = max(1, f.MaxKeys/2)
	}
	v.WithLabelValues("member").Set(float64(f.MaxKeys))
	v.WithLabelValues("domain").Set(float64(quota))
	return v
}
