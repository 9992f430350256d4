// Package stats keeps envoyproxy/ratelimit's statistics and tells them to Prometheus, statsd and DogStatsD: the service
// adds to counters of a [Store], a [Collector] maps their dotted names at scrape time, and a [Statsd] sends what was
// added since it last did.
package stats

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// StatCounter only rises. The zero Counter is ready; adding is one atomic instruction.
type StatCounter struct{ n atomic.Uint64 }

// Add adds n.
func (c *StatCounter) Add(n uint64) { c.n.Add(n) }

// Value is the sum of what was added.
func (c *StatCounter) Value() uint64 { return c.n.Load() }

// Gauge holds the last value set. The zero Gauge is ready.
type Gauge struct{ n atomic.Uint64 }

// Set replaces the value.
func (g *Gauge) Set(n uint64) { g.n.Store(n) }

// Value is what was last set.
func (g *Gauge) Value() uint64 { return g.n.Load() }

// Timer passes durations on to whoever listens; it keeps none itself.
type Timer struct {
	name string
	to   atomic.Pointer[[]observer]
}

// Observe tells the listeners of one duration.
func (t *Timer) Observe(d time.Duration) {
	if to := t.to.Load(); to != nil {
		for _, o := range *to {
			o.observe(d)
		}
	}
}

// observer takes the durations of one timer; concurrently, and without blocking.
type observer interface{ observe(time.Duration) }

// MethodStats is what is told of one gRPC method.
type MethodStats struct {
	TotalRequests *StatCounter
	ResponseTime  *Timer
}

// Options make a Store. The zero Options are ready for use.
type Options struct {
	Series     int                   // most series of dynamic keys; default 10,000
	Domains    int                   // most unknown domains that are told apart; default 1,000
	Registerer prometheus.Registerer // of the keyward_stats_* metrics; nil registers none
}

// Store holds every statistic by its dotted name. What is asked for twice is the same thing twice, also after a reload
// of the rules. It is safe for concurrent use.
type Store struct {
	metrics *metrics
	rules   *table
	domains *names

	// A listener is called under timing and may take a lock of its own, under which mu is taken: so timing comes first,
	// then the listener's, then mu.
	timing    sync.Mutex
	timers    map[string]*Timer            // guarded by timing
	listeners []func(name string) observer // guarded by timing

	mu         sync.Mutex
	counters   map[string]*StatCounter // guarded by mu
	gauges     map[string]*Gauge       // guarded by mu
	generators []func()                // guarded by mu
}

// New makes an empty Store.
func New(o Options) *Store {
	if o.Series <= 0 {
		o.Series = 10_000
	}
	if o.Domains <= 0 {
		o.Domains = 1_000
	}
	s := &Store{
		metrics:  newMetrics(o.Registerer),
		counters: map[string]*StatCounter{}, gauges: map[string]*Gauge{}, timers: map[string]*Timer{},
	}
	s.rules = newTable(o.Series, s.metrics)
	s.domains = newNames(o.Domains)
	return s
}

// Counter is the counter of that name.
func (s *Store) Counter(name string) *StatCounter {
	s.mu.Lock()
	defer s.mu.Unlock()
	return entry(s.counters, name)
}

// Gauge is the gauge of that name.
func (s *Store) Gauge(name string) *Gauge {
	s.mu.Lock()
	defer s.mu.Unlock()
	return entry(s.gauges, name)
}

// Timer is the timer of that name.
func (s *Store) Timer(name string) *Timer {
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

// Method is what is told of one gRPC method, by its bare name.
func (s *Store) Method(name string) MethodStats {
	return MethodStats{s.Counter("ratelimit_server." + name + ".total_requests"), s.Timer("ratelimit_server." + name + ".response_time")}
}

// Rule is the statistics of a rule whose key is fixed by the configuration. Such keys are never turned away.
func (s *Store) Rule(key string) *RuleStats { return s.rules.fixed(key) }

// RuleBytes is the statistics of a key that the request had a part in. It allocates nothing for a key that is known.
// Beyond the budget of series, keys share one per domain.
func (s *Store) RuleBytes(key []byte) *RuleStats { return s.rules.dynamic(key) }

// DomainNotFound counts questions of a domain that no rule names. Beyond the budget, domains share one counter.
func (s *Store) DomainNotFound(domain string) *StatCounter {
	return s.domains.counter(domain, s)
}

// BeforeRead has f called before the statistics are read, to set gauges. f must be quick.
func (s *Store) BeforeRead(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.generators = append(s.generators, f)
}

// listen has every timer, those to come included, tell an observer. An observer that is nil is left out.
func (s *Store) listen(f func(name string) observer) {
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

// generate runs the generators, without the lock: they ask the Store for gauges.
func (s *Store) generate() {
	s.mu.Lock()
	fs := slices.Clone(s.generators)
	s.mu.Unlock()
	for _, f := range fs {
		f()
	}
}

// eachCounter visits every counter that is not zero. The name comes in two parts so that it need not be built.
func (s *Store) eachCounter(visit func(c *StatCounter, base, suffix string)) {
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

func (s *Store) eachGauge(visit func(g *Gauge, name string)) {
	s.mu.Lock()
	gauges := maps.Clone(s.gauges)
	s.mu.Unlock()
	for name, g := range gauges {
		visit(g, name)
	}
}

func entry[T any](m map[string]*T, name string) *T {
	v, ok := m[name]
	if !ok {
		v = new(T)
		m[name] = v
	}
	return v
}
