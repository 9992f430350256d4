package ring

import (
	"fmt"
	"slices"
)

// CheckResult is what became of checking one file of vectors.
type CheckResult struct {
	Name     string
	Passed   int      // requests that go where they went
	Failed   int      // requests that do not, and one more for each other difference from Envoy's ring
	Failures []string // the first few, told
}

// toldFailures is how many failures a Result tells.
const toldFailures = 10

func (r *CheckResult) fail(n int, format string, args ...any) {
	r.Failed += n
	if len(r.Failures) < toldFailures {
		r.Failures = append(r.Failures, fmt.Sprintf(format, args...))
	}
}

// Check builds the cluster and compares it with what Envoy did. A request that had no header went to a random host, so
// any host of the ring is right.
func (v *Vectors) Check() CheckResult {
	res := CheckResult{Name: v.Name}
	r, err := v.Cluster.Build()
	if err != nil {
		res.fail(max(1, len(v.Requests)), "cluster: %v", err)
		return res
	}
	if v.Gauges != nil && *v.Gauges != r.Gauges() {
		res.fail(1, "gauges: %+v, envoy had %+v", r.Gauges(), *v.Gauges)
	}
	in := make([]int, 0, len(r.hosts))
	for _, i := range r.hosts {
		in = append(in, v.IDs[i])
	}
	slices.Sort(in)
	if v.HostsInRing != nil && !slices.Equal(in, slices.Sorted(slices.Values(v.HostsInRing))) {
		res.fail(1, "hosts in ring: %v, envoy had %v", in, v.HostsInRing)
	}
	for i, q := range v.Requests {
		h, hashed := HashHeader(v.Header, q.Lines...)
		if !hashed && slices.Contains(in, q.Host) {
			res.Passed++
			continue
		}
		got := Nobody
		if o := r.Owner(h); o >= 0 {
			got = v.IDs[o]
		}
		if got != q.Host {
			res.fail(1, "request %d, %.40q: host %d, envoy chose %d", i, q.Lines, got, q.Host)
			continue
		}
		res.Passed++
	}
	return res
}
