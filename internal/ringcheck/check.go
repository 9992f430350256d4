// Package ringcheck builds the ring that Envoy builds from a cluster and compares it with answers recorded from a real
// Envoy. It is for `keyward ring check` and for tests; members use package ring.
package ringcheck

import (
	"fmt"
	"slices"
)

// Comparison is the outcome of checking one file of vectors.
type Comparison struct {
	Name     string
	Passed   int      // requests that go to the recorded host
	Failed   int      // requests that do not, plus one for each other difference from Envoy's ring
	Failures []string // descriptions of the first few
}

// maxFailures is the number of failures that a Comparison describes.
const maxFailures = 10

func (r *Comparison) fail(n int, format string, args ...any) {
	r.Failed += n
	if len(r.Failures) < maxFailures {
		r.Failures = append(r.Failures, fmt.Sprintf(format, args...))
	}
}

// Check builds the cluster, and the ring of members that adopt it if they can, and compares both with the recorded
// answers. Envoy sends a request without the header to a
// random host, so any host in the ring passes.
func (v *Vectors) Check() Comparison {
	res := Comparison{Name: v.Name}
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
	adopted, hosts := v.Cluster.Adopt()
	if v.HostsInRing != nil && !slices.Equal(in, slices.Sorted(slices.Values(v.HostsInRing))) {
		res.fail(1, "hosts in ring: %v, envoy had %v", in, v.HostsInRing)
	}
	for i, q := range v.Requests {
		h, hashed := hashHeader(v.Header, q.Lines...)
		if !hashed && slices.Contains(in, q.Host) {
			res.Passed++
			continue
		}
		got := NoHost
		if o := r.Owner(h); o >= 0 {
			got = v.IDs[o]
		}
		if got != q.Host {
			res.fail(1, "request %d, %.40q: host %d, envoy chose %d", i, q.Lines, got, q.Host)
			continue
		}
		if adopted != nil && hosts[adopted.Owner(h)] != r.Owner(h) {
			res.fail(1, "request %d, %.40q: members that adopt this ring choose host %d, envoy chose %d",
				i, q.Lines, v.IDs[hosts[adopted.Owner(h)]], q.Host)
			continue
		}
		res.Passed++
	}
	return res
}
