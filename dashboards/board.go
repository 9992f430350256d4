// Package dashboards describes the Grafana dashboards of Keyward and prints them as the JSON that is committed beside it.
package dashboards

import (
	"maps"
	"slices"
	"strings"
)

// Board is one dashboard: a page of rows of panels.
type Board struct {
	UID   string // names the file, too, and stays for ever: links to the board hold it
	Title string
	About string // what it answers, in one sentence
	Of    string // the metric whose series say which clusters, namespaces, jobs and instances there are
	Who   string // what an instance is
	More  []Variable
	Rows  []Row
}

// Variable is one more choice at the top of a board: the values of a label of a metric.
type Variable struct {
	Name, Label   string
	Metric, Value string // a selector, and its label
	Regex         string // keeps only values that match; empty: all
}

// Row is a strip of panels of one height, under a title.
type Row struct {
	Title  string
	Panels []Panel
}

// Panel is one picture of a board.
type Panel struct {
	Kind    Kind
	Title   string
	About   string // what is seen, and what it means when it is high or low
	Unit    string // a unit of Grafana's: short, reqps, s, bytes, percentunit, "count:hits/s"
	Width   int    // of 24
	Height  int    // 0: 4 for a stat, else 8
	Max     float64
	Stacked bool
	Steps   []Step            // colours by value, lowest first; none: a plain colour
	Colours map[string]string // by name of the series
	Runbook string            // the alert that watches what is shown
	Queries []Query
}

// Kind is how a panel draws.
type Kind string

// The kinds of panels that the boards use, by Grafana's names.
const (
	Stat   Kind = "stat"
	Series Kind = "timeseries"
	Bars   Kind = "bargauge"
)

// Step colours values from From on.
type Step struct {
	From   float64
	Colour string
}

// Query is one expression of a panel, with {@} for what the board's variables choose, {@cluster} for the chosen clusters
// alone (what another program than the board's measures), and [~] for Grafana's choice of a range.
type Query struct {
	Expr, Legend string
	Fault        bool // has series only while something is wrong, or just was
}

// Annotation marks moments in every panel of a board.
type Annotation struct {
	Name, Expr, Title, Text, Colour string
}

// annotations are the same on every board: what changes under a cluster's traffic.
func annotations() []Annotation {
	return []Annotation{
		{Name: "Ring changes", Expr: `max by (cluster) (changes(keyward_ring_fingerprint{@cluster}[1m])) > 0`, Title: "another ring", Text: "{{cluster}}", Colour: "orange"},
		{Name: "Rules switched", Expr: `sum by (cluster, reason) (increase(keyward_rules_switches_total{@cluster}[1m])) > 0`, Title: "other rules", Text: "{{cluster}} {{reason}}", Colour: "blue"},
	}
}

// choices are a board's own variables, in the order in which each narrows the next.
func (b Board) choices() []Variable {
	all := []Variable{
		{Name: "cluster", Label: "Cluster", Metric: b.Of, Value: "cluster"},
		{Name: "namespace", Label: "Namespace", Metric: b.Of + `{cluster=~"$cluster"}`, Value: "namespace"},
		{Name: "job", Label: "Job", Metric: b.Of + `{cluster=~"$cluster",namespace=~"$namespace"}`, Value: "job"},
		{Name: "instance", Label: b.Who, Metric: b.Of + `{cluster=~"$cluster",namespace=~"$namespace",job=~"$job"}`, Value: "instance"},
	}
	return append(all, b.More...)
}

// written is an expression as Grafana gets it.
func written(expr string) string {
	return strings.NewReplacer(
		"@cluster", `cluster=~"$cluster"`,
		"@", `cluster=~"$cluster",namespace=~"$namespace",job=~"$job",instance=~"$instance"`,
		"[~]", "[$__rate_interval]",
	).Replace(expr)
}

// All are the boards, in the order of their links.
func All() []Board { return []Board{overview(), ringAndHotKeys(), edge(), capacity()} }

// Query names, for panels that are made of them.

func ask(expr, legend string) Query { return Query{Expr: expr, Legend: legend} }

// whenWrong is a query that finds nothing while all is well.
func whenWrong(expr, legend string) Query { return Query{Expr: expr, Legend: legend, Fault: true} }

// quantiles are percentiles of a histogram, which must carry {@} itself.
func quantiles(bucket, window string, which ...string) (all []Query) {
	names := map[string]string{"0.5": "p50", "0.9": "p90", "0.99": "p99", "0.999": "p99.9"}
	for _, q := range which {
		all = append(all, ask("histogram_quantile("+q+", sum by (le) (rate("+bucket+"["+window+"])))", names[q]))
	}
	return all
}

// good colours a share that should be high, bad one that should be nothing, and calm a number that is neither.
func good(warn, fine float64) []Step { return []Step{{0, "red"}, {warn, "orange"}, {fine, "green"}} }

func bad(warn, alarm float64) []Step { return []Step{{0, "green"}, {warn, "orange"}, {alarm, "red"}} }

func calm() []Step { return []Step{{0, "blue"}} }

// verdicts are the colours of answers, the same everywhere.
func verdicts() map[string]string {
	return map[string]string{"ok": "green", "over": "orange", "over the limit": "orange", "error": "red", "let through uncounted": "purple"}
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
