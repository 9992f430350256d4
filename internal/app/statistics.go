package app

import (
	"github.com/keyward/keyward/internal/stats"
)

// startStats exports envoyproxy/ratelimit's statistics to Prometheus, and to statsd if the environment configures it.
func (m *sidecar) startStats() error {
	s := m.Settings.Stats
	m.stats.AddRuntime()
	if m.Settings.Behavior.LocalCacheBytes > 0 {
		m.stats.BeforeRead(m.denyCacheStats())
	}
	c, err := stats.NewCollector(m.stats, stats.CollectorOptions{MapperFile: s.MapperFile, Milliseconds: s.Milliseconds, Tags: s.Tags})
	if err != nil {
		return err
	}
	if err := m.reg.Register(c); err != nil {
		return err
	}
	if s.Disabled || !s.Statsd && !s.DogStatsd {
		return nil
	}
	m.statsd, err = stats.StartStatsd(m.stats, stats.StatsdOptions{
		Address: join(s.Host, s.Port), Network: s.Network, Dog: s.DogStatsd, Interval: s.FlushInterval,
		Tags: s.Tags, DogTags: s.DogTags, Mogrifiers: s.Mogrifiers, Logger: m.Log,
	})
	return err
}

// denyCacheStats returns a function that exports the deny cache under the names of envoyproxy/ratelimit's local
// cache. The names that concern evictions of a particular implementation would always be zero and are left out.
func (m *sidecar) denyCacheStats() func() {
	gauge := func(name string) *stats.Gauge { return m.stats.Gauge("ratelimit.localcache." + name) }
	hits, misses, lookups, entries := gauge("hitCount"), gauge("missCount"), gauge("lookupCount"), gauge("entryCount")
	return func() {
		f := m.peer.Stats()
		hits.Set(f.DenyHits)
		misses.Set(f.DenyMisses)
		lookups.Set(f.DenyHits + f.DenyMisses)
		entries.Set(uint64(f.DenyKeys))
	}
}
