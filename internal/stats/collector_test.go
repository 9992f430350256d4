package stats

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
)

// scrape returns the text that Prometheus would read, without comments.
func scrape(t testing.TB, s *StatStore, o CollectorOptions) string {
	t.Helper()
	c, err := NewCollector(s, o)
	if err != nil {
		t.Fatal(err)
	}
	return gather(t, c)
}

func gather(t testing.TB, c *Collector) string {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		t.Fatalf("the scrape fails: %v", err)
	}
	var b bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	var lines []string
	for l := range strings.Lines(b.String()) {
		if !strings.HasPrefix(l, "#") {
			lines = append(lines, l)
		}
	}
	return strings.Join(lines, "")
}

func mapperFile(t testing.TB, text string) CollectorOptions {
	t.Helper()
	file := filepath.Join(t.TempDir(), "mapper.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return CollectorOptions{MapperFile: file}
}

func TestBuiltInNames(t *testing.T) {
	rows := []struct{ name, want string }{
		{"ratelimit.service.rate_limit.domain1.key1_val1.over_limit", `ratelimit_service_rate_limit_over_limit{domain="domain1",key1="key1_val1"} 1`},
		{"ratelimit.service.rate_limit.domain1.key3_val3.key4_val4.over_limit", `ratelimit_service_rate_limit_over_limit{domain="domain1",key1="key3_val3",key2="key4_val4"} 1`},
		{"ratelimit.service.rate_limit.d.a.b.c.d.total_hits", `ratelimit_service_rate_limit_total_hits{domain="d",key1="a",key2="b"} 1`},
		{"ratelimit.service.rate_limit.d.a.near_limit", `ratelimit_service_rate_limit_near_limit{domain="d",key1="a"} 1`},
		{"ratelimit.service.rate_limit.d.a.within_limit", `ratelimit_service_rate_limit_within_limit{domain="d",key1="a"} 1`},
		{"ratelimit.service.rate_limit.d.a.shadow_mode", `ratelimit_service_rate_limit_shadow_mode{domain="d",key1="a"} 1`},
		{"ratelimit.service.rate_limit.d.a.total_negative_hits", `ratelimit_service_rate_limit_total_negative_hits{domain="d",key1="a"} 1`},
		{"ratelimit.service.rate_limit.d.a.over_limit_with_local_cache", `ratelimit_service_rate_limit_d_a_over_limit_with_local_cache 1`},
		{"ratelimit.service.rate_limit.d.a.b.over_limit_with_local_cache", `ratelimit_service_rate_limit_d_a_b_over_limit_with_local_cache 1`},
		{"ratelimit.service.rate_limit.d.domain_not_found", `ratelimit_service_rate_limit_d_domain_not_found 1`},
		{"ratelimit.service.rate_limit.d.k.total_hits.total_hits", `ratelimit_service_rate_limit_total_hits{domain="d",key1="k",key2="total_hits"} 1`},
		{"ratelimit.service.call.should_rate_limit.redis_error", `ratelimit_service_should_rate_limit_error{err_type="redis_error"} 1`},
		{"ratelimit.service.call.should_rate_limit.service_error", `ratelimit_service_should_rate_limit_error{err_type="service_error"} 1`},
		{"ratelimit_server.ShouldRateLimit.total_requests", `ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} 1`},
		{"ratelimit.service.config_load_success", `ratelimit_service_config_load_success 1`},
		{"ratelimit.service.config_load_error", `ratelimit_service_config_load_error 1`},
		{"ratelimit.service.global_shadow_mode", `ratelimit_service_global_shadow_mode 1`},
		{"ratelimit.go.mallocs", `ratelimit_go_mallocs 1`},
	}
	for _, r := range rows {
		s := New(Options{})
		s.Counter(r.name).Add(1)
		if got := strings.TrimSpace(scrape(t, s, CollectorOptions{})); got != r.want {
			t.Errorf("%s\n got %s\nwant %s", r.name, got, r.want)
		}
	}
}

func TestFoldedSeriesAreSummed(t *testing.T) {
	s := New(Options{})
	s.Rule("d.a.b.c").TotalHits.Add(2)
	s.Rule("d.a.b").TotalHits.Add(3)
	s.Rule("d.a.b.x.y").TotalHits.Add(5)
	c, err := NewCollector(s, CollectorOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := gather(t, c); got != "ratelimit_service_rate_limit_total_hits{domain=\"d\",key1=\"a\",key2=\"b\"} 10\n" {
		t.Errorf("got %s", got)
	}
	s.Rule("d.a.b").TotalHits.Add(1)
	if got := gather(t, c); !strings.HasSuffix(got, " 11\n") {
		t.Errorf("the second scrape: %s", got)
	}
}

func TestTypesAndLint(t *testing.T) {
	s := New(Options{})
	s.Rule("d.k").TotalHits.Add(1)
	s.Gauge("ratelimit.localcache.entryCount").Set(4)
	s.Method("ShouldRateLimit").ResponseTime.Observe(2 * time.Millisecond)
	c, err := NewCollector(s, CollectorOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Method("Check").ResponseTime.Observe(3 * time.Second)
	want := `
# HELP ratelimit_localcache_entryCount A statistic of envoyproxy/ratelimit.
# TYPE ratelimit_localcache_entryCount gauge
ratelimit_localcache_entryCount 4
# HELP ratelimit_service_rate_limit_total_hits A statistic of envoyproxy/ratelimit.
# TYPE ratelimit_service_rate_limit_total_hits counter
ratelimit_service_rate_limit_total_hits{domain="d",key1="k"} 1
`
	if err := testutil.CollectAndCompare(c, strings.NewReader(want), "ratelimit_localcache_entryCount", "ratelimit_service_rate_limit_total_hits"); err != nil {
		t.Error(err)
	}
	got := gather(t, c)
	// A method without observations has no histogram.
	if strings.Contains(got, "ShouldRateLimit") || !strings.Contains(got, `ratelimit_service_response_time_seconds_sum{grpc_method="Check"} 3`) ||
		!strings.Contains(got, `ratelimit_service_response_time_seconds_bucket{grpc_method="Check",le="2.5"} 0`) {
		t.Errorf("got\n%s", got)
	}
}

func TestMilliseconds(t *testing.T) {
	s := New(Options{})
	c, err := NewCollector(s, CollectorOptions{Milliseconds: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Method("ShouldRateLimit").ResponseTime.Observe(time.Second)
	if got := gather(t, c); !strings.Contains(got, `response_time_seconds_sum{grpc_method="ShouldRateLimit"} 1000`) {
		t.Errorf("got\n%s", got)
	}
}

func TestTagsAreLabels(t *testing.T) {
	s := New(Options{})
	s.Rule("d.k_v").TotalHits.Add(1)
	s.Gauge("g").Set(1)
	got := scrape(t, s, CollectorOptions{Tags: map[string]string{"zone": "a", "domain": "lost", "build-id": "7", "le": "no", "": "no", "empty": "", "__x": "y"}})
	want := `g{_x="y",build_id="7",domain="lost",zone="a"} 1
ratelimit_service_rate_limit_total_hits{_x="y",build_id="7",domain="d",key1="k_v",zone="a"} 1
`
	if got != want {
		t.Errorf("got\n%s", got)
	}
}

func TestUserMapping(t *testing.T) {
	s := New(Options{})
	s.Counter("a.x.b").Add(2)
	s.Counter("a.y.b").Add(3)
	s.Counter("dropped.z").Add(1)
	s.Counter("ratelimit.service.rate_limit.d.k.total_hits").Add(1)
	o := mapperFile(t, `
defaults:
  timer_type: histogram
  buckets: [1, 2]
mappings:
- match: a.*.b
  name: "mapped_${1}_total"
  help: words
  scale: 10
  timer_type: histogram
  unknown_key: is not read
  labels: {origin: "$1", tag: "$1", le: "lost"}
- match: dropped.*
  action: drop
  name: x
- match: 'timed\.(.*)'
  match_type: regex
  name: timed
  timer_type: summary
  quantiles: [{quantile: 0.5, error: 0.05}]
  labels: {what: "$1", quantile: "lost"}
- match: plain.*
  name: plain
  labels: {what: "$1"}
`)
	o.Tags = map[string]string{"tag": "t"}
	c, err := NewCollector(s, o)
	if err != nil {
		t.Fatal(err)
	}
	s.Timer("timed.one").Observe(4 * time.Millisecond)
	s.Timer("plain.one").Observe(2 * time.Millisecond)
	got := gather(t, c)
	for _, want := range []string{
		`mapped_x_total{origin="x",tag="x"} 20`, `mapped_y_total{origin="y",tag="y"} 30`,
		`timed{tag="t",what="one",quantile="0.5"} 4`, `plain_bucket{tag="t",what="one",le="1"} 0`, `plain_bucket{tag="t",what="one",le="2"} 1`,
		`ratelimit_service_rate_limit_d_k_total_hits{tag="t"} 1`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("missing %s in\n%s", want, got)
		}
	}
	if strings.Contains(got, "dropped") {
		t.Errorf("got\n%s", got)
	}
}

func TestTimeToLive(t *testing.T) {
	s := New(Options{})
	n := s.Counter("a.b")
	n.Add(1)
	c, err := NewCollector(s, mapperFile(t, "mappings:\n- {match: a.*, name: a, ttl: 1m}\n"))
	if err != nil {
		t.Fatal(err)
	}
	start := time.Unix(1000, 0)
	for _, r := range []struct {
		after time.Duration
		add   uint64
		shown int
	}{{0, 0, 1}, {time.Minute, 0, 1}, {61 * time.Second, 0, 0}, {2 * time.Minute, 1, 1}, {3 * time.Minute, 0, 1}, {4 * time.Minute, 0, 0}} {
		n.Add(r.add)
		if got := len(c.collect(start.Add(r.after))); got != r.shown {
			t.Errorf("after %v: %d series, want %d", r.after, got, r.shown)
		}
	}
}

// A name for which Prometheus would reject the scrape is left out and counted.
func TestConflictsAreLeftOut(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := New(Options{Registerer: reg})
	c, err := NewCollector(s, mapperFile(t, `
mappings:
- {match: gauge.*, name: same}
- {match: counter.*, name: same}
- {match: theirs.*, name: go_goroutines}
- {match: ours.*, name: keyward_decisions_total}
- {match: timer.*, name: timer, observer_type: histogram}
- {match: part.*, name: timer_count}
- {match: negative.*, name: negative, scale: -1}
- {match: help.a, name: help, help: one}
- {match: help.b, name: help, help: other, labels: {xx: "1"}}
`))
	if err != nil {
		t.Fatal(err)
	}
	s.Timer("timer.a").Observe(1)
	for _, n := range []string{"counter.a", "theirs.a", "ours.a", "part.a", "negative.a", "help.a", "help.b"} {
		s.Counter(n).Add(1)
	}
	s.Gauge("gauge.a").Set(1)
	got := gather(t, c)
	if !strings.Contains(got, "help 1\n") || !strings.Contains(got, `help{xx="1"} 1`) || !strings.Contains(got, "same 1\n") || strings.Contains(got, "negative") {
		t.Errorf("got\n%s", got)
	}
	if n := testutil.ToFloat64(s.metrics.unshown); n != 5 {
		t.Errorf("%v left out, want 5", n)
	}
}

func TestBadMappings(t *testing.T) {
	for name, text := range map[string]string{
		"yaml":     "mappings: [",
		"regex":    "mappings:\n- {match: '(', match_type: regex, name: a}",
		"name":     "mappings:\n- {match: a.*}",
		"buckets":  "mappings:\n- {match: a.*, name: a, observer_type: histogram, histogram_options: {buckets: [2, 1]}}",
		"quantile": "mappings:\n- {match: a.*, name: a, observer_type: summary, summary_options: {quantiles: [{quantile: 50}]}}",
		"max age":  "defaults: {summary_options: {max_age: -1s}}",
	} {
		if _, err := NewCollector(New(Options{}), mapperFile(t, text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := NewCollector(New(Options{}), CollectorOptions{MapperFile: "/nowhere"}); err == nil {
		t.Error("a file that is not there: no error")
	}
}

// Whatever bytes a request contains, the scrape succeeds and includes every hit.
func FuzzScrape(f *testing.F) {
	f.Add([]byte("d.k_v"), "x", "v")
	f.Add([]byte("\xff.\xfe\x00.\n"), "\xff", "\xff")
	f.Add([]byte("..."), "9", "a")
	f.Add([]byte("d.--.__a=b"), "__name__", "")
	f.Fuzz(func(t *testing.T, key []byte, tag, value string) {
		s := New(Options{})
		s.RuleBytes(key).TotalHits.Add(1)
		s.RuleBytes(append([]byte("d.k."), key...)).TotalHits.Add(1)
		s.DomainNotFound(string(key)).Add(1)
		s.Method("ShouldRateLimit").TotalRequests.Add(1)
		c, err := NewCollector(s, CollectorOptions{Tags: map[string]string{tag: strings.ToValidUTF8(value, "?")}})
		if err != nil {
			t.Fatal(err)
		}
		s.Timer("ratelimit_server." + string(key) + ".response_time").Observe(1)
		if got := gather(t, c); strings.Count(got, "total_requests") != 1 {
			t.Errorf("got\n%s", got)
		}
	})
}

func TestRuntime(t *testing.T) {
	s := New(Options{})
	s.AddRuntime()
	got := scrape(t, s, CollectorOptions{})
	for _, name := range []string{"ratelimit_go_alloc ", "ratelimit_go_numGoroutine ", "ratelimit_go_totalAlloc ", "ratelimit_go_heapInuse "} {
		if !strings.Contains(got, name) {
			t.Errorf("missing %s in\n%s", name, got)
		}
	}
}

func BenchmarkScrape(b *testing.B) {
	s := New(Options{})
	for i := range 10_000 {
		r := s.RuleBytes([]byte("d.remote_address_" + time.Duration(i).String()))
		r.TotalHits.Add(1)
		r.WithinLimit.Add(1)
	}
	c, err := NewCollector(s, CollectorOptions{})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		c.collect(time.Unix(0, 0))
	}
}
