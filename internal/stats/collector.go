package stats

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/statsd_exporter/pkg/mapper"
	"google.golang.org/protobuf/proto"
)

// CollectorOptions configure a Collector. The zero value uses the names of envoyproxy/ratelimit.
type CollectorOptions struct {
	MapperFile   string            // statsd-exporter mappings that replace the built-in ones
	Milliseconds bool              // with the built-in mappings: response times in milliseconds
	Tags         map[string]string // labels of every series; a label of the mapping takes precedence
}

// Collector exports a Store to Prometheus. It maps a name when its series is first seen, and sums everything that
// maps to the same series. The name of a statistic never makes a scrape fail: what cannot be exported is left out and
// counted.
type Collector struct {
	store  *StatStore
	mapper *mapper.MetricMapper
	tags   map[string]string

	mu       sync.Mutex
	counters map[*StatCounter]link // guarded by mu
	gauges   map[*Gauge]link       // guarded by mu
	targets  map[string]*target    // by name and labels; guarded by mu
	timings  map[string]*timing    // by name and labels; guarded by mu
	families map[string]family     // guarded by mu
}

// link is where a statistic is exported. It has no target if the statistic is not exported.
type link struct {
	to    *target
	scale float64
}

// family holds the properties that all series of a metric share.
type family struct{ kind, help string }

const (
	kindCounter   = "counter"
	kindGauge     = "gauge"
	kindHistogram = "histogram"
	kindSummary   = "summary"
	kindPart      = "part of a histogram or summary"
)

// NewCollector returns a Collector, to be registered with a prometheus.Registerer.
func NewCollector(s *StatStore, o CollectorOptions) (*Collector, error) {
	m, err := loadMapping(o.MapperFile, o.Milliseconds)
	if err != nil {
		return nil, err
	}
	c := &Collector{
		store: s, mapper: m, tags: map[string]string{},
		counters: map[*StatCounter]link{}, gauges: map[*Gauge]link{}, targets: map[string]*target{},
		timings: map[string]*timing{}, families: map[string]family{},
	}
	for _, k := range slices.Sorted(maps.Keys(o.Tags)) {
		if name := labelName(k); name != "" && o.Tags[k] != "" {
			c.tags[name] = o.Tags[k]
		}
	}
	s.listen(c.timer)
	return c, nil
}

// Describe sends nothing: the series are not known in advance.
func (c *Collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends every series with a value.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	c.store.generate()
	for _, m := range c.collect(time.Now()) {
		ch <- m
	}
}

func (c *Collector) collect(now time.Time) []prometheus.Metric {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.targets {
		t.sum, t.present = 0, false
	}
	c.store.eachCounter(func(n *StatCounter, base, suffix string) {
		l, ok := c.counters[n]
		if !ok {
			l = c.link(base+suffix, mapper.MetricTypeCounter, kindCounter)
			c.counters[n] = l
		}
		l.add(n.Value())
	})
	c.store.eachGauge(func(g *Gauge, name string) {
		l, ok := c.gauges[g]
		if !ok {
			l = c.link(name, mapper.MetricTypeGauge, kindGauge)
			c.gauges[g] = l
		}
		l.add(g.Value())
	})
	var out []prometheus.Metric
	for _, t := range c.targets {
		if t.fresh(now) {
			out = append(out, t.sample())
		}
	}
	for _, t := range c.timings {
		if t.seen.Load() {
			out = append(out, t.show())
		}
	}
	return out
}

func (l link) add(n uint64) {
	if l.to != nil {
		l.to.sum += float64(n) * l.scale
		l.to.present = true
	}
}

// link returns where a counter or gauge is exported.
func (c *Collector) link(name string, as mapper.MetricType, kind string) link {
	m, shown, labels := c.resolve(name, as)
	if m == nil {
		return link{}
	}
	l := link{scale: 1}
	if m.Scale.Set {
		l.scale = m.Scale.Val
	}
	f, ok := c.claim(shown, kind, m.HelpText)
	if !ok || kind == kindCounter && !(l.scale >= 0) {
		c.store.metrics.unshown.Inc()
		return link{}
	}
	id := identity(shown, labels)
	l.to, ok = c.targets[id]
	if !ok {
		l.to = &target{desc: prometheus.NewDesc(shown, f.help, slices.Sorted(maps.Keys(labels)), nil), kind: kind,
			labels: pairs(labels), ttl: m.Ttl}
		c.targets[id] = l.to
	}
	return l
}

// resolve maps a dotted name to the name and labels of a metric. It returns a nil mapping for a name that is not
// exported.
func (c *Collector) resolve(name string, as mapper.MetricType) (m *mapper.MetricMapping, shown string,
	labels map[string]string) {
	name = strings.ToValidUTF8(name, "\uFFFD")
	m, mapped, found := c.mapper.GetMapping(name, as)
	if !found || m == nil {
		m, shown = &mapper.MetricMapping{Ttl: c.mapper.Defaults.Ttl}, name
	} else {
		shown = m.Name
	}
	if m.Action == mapper.ActionTypeDrop {
		return nil, "", nil
	}
	shown = mapper.EscapeMetricName(shown)
	if shown == "" {
		c.store.metrics.unshown.Inc()
		return nil, "", nil
	}
	labels = maps.Clone(c.tags)
	for k, v := range mapped {
		if _, tagged := labels[k]; tagged && m.HonorLabels || labelName(k) != k {
			continue
		}
		labels[k] = strings.ToValidUTF8(v, "\uFFFD")
	}
	return m, shown, labels
}

// claim reserves a metric's name for a kind. Prometheus rejects a scrape in which a name has two kinds or two help
// texts, or is also part of a histogram.
func (c *Collector) claim(name, kind, help string) (family, bool) {
	if f, ok := c.families[name]; ok {
		return f, f.kind == kind
	}
	for _, p := range []string{"keyward_", "go_", "process_", "promhttp_"} {
		if strings.HasPrefix(name, p) {
			return family{}, false
		}
	}
	if help == "" {
		help = "A statistic of envoyproxy/ratelimit."
	}
	if kind == kindHistogram || kind == kindSummary {
		for _, part := range []string{"_bucket", "_count", "_sum"} {
			if _, taken := c.families[name+part]; taken {
				return family{}, false
			}
		}
		for _, part := range []string{"_bucket", "_count", "_sum"} {
			c.families[name+part] = family{kind: kindPart}
		}
	}
	f := family{kind, help}
	c.families[name] = f
	return f, true
}

// labelName turns a tag's name into a label, or returns "" if Prometheus does not accept it everywhere.
func labelName(tag string) string {
	name := mapper.EscapeMetricName(strings.ToValidUTF8(tag, "_"))
	name = strings.ReplaceAll(name, "-", "_")
	if strings.HasPrefix(name, "__") {
		name = "_" + strings.TrimLeft(name, "_")
	}
	if name == "le" || name == "quantile" || name == "_" {
		return ""
	}
	return name
}

// identity joins the name and labels of a metric into one unambiguous string.
func identity(name string, labels map[string]string) string {
	var b strings.Builder
	b.WriteString(name)
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		for _, s := range []string{k, labels[k]} {
			b.WriteByte(0xff) // does not occur in valid UTF-8
			b.WriteString(s)
		}
	}
	return b.String()
}

// target is one exported series.
type target struct {
	desc    *prometheus.Desc
	kind    string
	labels  []*dto.LabelPair
	ttl     time.Duration // not exported for longer than this after its last change; 0: always
	sum     float64       // in this scrape
	present bool          // in this scrape
	last    float64
	changed time.Time
}

func (t *target) fresh(now time.Time) bool {
	if !t.present {
		return false
	}
	if t.sum != t.last || t.changed.IsZero() {
		t.last, t.changed = t.sum, now
	}
	return t.ttl <= 0 || now.Sub(t.changed) <= t.ttl
}

func (t *target) sample() prometheus.Metric { return sample{t.desc, t.kind, t.labels, t.sum} }

// sample is a target in one scrape.
type sample struct {
	desc   *prometheus.Desc
	kind   string
	labels []*dto.LabelPair
	value  float64
}

func (s sample) Desc() *prometheus.Desc { return s.desc }

func (s sample) Write(m *dto.Metric) error {
	m.Label = s.labels
	if s.kind == kindGauge {
		m.Gauge = &dto.Gauge{Value: proto.Float64(s.value)}
		return nil
	}
	m.Counter = &dto.Counter{Value: proto.Float64(s.value)}
	return nil
}

func pairs(labels map[string]string) []*dto.LabelPair {
	out := make([]*dto.LabelPair, 0, len(labels))
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, &dto.LabelPair{Name: proto.String(k), Value: proto.String(labels[k])})
	}
	return out
}
