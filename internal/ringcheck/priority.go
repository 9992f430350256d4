package ringcheck

// loads is the percentage of requests that each priority gets, for healthy and degraded hosts. All add up to 100.
type loads struct{ healthy, degraded []uint64 }

// priority selects a priority by hash. Requests for degraded hosts use the ring of the same priority, which has none.
func (l *loads) priority(h uint64) int {
	at, sum := h%100+1, uint64(0)
	for _, list := range [2][]uint64{l.healthy, l.degraded} {
		for p, load := range list {
			if sum += load; at <= sum {
				return p
			}
		}
	}
	return 0
}

// census counts the hosts of one priority.
type census struct{ all, draining, healthy, degraded uint64 }

// percent returns n as a percentage of the hosts that are not draining.
func (c census) percent(n uint64) float64 {
	if c.all == c.draining {
		return 0
	}
	return 100 * float64(n) / float64(c.all-c.draining)
}

// availability returns percent(n), overprovisioned by a factor in percent and capped at 100.
func (c census) availability(n, factor uint64) uint64 {
	if c.all == c.draining {
		return 0
	}
	return min(100, factor*n/(c.all-c.draining))
}

// census counts the given hosts by health.
func (c *EnvoyCluster) census(hosts []int) census {
	n := census{all: uint64(len(hosts))}
	for _, i := range hosts {
		switch h := c.Hosts[i].Health; {
		case h.inRing():
			n.healthy++
		case h == Draining:
			n.draining++
		case h == Degraded:
			n.degraded++
		}
	}
	return n
}

// panicBelow returns the panic threshold in whole percent, rounded as Envoy does.
func (c *EnvoyCluster) panicBelow() uint64 {
	if c.PanicThreshold == nil {
		return 50
	}
	return uint64(100 * (*c.PanicThreshold / 100))
}

// distribute returns the load of each priority and whether it panics. A priority that panics puts all its hosts on the
// ring.
func (c *EnvoyCluster) distribute(levels [][]int) (loads, []bool) {
	factor := uint64(c.Overprovisioning)
	if factor == 0 {
		factor = 140
	}
	counts := make([]census, len(levels))
	healthy, degraded := make([]uint64, len(levels)), make([]uint64, len(levels))
	total := uint64(0)
	for p, hosts := range levels {
		n := c.census(hosts)
		counts[p], healthy[p], degraded[p] = n, n.availability(n.healthy, factor), n.availability(n.degraded, factor)
		total += healthy[p] + degraded[p]
	}
	total = min(100, total)
	panics, all := make([]bool, len(levels)), true
	for p, n := range counts {
		panics[p] = total < 100 && n.percent(n.healthy)+n.percent(n.degraded) < float64(c.panicBelow())
		all = all && panics[p]
	}
	if all {
		return byHosts(counts), panics
	}
	return byAvailability(healthy, degraded, total), panics
}

// byAvailability fills the priorities in order, healthy hosts first. The rounding remainder goes to the first priority
// with an available host.
func byAvailability(healthy, degraded []uint64, total uint64) loads {
	l := loads{make([]uint64, len(healthy)), make([]uint64, len(healthy))}
	if total == 0 {
		l.healthy[0] = 100
		return l
	}
	left, first := uint64(100), (*uint64)(nil)
	fill := func(load, available []uint64) {
		for p, a := range available {
			if a > 0 && first == nil {
				first = &load[p]
			}
			load[p] = min(left, a*100/total)
			left -= load[p]
		}
	}
	fill(l.healthy, healthy)
	fill(l.degraded, degraded)
	*first += left
	return l
}

// byHosts divides the load by the number of hosts, whatever their health. It applies when all priorities panic.
func byHosts(counts []census) loads {
	l := loads{healthy: make([]uint64, len(counts))}
	sum, left, first := uint64(0), uint64(100), 0
	for p := len(counts) - 1; p >= 0; p-- {
		if sum += counts[p].all; counts[p].all > 0 {
			first = p
		}
	}
	for p, n := range counts {
		if sum > 0 {
			l.healthy[p] = 100 * n.all / sum
			left -= l.healthy[p]
		}
	}
	l.healthy[first] += left
	return l
}
