package ringcheck

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/keyward/keyward/ring"
)

// Envoy's limits and defaults of a RING_HASH cluster.
const (
	defaultMinimumRing = 1024
	maximumRing        = 8388608
	highestPriority    = 128
)

// EnvoyCluster is the configuration of an Envoy cluster with a RING_HASH policy.
type EnvoyCluster struct {
	MinimumRingSize  uint64 // minimum number of points; 0 means 1024
	MaximumRingSize  uint64 // maximum number of points; 0 means 8388608
	HashFunction     ring.HashFunction
	UseHostname      bool     // use_hostname_for_hashing
	LocalityWeighted bool     // locality_weighted_lb_config is present
	PanicThreshold   *float64 // healthy_panic_threshold in percent; nil means 50
	Overprovisioning uint32   // overprovisioning_factor in percent; 0 means 140
	Local            Locality // Envoy's own locality; it only affects the order of hosts
	Hosts            []Host   // in the order of the load assignment
}

// Host is one endpoint of a Cluster.
type Host struct {
	HashKey        string // metadata envoy.lb hash_key, where it is a string
	Hostname       string
	Address        string // IP:port as Envoy prints it, or the path of a unix socket
	Weight         uint32 // 0 means 1
	Health         HostHealth
	Priority       uint32
	Locality       Locality
	LocalityWeight uint32 // weight of the locality; 0 excludes it if the cluster is LocalityWeighted
}

// HostHealth is a host's health_status. The numbers are those of the Envoy API.
type HostHealth uint8

// The health statuses.
const (
	Unknown HostHealth = iota // treated as healthy
	Healthy
	Unhealthy
	Draining
	Timeout
	Degraded
)

// inRing reports whether a host with health h is on the ring of a priority that does not panic.
func (h HostHealth) inRing() bool { return h == Unknown || h == Healthy }

// Locality is the location of a host.
type Locality struct{ Region, Zone, SubZone string }

func (l Locality) compare(o Locality) int {
	return cmp.Or(cmp.Compare(l.Region, o.Region), cmp.Compare(l.Zone, o.Zone), cmp.Compare(l.SubZone, o.SubZone))
}

// hashKey returns the string from which the points of h are hashed. With useHostname it is empty for a host without a
// hostname, because Envoy does not fall back to the address.
func (h *Host) hashKey(useHostname bool) string {
	if h.HashKey == "" && useHostname {
		return h.Hostname
	}
	return cmp.Or(h.HashKey, h.Address)
}

// Gauges are Envoy's cluster.NAME.ring_hash_lb.* gauges.
type Gauges struct{ Size, MinHashesPerHost, MaxHashesPerHost uint64 }

// EnvoyRing is the ring that Envoy builds from an EnvoyCluster. It is immutable and safe for concurrent use.
type EnvoyRing struct {
	levels []circle // by priority
	load   loads
	hosts  []int
	gauges Gauges
}

// Build computes the ring exactly as Envoy 1.40 on x86-64 does. The error lists every reason for which Envoy would
// reject the cluster. If two hosts share a hash key, Envoy's choice is undefined; Build uses the host that Envoy sorts
// first.
func (c EnvoyCluster) Build() (*EnvoyRing, error) {
	c.MinimumRingSize = cmp.Or(c.MinimumRingSize, defaultMinimumRing)
	c.MaximumRingSize = cmp.Or(c.MaximumRingSize, maximumRing)
	if err := c.validate(); err != nil {
		return nil, err
	}
	levels := c.byPriority()
	load, panics := c.distribute(levels)
	r := &EnvoyRing{levels: make([]circle, len(levels)), load: load}
	for p, hosts := range levels {
		if !panics[p] {
			hosts = slices.DeleteFunc(slices.Clone(hosts), func(i int) bool { return !c.Hosts[i].Health.inRing() })
		}
		weights := c.normalize(hosts, levels[p])
		if len(weights) == 0 {
			continue
		}
		r.levels[p], r.gauges = c.place(weights)
		for _, w := range weights {
			r.hosts = append(r.hosts, w.host)
		}
	}
	slices.Sort(r.hosts)
	return r, nil
}

func (c *EnvoyCluster) validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if c.MaximumRingSize > maximumRing {
		fault("maximum_ring_size %d: at most %d is allowed", c.MaximumRingSize, maximumRing)
	}
	if c.MinimumRingSize > c.MaximumRingSize {
		fault("minimum_ring_size %d: above maximum_ring_size %d", c.MinimumRingSize, c.MaximumRingSize)
	}
	if c.HashFunction > ring.Murmur2 {
		fault("hash_function %d: unknown", c.HashFunction)
	}
	if t := c.PanicThreshold; t != nil && !(*t >= 0 && *t <= 100) {
		fault("healthy_panic_threshold %v: must be 0 to 100", *t)
	}
	sums := map[uint32]uint64{}
	for i := range c.Hosts {
		h := &c.Hosts[i]
		if h.HashKey == "" && h.Address == "" && !c.UseHostname {
			fault("host %d: has neither hash key nor address", i)
		}
		if h.Health > Degraded {
			fault("host %d: unknown health status %d", i, h.Health)
		}
		if h.Priority > highestPriority {
			fault("host %d: priority %d, at most %d is allowed", i, h.Priority, highestPriority)
		}
		sums[h.Priority] += uint64(max(h.Weight, 1))
		if s := sums[h.Priority]; s > math.MaxUint32 && s-uint64(max(h.Weight, 1)) <= math.MaxUint32 {
			fault("host %d: weights of priority %d add up to more than %d", i, h.Priority, uint32(math.MaxUint32))
		}
	}
	return errors.Join(faults...)
}

// byPriority returns the indices of the hosts of each priority, in their order.
func (c *EnvoyCluster) byPriority() [][]int {
	levels := make([][]int, 1)
	for i := range c.Hosts {
		for uint32(len(levels)) <= c.Hosts[i].Priority {
			levels = append(levels, nil)
		}
		levels[c.Hosts[i].Priority] = append(levels[c.Hosts[i].Priority], i)
	}
	return levels
}

// weighted is a host with its share of the ring.
type weighted struct {
	host   int
	weight float64
}

// normalize returns the hosts of a priority's ring with their shares of it. in are the hosts on the ring; all are the
// hosts of the priority, whose localities count even if none of their hosts is on the ring.
func (c *EnvoyCluster) normalize(in, all []int) []weighted {
	if !c.LocalityWeighted {
		return c.share(nil, in, 1)
	}
	weights := map[Locality]uint64{}
	for _, i := range all {
		weights[c.Hosts[i].Locality] = uint64(c.Hosts[i].LocalityWeight)
	}
	sum, order := uint64(0), make([]Locality, 0, len(weights))
	for l, w := range weights {
		sum, order = sum+w, append(order, l)
	}
	slices.SortFunc(order, func(a, b Locality) int {
		return cmp.Or(c.foreign(a)-c.foreign(b), a.compare(b))
	})
	members := map[Locality][]int{}
	for _, i := range in {
		members[c.Hosts[i].Locality] = append(members[c.Hosts[i].Locality], i)
	}
	var out []weighted
	for _, l := range order {
		if w := weights[l]; w != 0 {
			out = c.share(out, members[l], float64(w)/float64(sum))
		}
	}
	return out
}

// foreign returns 0 for Envoy's own locality, which comes first, and 1 for the others.
func (c *EnvoyCluster) foreign(l Locality) int {
	if c.Local != (Locality{}) && l == c.Local {
		return 0
	}
	return 1
}

// share appends hosts to out, with the given part of the ring divided among them by weight.
func (c *EnvoyCluster) share(out []weighted, hosts []int, part float64) []weighted {
	sum := uint64(0)
	for _, i := range hosts {
		sum += uint64(max(c.Hosts[i].Weight, 1))
	}
	for _, i := range hosts {
		out = append(out, weighted{i, float64(max(c.Hosts[i].Weight, 1)) * part / float64(sum)})
	}
	return out
}

// place creates the points of one priority's ring. The host with the lowest weight gets an integral number of points.
// Running sums of doubles, added in this order, determine how many the others get.
func (c *EnvoyCluster) place(weights []weighted) (circle, Gauges) {
	least := 1.0
	for _, w := range weights {
		least = min(least, w.weight)
	}
	// The conversions prevent fused multiply-add, which Envoy's x86-64 builds do not use.
	scale := min(math.Ceil(float64(least*float64(c.MinimumRingSize)))/least, float64(c.MaximumRingSize))
	g := Gauges{Size: uint64(math.Ceil(scale)), MinHashesPerHost: uint64(math.Ceil(scale))}
	points := make([]point, 0, g.Size+1)
	current, target := 0.0, 0.0
	for _, w := range weights {
		target += float64(scale * w.weight)
		n := uint64(0)
		for current < target {
			current++
			n++
		}
		points = c.appendPoints(points, w.host, n)
		g.MinHashesPerHost, g.MaxHashesPerHost = min(g.MinHashesPerHost, n), max(g.MaxHashesPerHost, n)
	}
	return newCircle(points), g
}

// Owner returns the index in Hosts of the host to which Envoy sends a request with hash h, or -1 if it answers 503.
func (r *EnvoyRing) Owner(h uint64) int { return r.levels[r.load.priority(h)].owner(h) }

// Successor returns the index of the host to which a retry with previous_hosts goes, the next distinct host on the same
// ring, or -1 if there is none.
func (r *EnvoyRing) Successor(h uint64) int { return r.levels[r.load.priority(h)].successor(h) }

// Hosts returns the indices of the hosts on the rings of all priorities, in ascending order.
func (r *EnvoyRing) Hosts() []int { return slices.Clone(r.hosts) }

// Gauges returns the gauges of the last priority that has a ring. In Envoy all priorities write the same gauges.
func (r *EnvoyRing) Gauges() Gauges { return r.gauges }
