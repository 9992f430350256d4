package dashboards

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/keyward/keyward/envoy/module"
	"github.com/keyward/keyward/envoy/rlqs"
	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/envoy/xds"
	"github.com/keyward/keyward/internal/admin"
	"github.com/keyward/keyward/internal/assign"
	"github.com/keyward/keyward/internal/audit"
	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/cluster"
	"github.com/keyward/keyward/internal/config/source"
	"github.com/keyward/keyward/internal/connguard"
	"github.com/keyward/keyward/internal/durable"
	"github.com/keyward/keyward/internal/modules"
	"github.com/keyward/keyward/internal/peer"
	"github.com/keyward/keyward/internal/stats"
	"github.com/keyward/keyward/journal"
	"github.com/keyward/keyward/owner"
)

// catalogue maps every metric of the code to its labels.
type catalogue map[string][]string

// has reports whether the metric exists; it also accepts the series names of a histogram.
func (c catalogue) has(name string) bool { return c.labels(name) != nil }

func (c catalogue) labels(name string) []string {
	if l, ok := c[name]; ok {
		return l
	}
	for _, part := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(name, part); ok && c[base] != nil {
			return append([]string{"le"}, c[base]...)
		}
	}
	return nil
}

// recorder is a Registerer that records descriptions, also of metrics without a value.
type recorder struct {
	mu  sync.Mutex
	all catalogue // guarded by mu
}

func (r *recorder) Register(c prometheus.Collector) error {
	ch := make(chan *prometheus.Desc)
	go func() { c.Describe(ch); close(ch) }()
	r.mu.Lock()
	defer r.mu.Unlock()
	for d := range ch {
		if m := description.FindStringSubmatch(d.String()); m != nil {
			labels := []string{}
			for l := range strings.SplitSeq(m[2]+","+m[3], ",") {
				if l, _, _ = strings.Cut(strings.TrimSpace(l), "="); l != "" {
					labels = append(labels, l)
				}
			}
			r.all[m[1]] = labels
		}
	}
	return nil
}

func (r *recorder) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		_ = r.Register(c)
	}
}

func (r *recorder) Unregister(prometheus.Collector) bool { return false }

var description = regexp.MustCompile(`fqName: "([^"]+)".*constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}`)

// metricsOfTheCode builds every component with metrics and records the metrics that it registers.
func metricsOfTheCode(t *testing.T) catalogue {
	t.Helper()
	r := &recorder{all: catalogue{}}
	node := owner.New(owner.Options{Self: "a"})
	p, err := peer.New(peer.Options{Node: node, Self: "a", Registerer: r})
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Start(cluster.Options{Node: "a", Bind: "127.0.0.1:0", Registerer: r})
	if err != nil {
		t.Fatal(err)
	}
	v := source.NewVersions(source.VersionsOptions{Self: "a", Registerer: r})
	t.Cleanup(func() { c.Close(); v.Close(); _ = p.Close() })
	service := rls.New(rls.Options{Decider: p, Stats: stats.New(stats.Options{Registerer: r}), Registerer: r, DecisionTimeout: time.Second})
	assigner := assign.New(assign.Options{Charger: p, Members: func() int { return 1 }})
	assigner.Close()
	r.MustRegister(assigner.Collectors()...)
	rlqs.NewServer(rlqs.Options{Service: service, Book: assigner, Registerer: r})
	lessor := modules.New(modules.Options{Charger: p, Rules: service.Matcher, Members: func() int { return 1 }})
	segments, err := module.Listen(module.Options{Path: filepath.Join(t.TempDir(), "m.sock"), Book: lessor})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = segments.Close(); lessor.Close() })
	r.MustRegister(lessor.Collectors(segments)...)
	xds.New(t.Context(), xds.Options{Registerer: r})
	r.MustRegister(admin.NewCollector(p.Stats), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector())
	maps.Copy(r.all, statistics(t))
	r.all["keyward_build_info"], r.all["keyward_drains_incomplete_total"] = []string{"version"}, []string{} // the programs' own
	r.all["keyward_keys_max"] = []string{"of"}
	durable.New(durable.Options{Node: node, Journal: journal.Options{Dir: t.TempDir()}, Registerer: r})
	r.all["keyward_journal_missing"], r.all["keyward_journal_max_bytes"] = []string{}, []string{} // the programs' own, too
	trail, err := audit.New(audit.Options{Registerer: r})
	if err != nil {
		t.Fatal(err)
	}
	trail.Close()
	connguard.New(r)
	certs.NewMetrics(r, nil)
	maps.Copy(r.all, federated())
	if len(r.all) < 60 {
		t.Fatalf("only %d metrics found: a part is missing here", len(r.all))
	}
	return r.all
}

var (
	mappedName  = regexp.MustCompile(`(?m)^- match: '?(.+?)'?$\n(?:  .*\n)*?  name: (\S+)\n((?:  .*\n)*)`)
	mappedLabel = regexp.MustCompile(`(?m)^    (\w+): \$`)
	choices     = regexp.MustCompile(`\(([a-z_|]+)\)\$$`)
)

// statistics returns the Prometheus names of the statistics of envoyproxy/ratelimit.
func statistics(t *testing.T) catalogue {
	t.Helper()
	mapping, err := os.ReadFile("../internal/stats/mapping.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all := catalogue{}
	for _, m := range mappedName.FindAllStringSubmatch(string(mapping), -1) {
		labels := []string{}
		for _, l := range mappedLabel.FindAllStringSubmatch(m[3], -1) {
			labels = append(labels, l[1])
		}
		names := []string{m[2]}
		if i := strings.IndexByte(m[2], '$'); i >= 0 {
			names = nil
			for c := range strings.SplitSeq(choices.FindStringSubmatch(m[1])[1], "|") {
				names = append(names, m[2][:i]+c)
			}
		}
		for _, n := range names {
			if len(labels) >= len(all[n]) {
				all[n] = labels
			}
		}
	}
	return all
}

// outside are metrics of other programs, outsideLabels the labels that Prometheus adds.
var (
	outside       = []string{"up"}
	outsideLabels = []string{
		"cluster", "namespace", "instance", "job", "le", "alertname", "alertstate",
		"envoy_cluster_name", "envoy_response_code_class", "envoy_http_conn_manager_prefix", "envoy_local_http_ratelimit_prefix",
	}
)

var (
	quoted   = regexp.MustCompile(`"[^"]*"`)
	metric   = regexp.MustCompile(`\b((?:keyward|ratelimit|process|go)_[a-z0-9_]+)`)
	foreign  = regexp.MustCompile(`\b(?:envoy_[a-z0-9_]+|ALERTS)\b`) // TestLive reads them from a real Envoy
	selector = regexp.MustCompile(`[{,]\s*([a-z_0-9]+)\s*(?:=~|!~|!=|=)`)
	grouping = regexp.MustCompile(`\b(?:by|without) \(([^)]*)\)`)
)

// faults returns the errors of an expression: metrics and labels that do not exist.
func (c catalogue) faults(expr string) []string {
	bare := quoted.ReplaceAllString(expr, `""`)
	var out []string
	known := slices.Clone(outsideLabels)
	for _, l := range countValues.FindAllStringSubmatch(expr, -1) {
		known = append(known, l[1])
	}
	names := metric.FindAllString(bare, -1)
	if len(names) == 0 && !foreign.MatchString(expr) {
		out = append(out, "no Keyward metric")
	}
	for _, n := range names {
		if !c.has(n) && !slices.Contains(outside, n) {
			out = append(out, "no such metric: "+n)
		}
		known = append(known, c.labels(n)...)
	}
	var used []string
	for _, m := range selector.FindAllStringSubmatch(bare, -1) {
		used = append(used, m[1])
	}
	for _, m := range grouping.FindAllStringSubmatch(bare, -1) {
		for l := range strings.SplitSeq(m[1], ",") {
			used = append(used, strings.TrimSpace(l))
		}
	}
	for _, l := range used {
		if !slices.Contains(known, l) {
			out = append(out, "no such label: "+l)
		}
	}
	return out
}

var countValues = regexp.MustCompile(`count_values\("([a-z_]+)"`)

// federated returns the metrics of members in a federation and of coordinators, which their programs create. TestLive reads
// them from real ones.
func federated() catalogue {
	of := func(label string, names ...string) catalogue {
		all := catalogue{}
		for _, n := range names {
			all["keyward_"+n] = []string{label}
		}
		return all
	}
	all := of("authority", "federation_up", "federation_requests_total", "federation_errors_total", "federation_dropped_total",
		"federation_refused_total", "federation_call_seconds", "federation_clock_offset_seconds", "federation_repaired_hits_total")
	maps.Copy(all, of("region", "coordinator_requests_total", "coordinator_grants_hits_total", "coordinator_refused_total", "coordinator_connections"))
	for _, n := range []string{"coordinator_up", "coordinator_store_seconds", "coordinator_store_errors_total", "coordinator_repaired_hits_total"} {
		all["keyward_"+n] = []string{}
	}
	for _, n := range []string{"epoch", "newest_epoch", "layout_refused"} {
		all["keyward_federation_"+n] = []string{"federation", "region"}
	}
	return all
}
