package config

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	rlcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	envoytype "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	upstream "github.com/envoyproxy/ratelimit/src/config"
	"github.com/envoyproxy/ratelimit/src/stats"
	gostats "github.com/lyft/gostats"
	"github.com/sirupsen/logrus"
	"google.golang.org/protobuf/proto"
)

// The oracle is the loader and matcher of envoyproxy/ratelimit. The released version may be older than the documented
// contract; features that it does not support are detected and left out of the comparison.
type oracle struct {
	stats    stats.Manager
	metadata bool // supports metadata
	middle   bool // supports wildcards that do not end the text
}

// nullStats is a stats.Manager that leaves keys unchanged and counts nothing.
type nullStats struct{ store gostats.Store }

func (s nullStats) GetStatsStore() gostats.Store                            { return s.store }
func (s nullStats) NewShouldRateLimitStats() (r stats.ShouldRateLimitStats) { return r }
func (s nullStats) NewServiceStats() (r stats.ServiceStats)                 { return r }
func (s nullStats) NewStats(key string) stats.RateLimitStats                { return stats.RateLimitStats{Key: key} }
func (s nullStats) NewDomainStats(key string) stats.DomainStats {
	return stats.DomainStats{Key: key, NotFound: s.store.NewCounter("not_found")}
}

func newOracle() *oracle {
	logrus.SetOutput(io.Discard)
	o := &oracle{stats: nullStats{gostats.NewStore(gostats.NewNullSink(), false)}}
	_, err := o.load([]File{{"f", []byte("domain: d\ndescriptors:\n- {key: k, metadata: {a: b}}\n")}}, false)
	o.metadata = err == ""
	_, err = o.load([]File{{"f", []byte("domain: d\ndescriptors:\n- {key: k, value: a*b, share_threshold: true}\n")}}, false)
	o.middle = err == ""
	return o
}

func (o *oracle) load(files []File, merge bool) (c upstream.RateLimitConfig, text string) {
	defer func() {
		if v := recover(); v != nil {
			text = fmt.Sprint(v)
		}
	}()
	var loaded []upstream.RateLimitConfigToLoad
	for _, f := range files {
		loaded = append(loaded, upstream.RateLimitConfigToLoad{
			Name: f.Name, ConfigYaml: upstream.ConfigFileContentToYaml(f.Name, string(f.Content)),
		})
	}
	return upstream.NewRateLimitConfigImpl(loaded, o.stats, merge), ""
}

// supports reports whether the oracle's version has all features that the files use.
func (o *oracle) supports(files []File) bool {
	for _, f := range files {
		text := string(f.Content)
		if !o.metadata && strings.Contains(text, "metadata") {
			return false
		}
		if !o.middle && strings.Contains(text, "*") {
			s, faults := parse(f)
			if len(faults) == 0 && !trailing(s.root.Descriptors) {
				return false
			}
		}
	}
	return true
}

// trailing reports whether each * ends its text.
func trailing(list []yamlDescriptor) bool {
	for i := range list {
		glued := newNode(&list[i]).glued
		if at := strings.Index(glued, "*"); at >= 0 && at != len(glued)-1 || !trailing(list[i].Descriptors) {
			return false
		}
	}
	return true
}

// compareLoad loads files with both, and fails unless both return the same error or both succeed.
func (o *oracle) compareLoad(t *testing.T, files []File, opts Options) (upstream.RateLimitConfig, *Rules) {
	t.Helper()
	theirs, want := o.load(files, opts.MergeDomains)
	report := Check(files, opts)
	if want == "" {
		for _, f := range report.Faults {
			if !strings.HasPrefix(f.Text, "error in metadata.keyward") {
				t.Fatalf("fault %q; upstream loads\n%s", f.Error(), dump(files))
			}
		}
		return theirs, report.Rules
	}
	if len(report.Faults) == 0 {
		t.Fatalf("loaded; upstream says %q\n%s", want, dump(files))
	}
	got := report.Faults[0].Error()
	if got == want || !o.middle && strings.Contains(want, "(ending with '*')") {
		return nil, nil
	}
	// Upstream reports a random one of several bad keys; it must be among the faults.
	named := slices.ContainsFunc(report.Faults, func(f Diagnostic) bool { return f.Error() == want })
	if !named || !aboutKeys(got) || !aboutKeys(want) {
		t.Fatalf("\n got %q\nwant %q\nof %v\n%s", got, want, report.Faults, dump(files))
	}
	return nil, nil
}

func aboutKeys(text string) bool {
	return strings.Contains(text, ": config error, ") || strings.HasSuffix(text, ": error checking config")
}

func dump(files []File) string {
	var b strings.Builder
	for _, f := range files {
		fmt.Fprintf(&b, "--- %s\n%s\n", f.Name, f.Content)
	}
	return b.String()
}

type query struct {
	domain   string
	entries  []Entry
	override *Override
}

func (q query) descriptor() *rlcommon.RateLimitDescriptor {
	d := &rlcommon.RateLimitDescriptor{}
	for _, e := range q.entries {
		d.Entries = append(d.Entries, &rlcommon.RateLimitDescriptor_Entry{Key: e.Key, Value: e.Value})
	}
	if q.override != nil {
		d.Limit = &rlcommon.RateLimitDescriptor_RateLimitOverride{
			RequestsPerUnit: q.override.Limit, Unit: envoytype.RateLimitUnit(q.override.Unit),
		}
	}
	return d
}

// compareMatch compares the results of both for one descriptor.
func (o *oracle) compareMatch(t *testing.T, theirs upstream.RateLimitConfig, rules *Rules, q query) {
	t.Helper()
	want := theirs.GetLimit(context.Background(), q.domain, q.descriptor())
	var m Match
	rules.Match(q.domain, q.entries, q.override, &m)
	fail := func(what string, got, want any) {
		t.Helper()
		t.Fatalf("%s: got %v, want %v\nof %+v\nin\n%s", what, got, want, q, rules)
	}
	if (m.Kind == NoRule || m.Kind == NoDomain) != (want == nil) {
		fail("kind", m.Kind, want)
	}
	if want == nil {
		return
	}
	if m.Kind == BadUnit {
		if w := Unit(want.Limit.Unit).Window(); w != 0 {
			fail("unit", "bad", want.Limit.Unit)
		}
		return
	}
	if unlimited := m.Kind == Unlimited; unlimited != want.Unlimited {
		fail("unlimited", m.Kind, want.Unlimited)
	}
	if m.Kind != Unlimited && (m.Limit.Limit != want.Limit.RequestsPerUnit || int32(m.Unit) != int32(want.Limit.Unit)) {
		fail("limit", fmt.Sprint(m.Limit.Limit, " ", m.Unit), want.Limit)
	}
	if got := string(rules.AppendStatKey(nil, q.domain, q.entries, &m)); got != want.FullKey {
		fail("statistics' key", got, want.FullKey)
	}
	for i := range q.entries {
		value := q.entries[i].Value
		if i < len(want.ShareThresholdKeyPattern) && want.ShareThresholdKeyPattern[i] != "" {
			value = want.ShareThresholdKeyPattern[i]
		}
		if got := m.counted(i, &q.entries[i]); got != value {
			fail("counted value", got, value)
		}
	}
	if q.override == nil {
		compareRule(m.Rule, want, fail)
	}
}

func compareRule(r *RuleSpec, want *upstream.RateLimit, fail func(string, any, any)) {
	got := []any{r.Shadow, r.Quota, r.Name, r.DetailedMetric, append([]string{}, r.Replaces...)}
	if w := []any{want.ShadowMode, want.QuotaMode, want.Name, want.DetailedMetric, append([]string{}, want.Replaces...)}; !reflect.DeepEqual(got, w) {
		fail("rule", got, w)
	}
	// Upstream drops the metadata if it builds a separate key; Keyward keeps it.
	if f := reflect.ValueOf(want).Elem().FieldByName("Metadata"); f.IsValid() && !f.IsNil() {
		if w := f.Interface().(proto.Message); !proto.Equal(r.Metadata, w) {
			fail("metadata", r.Metadata, w)
		}
	}
}

// FuzzLoad compares the results of both loaders for any text.
func FuzzLoad(f *testing.F) {
	for seed := range uint64(40) {
		g := generator{rand: rand.New(rand.NewPCG(seed, 2))}
		f.Add(g.files()[0].Content)
	}
	for _, row := range badFiles {
		f.Add([]byte(row.yaml))
	}
	o := newOracle()
	f.Fuzz(func(t *testing.T, content []byte) {
		files := []File{{"f.yaml", content}}
		if len(content) > 1<<16 || !o.supports(files) {
			return
		}
		theirs, rules := o.compareLoad(t, files, Options{})
		if rules == nil {
			return
		}
		Warnings(files, rules)
		g := generator{rand: rand.New(rand.NewPCG(uint64(len(content)), 3))}
		for range 20 {
			o.compareMatch(t, theirs, rules, g.query(rules))
		}
	})
}

// FuzzMatch compares both matchers for any two entries, with a configuration generated from a seed.
func FuzzMatch(f *testing.F) {
	f.Add(uint64(1), "a", "b", "c", "d", uint32(0))
	f.Add(uint64(7), "a", "", "a_b", "x1", uint32(9))
	o := newOracle()
	f.Fuzz(func(t *testing.T, seed uint64, k1, v1, k2, v2 string, unit uint32) {
		g := generator{rand: rand.New(rand.NewPCG(seed, 4)), metadata: o.metadata, middle: o.middle, sound: true}
		files := g.files()
		theirs, rules := o.compareLoad(t, files, Options{MergeDomains: true})
		if rules == nil {
			return
		}
		q := query{domain: "d", entries: []Entry{{k1, v1}, {k2, v2}}}
		if unit > 0 {
			q.override = &Override{unit, Unit(unit % 10)}
		}
		o.compareMatch(t, theirs, rules, q)
		q.entries = q.entries[:1]
		o.compareMatch(t, theirs, rules, q)
	})
}
