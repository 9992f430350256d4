package stats

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/envoyproxy/ratelimit/src/utils"
)

// values returns the counters of a store that are not 0, by full name.
func values(s *StatStore) map[string]uint64 {
	m := map[string]uint64{}
	s.eachCounter(func(c *StatCounter, base, suffix string) { m[base+suffix] += c.Value() })
	return m
}

func TestRuleKeepsItsCounters(t *testing.T) {
	s := New(Options{})
	a := s.Rule("domain.key_value")
	a.TotalHits.Add(3)
	if b := s.RuleBytes([]byte("domain.key_value")); b != a {
		t.Error("the same key has two sets of counters")
	}
	s.RuleBytes([]byte("domain.key_other")).OverLimit.Add(1)
	s.Rule("domain.never_hit")
	got := fmt.Sprint(values(s))
	want := "map[ratelimit.service.rate_limit.domain.key_other.over_limit:1 ratelimit.service.rate_limit.domain.key_value.total_hits:3]"
	if got != want {
		t.Errorf("got %s", got)
	}
}

func TestNamesOfRules(t *testing.T) {
	s := New(Options{})
	r := s.Rule("d.remote_address_10.0.0.1:80|x")
	for i, c := range []*StatCounter{&r.TotalHits, &r.OverLimit, &r.NearLimit, &r.OverLimitWithLocalCache, &r.WithinLimit, &r.ShadowMode, &r.TotalNegativeHits} {
		c.Add(uint64(i) + 1)
	}
	got := values(s)
	for i, suffix := range strings.Fields("total_hits over_limit near_limit over_limit_with_local_cache within_limit shadow_mode total_negative_hits") {
		name := "ratelimit.service.rate_limit.d.remote_address_10_0_0_1_80_x." + suffix
		if got[name] != uint64(i)+1 {
			t.Errorf("%s = %d, want %d", name, got[name], i+1)
		}
	}
	if s.RuleBytes([]byte("d.remote_address_10.0.0.1_80_x")) != r {
		t.Error("keys that have one name have two sets of counters")
	}
}

func TestRuleFillsOneCacheLine(t *testing.T) {
	if n := unsafe.Sizeof(RuleStats{}); n != 64 {
		t.Errorf("a Rule has %d bytes, want 64", n)
	}
	if at := uintptr(unsafe.Pointer(New(Options{}).Rule("a"))); at%64 != 0 {
		t.Errorf("a Rule lies at %#x, across two lines", at)
	}
}

func TestBudget(t *testing.T) {
	s := New(Options{Series: 2, Domains: 2})
	for i := range 10 {
		s.RuleBytes(fmt.Appendf(nil, "d.k_%d", i)).TotalHits.Add(1)
		s.RuleBytes(fmt.Appendf(nil, "e:x.k_%d", i)).TotalHits.Add(1)
		s.DomainNotFound(fmt.Sprintf("unknown%d", i)).Add(1)
	}
	s.RuleBytes([]byte("f." + strings.Repeat("x", keyBytes))).TotalHits.Add(1)
	s.Rule("d.configured").TotalHits.Add(7)
	got := values(s)
	want := map[string]uint64{
		"d.k_0.total_hits": 1, "e_x.k_0.total_hits": 1, "d._other_.total_hits": 9, "e_x._other_.total_hits": 9, "f._other_.total_hits": 1,
		"d.configured.total_hits": 7, "unknown0.domain_not_found": 1, "unknown1.domain_not_found": 1, "_other_.domain_not_found": 8,
	}
	for k, v := range want {
		if got[prefix+k] != v {
			t.Errorf("%s = %d, want %d", k, got[prefix+k], v)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d series: %v", len(got), got)
	}
}

// Whatever the limit on series, no hit is lost, and the series stay below it.
func TestBudgetUnderConcurrency(t *testing.T) {
	s := New(Options{Series: 100})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 1000 {
				s.RuleBytes(fmt.Appendf(nil, "d.k_%d", (i*7+g)%500)).TotalHits.Add(1)
			}
		})
	}
	wg.Wait()
	sum := uint64(0)
	got := values(s)
	for _, v := range got {
		sum += v
	}
	if sum != 8000 || len(got) > 101 {
		t.Errorf("%d hits in %d series", sum, len(got))
	}
}

func TestLookUpAllocatesNothing(t *testing.T) {
	s := New(Options{Series: 1, Domains: 1})
	known, over, long := []byte("d.k_v"), []byte("d.k_w"), []byte("d."+strings.Repeat("x", 4096))
	s.RuleBytes(known)
	s.RuleBytes(over)
	s.DomainNotFound("a")
	c := s.Method("ShouldRateLimit")
	if _, err := NewCollector(s, CollectorOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func(){
		"known":  func() { s.RuleBytes(known).TotalHits.Add(1) },
		"over":   func() { s.RuleBytes(over).TotalHits.Add(1) },
		"long":   func() { s.RuleBytes(long).TotalHits.Add(1) },
		"domain": func() { s.DomainNotFound("a").Add(1) },
		"method": func() { c.TotalRequests.Add(1); c.ResponseTime.Observe(1) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// The sanitizer of envoyproxy/ratelimit is the oracle.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"", "a:b|c", "10.0.0.1", "1.2.3.4.5", "1111.2.3.4", "a_1.2.3.4_b.5.6.7.8", "\xff.1.2.3.4", "٣.1.1.1.1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if got, want := newCleaner().name(key), utils.SanitizeStatName(key); got != want {
			t.Errorf("%q: got %q, want %q", key, got, want)
		}
	})
}

func BenchmarkRuleBytes(b *testing.B) {
	s := New(Options{})
	key := []byte("domain.remote_address_10.0.0.1")
	b.ReportAllocs()
	for b.Loop() {
		r := s.RuleBytes(key)
		r.TotalHits.Add(1)
		r.WithinLimit.Add(1)
	}
}

func BenchmarkResponseTime(b *testing.B) {
	s := New(Options{})
	if _, err := NewCollector(s, CollectorOptions{}); err != nil {
		b.Fatal(err)
	}
	m := s.Method("ShouldRateLimit")
	for b.Loop() {
		m.TotalRequests.Add(1)
		m.ResponseTime.Observe(50_000)
	}
}
