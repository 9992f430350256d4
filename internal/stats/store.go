// Package stats keeps the statistics of envoyproxy/ratelimit and exports them to Prometheus, statsd and DogStatsD.
// The service adds to the counters of a [Store]. A [Collector] maps their dotted names at each scrape, and a [Statsd]
// sends their increments.
package stats

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// StatCounter is a counter that only increases. Its zero value is 0. Adding takes one atomic instruction.
type StatCounter struct{ n atomic.Uint64 }

// Add adds n.
func (c *StatCounter) Add(n uint64) { c.n.Add(n) }

// Value returns the sum of what was added.
func (c *StatCounter) Value() uint64 { return c.n.Load() }

// Gauge holds the last value that was set. Its zero value is 0.
type Gauge struct{ n atomic.Uint64 }

// Set replaces the value.
func (g *Gauge) Set(n uint64) { g.n.Store(n) }

// Value returns the last value.
func (g *Gauge) Value() uint64 { return g.n.Load() }

// Timer passes durations on to its observers. It keeps none.
type Timer struct {
	name string
	to   atomic.Pointer[[]observer]
}

// Observe passes a duration to all observers.
func (t *Timer) Observe(d time.Duration) {
	if to := t.to.Load(); to != nil {
		for _, o := range *to {
			o.observe(d)
		}
	}
}

// observer receives the durations of a timer. observe may be called concurrently and must not block.
type observer interface{ observe(time.Duration) }

// MethodStats are the statistics of one gRPC method.
type MethodStats struct {
	TotalRequests *StatCounter
	ResponseTime  *Timer
}

// Options configure a Store. The zero value uses the defaults.
type Options struct {
	Series     int                   // largest number of series with dynamic keys; default 10,000
	Domains    int                   // largest number of unknown domains with their own counter; default 1,000
	Registerer prometheus.Registerer // for the keyward_stats_* metrics; nil: not registered
}

// StatStore holds all statistics by their dotted names. It returns the same statistic for the same name, also after the
// rules are reloaded. It is safe for concurrent use.
type StatStore struct {
	metrics *metrics
	rules   *ruleTable
	domains *domainCounters

	// A listener is called with timing held. It may take its own lock, under which mu may be taken. The order is
	// timing, the listener's lock, mu.
	timing    sync.Mutex
	timers    map[string]*Timer            // guarded by timing
	listeners []func(name string) observer // guarded by timing

	mu         sync.Mutex
	counters   map[string]*StatCounter // guarded by mu
	gauges     map[string]*Gauge       // guarded by mu
	generators []func()                // guarded by mu
}

// New returns an empty Store.
func New(o Options) *StatStore {
	if o.Series <= 0 {
		o.Series = 10_000
	}
	if o.Domains <= 0 {
		o.Domains = 1_000
	}
	s := &StatStore{
		metrics:  newMetrics(o.Registerer),
		counters: map[string]*StatCounter{}, gauges: map[string]*Gauge{}, timers: map[string]*Timer{},
	}
	s.rules = newTable(o.Series, s.metrics)
	s.domains = newNames(o.Domains)
	return s
}

// Counter returns the counter with the given name.
func (s *StatStore) Counter(name string) *StatCounter {
	s.mu.Lock()
	defer s.mu.Unlock()
	return getOrCreate(s.counters, name)
}

// Gauge returns the gauge with the given name.
func (s *StatStore) Gauge(name string) *Gauge {
	s.mu.Lock()
	defer s.mu.Unlock()
	return getOrCreate(s.gauges, name)
}

// Timer returns the timer with the given name.
func (s *StatStore) Timer(name string) *Timer {
	s.timing.Lock()
	defer s.timing.Unlock()
	if t, ok := s.timers[name]; ok {
		return t
	}
	t := &Timer{name: name}
	s.timers[name] = t
	for _, listen := range s.listeners {
		t.add(listen(name))
	}
	return t
}

// Method returns the statistics of a gRPC method, by its bare name.
func (s *StatStore) Method(name string) MethodStats {
	return MethodStats{s.Counter("ratelimit_server." + name + ".total_requests"),
		s.Timer("ratelimit_server." + name + ".response_time")}
}

// Rule returns the statistics of a rule whose key is fixed by the configuration. Such keys always have a series.
func (s *StatStore) Rule(key string) *RuleStats { return s.rules.fixed(key) }

// RuleBytes returns the statistics of a key that contains parts of a request. It does not allocate for a known key.
// Beyond the limit on series, the keys of a domain share one.
func (s *StatStore) RuleBytes(key []byte) *RuleStats { return s.rules.dynamic(key) }

// DomainNotFound returns the counter of requests for a domain without rules. Beyond the limit, domains share one
// counter.
func (s *StatStore) DomainNotFound(domain string) *StatCounter {
	return s.domains.counter(domain, s)
}

// BeforeRead registers a function that is called before the statistics are read, to set gauges. f must be fast.
func (s *StatStore) BeforeRead(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.generators = append(s.generators, f)
}

// listen adds an observer to every present and future timer. A nil observer is skipped.
func (s *StatStore) listen(f func(name string) observer) {
	s.timing.Lock()
	defer s.timing.Unlock()
	s.listeners = append(s.listeners, f)
	for name, t := range s.timers {
		t.add(f(name))
	}
}

func (t *Timer) add(o observer) {
	if o == nil {
		return
	}
	var to []observer
	if old := t.to.Load(); old != nil {
		to = slices.Clone(*old)
	}
	to = append(to, o)
	t.to.Store(&to)
}

// generate calls the functions of BeforeRead, without the lock: they use the Store.
func (s *StatStore) generate() {
	s.mu.Lock()
	fs := slices.Clone(s.generators)
	s.mu.Unlock()
	for _, f := range fs {
		f()
	}
}

// eachCounter visits every counter that is not 0. The name is passed in two parts, so that it need not be built.
func (s *StatStore) eachCounter(visit func(c *StatCounter, base, suffix string)) {
	s.mu.Lock()
	counters := maps.Clone(s.counters)
	s.mu.Unlock()
	for name, c := range counters {
		if c.Value() != 0 {
			visit(c, name, "")
		}
	}
	s.rules.each(visit)
}

func (s *StatStore) eachGauge(visit func(g *Gauge, name string)) {
	s.mu.Lock()
	gauges := maps.Clone(s.gauges)
	s.mu.Unlock()
	for name, g := range gauges {
		visit(g, name)
	}
}

func getOrCreate[T any](m map[string]*T, name string) *T {
	v, ok := m[name]
	if !ok {
		v = new(T)
		m[name] = v
	}
	return v
}
