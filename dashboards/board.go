// Package dashboards describes the Grafana dashboards of Keyward and renders them as the JSON files in this folder.
package dashboards

import (
	"maps"
	"slices"
	"strings"
)

// board is a dashboard: a page of rows of panels.
type board struct {
	UID   string // also the name of the file; never changes, because links contain it
	Title string
	About string // description, in one sentence
	Of    string // metric whose series supply the clusters, namespaces, jobs and instances to choose from
	Who   string // label of the instance variable
	More  []variable
	Rows  []row

	Optional bool // for a part of Keyward that many clusters do not use
}

// variable is an additional choice at the top of a board: the values of a label of a metric.
type variable struct {
	Name, Label   string
	Metric, Value string // a selector, and its label
	Regex         string // keeps only matching values; empty: all
}

// row is a titled row of panels.
type row struct {
	Title  string
	Panels []panel
}

// panel is one chart of a board.
type panel struct {
	Kind    panelKind
	Title   string
	About   string // what it shows, and the meaning of high or low values
	Unit    string // a Grafana unit: short, reqps, s, bytes, percentunit, "count:hits/s"
	Width   int    // of 24
	Height  int    // 0: 4 for a stat, else 8
	Max     float64
	Stacked bool
	Steps   []step            // colors by value, lowest first; empty: one color
	Colors  map[string]string // colors by name of the series
	Runbook string            // the alert on the same data
	Queries []query
}

// panelKind is the type of a panel.
type panelKind string

// The panel types in use, by Grafana's names.
const (
	statPanel   panelKind = "stat"
	seriesPanel panelKind = "timeseries"
	barsPanel   panelKind = "bargauge"
)

// step sets the color of values from From on.
type step struct {
	From  float64
	Color string
}

// query is one expression of a panel. In it, {@} is replaced by the board's variables, {@cluster} by the chosen
// clusters only (for metrics of another program), and [~] by Grafana's range.
type query struct {
	Expr, Legend string
	Fault        bool // has series only during a fault and shortly after it
}

// annotation marks events in every panel of a board.
type annotation struct {
	Name, Expr, Title, Text, Color string
}

// annotations returns the annotations of every board: ring changes and rule switches.
func annotations() []annotation {
	return []annotation{
		{Name: "Ring changes", Expr: `max by (cluster) (changes(keyward_ring_fingerprint{@cluster}[1m])) > 0`, Title: "ring changed", Text: "{{cluster}}", Color: "orange"},
		{Name: "Rules switched", Expr: `sum by (cluster, reason) (increase(keyward_rules_switches_total{@cluster}[1m])) > 0`, Title: "rules changed", Text: "{{cluster}} {{reason}}", Color: "blue"},
	}
}

// choices returns the board's variables; each one filters the next.
func (b board) choices() []variable {
	all := []variable{
		{Name: "cluster", Label: "Cluster", Metric: b.Of, Value: "cluster"},
		{Name: "namespace", Label: "Namespace", Metric: b.Of + `{cluster=~"$cluster"}`, Value: "namespace"},
		{Name: "job", Label: "Job", Metric: b.Of + `{cluster=~"$cluster",namespace=~"$namespace"}`, Value: "job"},
		{Name: "instance", Label: b.Who, Metric: b.Of + `{cluster=~"$cluster",namespace=~"$namespace",job=~"$job"}`, Value: "instance"},
	}
	return append(all, b.More...)
}

// expand returns expr with its placeholders replaced.
func expand(expr string) string {
	return strings.NewReplacer(
		"@cluster", `cluster=~"$cluster"`,
		"@", `cluster=~"$cluster",namespace=~"$namespace",job=~"$job",instance=~"$instance"`,
		"[~]", "[$__rate_interval]",
	).Replace(expr)
}

// Files returns the text of every board by the name of its file.
func Files() (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, b := range boards() {
		text, err := b.render()
		if err != nil {
			return nil, err
		}
		files[b.UID+".json"] = text
	}
	return files, nil
}

// boards returns the boards in the order of their links.
func boards() []board {
	return []board{overview(), ringAndHotKeys(), edge(), capacity(), regions(), budgets(), quotas()}
}

// ask returns a query.
func ask(expr, legend string) query { return query{Expr: expr, Legend: legend} }

// whenWrong returns a query that has series only during a fault.
func whenWrong(expr, legend string) query { return query{Expr: expr, Legend: legend, Fault: true} }

// quantiles returns percentiles of a histogram. bucket must contain {@}.
func quantiles(bucket, window string, which ...string) (all []query) {
	names := map[string]string{"0.5": "p50", "0.9": "p90", "0.99": "p99", "0.999": "p99.9"}
	for _, q := range which {
		all = append(all, ask("histogram_quantile("+q+", sum by (le) (rate("+bucket+"["+window+"])))", names[q]))
	}
	return all
}

// good returns the steps for a share that should be high, bad for a value that should be 0, and calm for a neutral
// number.
func good(warn, fine float64) []step { return []step{{0, "red"}, {warn, "orange"}, {fine, "green"}} }

func bad(warn, alarm float64) []step { return []step{{0, "green"}, {warn, "orange"}, {alarm, "red"}} }

func calm() []step { return []step{{0, "blue"}} }

// resultColors returns the colors of results, which are the same on all boards.
func resultColors() map[string]string {
	return map[string]string{"ok": "green", "over": "orange", "over the limit": "orange", "error": "red", "admitted uncounted": "purple"}
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
