package stats

import (
	"bytes"
	"hash/maphash"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
)

// RuleStats are the statistics of a rule, or of one of its keys. It fills one cache line and contains no pointers. A
// request updates two or three of its counters, and those of no other rule.
type RuleStats struct {
	TotalHits               StatCounter
	OverLimit               StatCounter
	NearLimit               StatCounter
	OverLimitWithLocalCache StatCounter
	WithinLimit             StatCounter
	ShadowMode              StatCounter
	TotalNegativeHits       StatCounter
	_                       [8]byte
}

// each visits the counters that are not 0.
func (r *RuleStats) each(base string, visit func(c *StatCounter, base, suffix string)) {
	show := func(c *StatCounter, suffix string) {
		if c.Value() != 0 {
			visit(c, base, suffix)
		}
	}
	show(&r.TotalHits, ".total_hits")
	show(&r.OverLimit, ".over_limit")
	show(&r.NearLimit, ".near_limit")
	show(&r.OverLimitWithLocalCache, ".over_limit_with_local_cache")
	show(&r.WithinLimit, ".within_limit")
	show(&r.ShadowMode, ".shadow_mode")
	show(&r.TotalNegativeHits, ".total_negative_hits")
}

const (
	prefix = "ratelimit.service.rate_limit."

	// other is the name for all keys beyond the limit on series. It must not begin with two underscores, because
	// ".__" begins a tag in the statsd dialect of envoyproxy/ratelimit.
	other = "_other_"

	// keyBytes is the length of the longest key with its own series. Values may have 64 KiB.
	keyBytes = 1024

	shards = 64
)

// ruleTable maps keys to statistics. The keys are spread over shards, so that processors rarely contend for a lock. A
// shard's lock is taken before that of the table.
type ruleTable struct {
	seed    maphash.Seed
	clean   *cleaner
	metrics *metrics
	budget  int64
	used    atomic.Int64 // number of dynamic series
	shards  [shards]shard

	mu     sync.RWMutex
	series map[string]*RuleStats // by full name; guarded by mu
}

type shard struct {
	mu   sync.RWMutex
	keys map[string]*RuleStats // by the key in the request; guarded by mu
	_    [64]byte              // keeps the locks of adjacent shards on different cache lines
}

func newTable(budget int, m *metrics) *ruleTable {
	t := &ruleTable{seed: maphash.MakeSeed(), clean: newCleaner(), metrics: m, budget: int64(budget),
		series: map[string]*RuleStats{}}
	for i := range t.shards {
		t.shards[i].keys = map[string]*RuleStats{}
	}
	return t
}

// fixed returns the statistics of a configured key.
func (t *ruleTable) fixed(key string) *RuleStats {
	s := &t.shards[maphash.String(t.seed, key)%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.keys[key]; ok {
		return r
	}
	r := t.named(prefix + t.clean.name(key))
	s.keys[strings.Clone(key)] = r
	return r
}

// dynamic returns the statistics of a key from a request.
func (t *ruleTable) dynamic(key []byte) *RuleStats {
	if len(key) > keyBytes {
		return t.overflow(key)
	}
	s := &t.shards[maphash.Bytes(t.seed, key)%shards]
	s.mu.RLock()
	r, ok := s.keys[string(key)]
	s.mu.RUnlock()
	if ok {
		return r
	}
	if t.used.Load() >= t.budget {
		return t.overflow(key)
	}
	return t.admit(s, string(key))
}

func (t *ruleTable) admit(s *shard, key string) *RuleStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.keys[key]; ok {
		return r
	}
	if t.used.Add(1) > t.budget {
		t.used.Add(-1)
		return t.overflow([]byte(key))
	}
	r := t.named(prefix + t.clean.name(key))
	s.keys[key] = r
	t.metrics.series.Set(float64(t.used.Load()))
	return r
}

// overflow returns the statistics that keys of one domain share. Domains of rules come from the configuration, so
// there are few.
func (t *ruleTable) overflow(key []byte) *RuleStats {
	t.metrics.overflow.Inc()
	domain := key
	if i := bytes.IndexByte(key, '.'); i >= 0 {
		domain = key[:i]
	}
	var room [len(prefix) + 256 + len(other) + 1]byte
	if len(domain) > 256 {
		domain = domain[:256]
	}
	name := append(room[:0], prefix...)
	name = append(name, domain...)
	name = append(append(name, '.'), other...)
	for i := len(prefix); i < len(name); i++ {
		if name[i] == ':' || name[i] == '|' {
			name[i] = '_'
		}
	}
	t.mu.RLock()
	r, ok := t.series[string(name)]
	t.mu.RUnlock()
	if ok {
		return r
	}
	return t.named(string(name))
}

// named returns the series with a full name. Keys that differ only in characters that a name cannot contain share it,
// as they do in envoyproxy/ratelimit.
func (t *ruleTable) named(name string) *RuleStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return getOrCreate(t.series, name)
}

func (t *ruleTable) each(visit func(c *StatCounter, base, suffix string)) {
	type named struct {
		name string
		rule *RuleStats
	}
	t.mu.RLock()
	all := make([]named, 0, len(t.series))
	for name, r := range t.series {
		all = append(all, named{name, r})
	}
	t.mu.RUnlock()
	for _, n := range all {
		n.rule.each(n.name, visit)
	}
}

// domainCounters are the counters of unknown domains, up to a limit.
type domainCounters struct {
	clean  *cleaner
	budget int

	mu sync.RWMutex
	at map[string]*StatCounter // by the domain in the request; guarded by mu
}

func newNames(budget int) *domainCounters {
	return &domainCounters{clean: newCleaner(), budget: budget, at: map[string]*StatCounter{}}
}

func (n *domainCounters) counter(domain string, s *StatStore) *StatCounter {
	n.mu.RLock()
	c, ok := n.at[domain]
	full := len(n.at) >= n.budget
	n.mu.RUnlock()
	if ok {
		return c
	}
	if full || len(domain) > keyBytes {
		s.metrics.overflow.Inc()
		return s.Counter(prefix + other + ".domain_not_found")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if c, ok := n.at[domain]; ok {
		return c
	}
	c = s.Counter(prefix + n.clean.name(domain) + ".domain_not_found")
	n.at[strings.Clone(domain)] = c
	return c
}

// cleaner turns keys into names.
type cleaner struct {
	marks *strings.Replacer
	ipv4  *regexp.Regexp
}

func newCleaner() *cleaner {
	return &cleaner{
		marks: strings.NewReplacer(":", "_", "|", "_"),
		ipv4:  regexp.MustCompile(`[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}`),
	}
}

// name replaces characters with a meaning in statsd lines, and the dots of IPv4 addresses, which would separate
// levels.
func (c *cleaner) name(key string) string {
	return c.ipv4.ReplaceAllStringFunc(c.marks.Replace(key), func(ip string) string {
		return strings.ReplaceAll(ip, ".", "_")
	})
}
