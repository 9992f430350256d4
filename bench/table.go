package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/keyward/keyward/internal/ops/loadtest"
)

// table is one group of the report: those that are asked directly, or those behind Envoy.
type table struct {
	Title string
	Head  []string
	Rows  [][]string // the first cell is the contestant's title
	Names []string   // of the contestants, one a row
}

// tables are the figures of a run as they are shown everywhere.
func (rep *Report) tables() []table {
	var all []table
	for _, envoy := range []bool{false, true} {
		t := table{Title: "Direct calls", Head: rep.head(envoy)}
		if envoy {
			t.Title = "Through Envoy"
		}
		for _, e := range rep.Contestants {
			if e.Envoy == envoy {
				t.Rows, t.Names = append(t.Rows, rep.cells(e)), append(t.Names, e.Name)
			}
		}
		if len(t.Rows) > 0 {
			all = append(all, t)
		}
	}
	return all
}

func (rep *Report) head(envoy bool) []string {
	head := []string{"", fmt.Sprintf("CPU us at %d", rep.middle())}
	for _, n := range rep.Levels {
		head = append(head, fmt.Sprintf("x at %d", n))
	}
	if envoy {
		head = append(head, "Envoy CPU us")
	}
	head = append(head, "calls/s")
	if rep.Rate > 0 {
		head = append(head, "p50 ms", "p90 ms", "p99 ms", "p99.9 ms")
	}
	head = append(head, "RSS MB")
	if !envoy {
		head = append(head, "bytes a key")
	}
	return head
}

// middle is the number of calls in flight that CPU and throughput are shown for.
func (rep *Report) middle() int {
	if slices.Contains(rep.Levels, 64) {
		return 64
	}
	return rep.Levels[len(rep.Levels)-1]
}

func (rep *Report) cells(e *Entry) []string {
	m := rep.at(e.Name, rep.middle()).Median()
	row := []string{e.Title, figure("%.1f", m.CPU)}
	for _, n := range rep.Levels {
		row = append(row, figure("%.2f", rep.ratio(e, n).Median))
	}
	if e.Envoy {
		row = append(row, figure("%.1f", m.Proxy))
	}
	row = append(row, figure("%.0f", m.Throughput))
	if r := loadtest.Find(rep.Results, e.Name, rep.paced()); r != nil {
		l := r.Median()
		row = append(row, figure("%.2f", l.P50/1000), figure("%.2f", l.P90/1000), figure("%.2f", l.P99/1000), figure("%.2f", l.P999/1000))
	}
	row = append(row, figure("%.0f", float64(e.RSS)/1e6))
	if !e.Envoy {
		row = append(row, figure("%.0f", e.KeyBytes))
	}
	return row
}

func figure(format string, v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf(format, v)
}

// setting is a sentence about what was run where.
func (rep *Report) setting() string {
	return fmt.Sprintf("%s, %d CPUs, %s, %s; %d rounds of %g s each, %d connections, %d keys", rep.Machine.CPU, rep.Machine.CPUs,
		rep.Machine.OS, rep.Machine.Go, rep.Rounds, rep.Seconds, rep.Conns, rep.Keys)
}

func (rep *Report) notes() string {
	text := fmt.Sprintf("Medians of the rounds. \"x at 16\": times the CPU of the constant server, with 16 calls in flight; through Envoy, of the one behind Envoy. CPU and memory are those of all of a contestant's processes, Redis among them, Envoy apart. calls/s: with %d in flight, as fast as answers come.", rep.middle())
	if rep.Rate > 0 {
		text += fmt.Sprintf(" Latencies: at %g calls a second, each from when it was due.", rep.Rate)
	}
	return text
}

// remarks are what must be known of a contestant to believe its figures.
func (rep *Report) remarks(e *Entry) string {
	calls, errors, over, why := 0, 0, 0, ""
	for _, r := range slices.Concat(rep.Results, rep.Half) {
		if r.Name == e.Name {
			m := r.Median()
			calls, errors, over = calls+m.Calls, errors+m.Errors, over+m.Over
			why = cmp.Or(why, m.Error)
		}
	}
	parts := []string{fmt.Sprintf("%d calls measured, %d failed, %d over the limit", calls, errors, over)}
	if why != "" {
		parts[0] += " (one failure: " + why + ")"
	}
	if e.Uncounted != nil {
		parts = append(parts, fmt.Sprintf("%d answered and not counted", *e.Uncounted))
	}
	if strings.Contains(e.Name, "keyward") {
		parts = append(parts, fmt.Sprintf("%.1f %% forwarded, %.2f %% degraded", 100*e.Forwarded, 100*e.Degraded))
	}
	return strings.Join(parts, "; ")
}

func (g Goal) String() string {
	verdict := "met"
	if !g.Met {
		verdict = "NOT MET"
	}
	note := ""
	if g.Note != "" {
		note = ", " + g.Note
	}
	return fmt.Sprintf("%-7s  %.2f (%.2f..%.2f), at most %.2g: %s%s", verdict, g.Value.Median, g.Value.Min, g.Value.Max, g.Most, g.What, note)
}

// print writes the tables, what one must know to read them, and which goals were met.
func (rep *Report) print(out io.Writer) {
	fmt.Fprintf(out, "\n%s\n", rep.setting())
	for _, t := range rep.tables() {
		fmt.Fprintf(out, "\n%s\n", t.Title)
		width := 0
		for _, r := range t.Rows {
			width = max(width, len(r[0]))
		}
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
		for _, r := range append([][]string{t.Head}, t.Rows...) {
			fmt.Fprintf(w, "%-*s\t%s\t\n", width, r[0], strings.Join(r[1:], "\t"))
		}
		_ = w.Flush()
	}
	fmt.Fprintf(out, "\n%s\n\n", rep.notes())
	for _, e := range rep.Contestants {
		fmt.Fprintf(out, "%s: %s\n", e.Name, rep.remarks(e))
	}
	fmt.Fprintln(out)
	for _, g := range rep.Goals {
		fmt.Fprintln(out, g)
	}
	for _, l := range rep.LeftOut {
		fmt.Fprintln(out, l)
	}
}

// The part of a page that is the program's.
const docsBegin, docsEnd = "<!-- bench: begin -->\n", "<!-- bench: end -->\n"

// writeDocs puts the tables of a report into a page.
func (rep *Report) writeDocs(page string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, ok1 := strings.Cut(string(text), docsBegin)
	_, after, ok2 := strings.Cut(rest, docsEnd)
	if !ok1 || !ok2 {
		return fmt.Errorf("%s has no place for tables, between %q and %q", page, docsBegin, docsEnd)
	}
	var b bytes.Buffer
	rep.markdown(&b)
	return os.WriteFile(page, []byte(before+docsBegin+b.String()+docsEnd+after), 0o644)
}

func (rep *Report) markdown(b *bytes.Buffer) {
	fmt.Fprintf(b, "Run on %s: %s. %s\n", rep.When.Format("2006-01-02"), rep.setting(), rep.notes())
	for _, t := range rep.tables() {
		t.Head[0] = t.Title
		fmt.Fprintf(b, "\n| %s |\n|---|%s\n", strings.Join(t.Head, " | "), strings.Repeat("--:|", len(t.Head)-1))
		for _, r := range t.Rows {
			fmt.Fprintf(b, "| %s |\n", strings.Join(r, " | "))
		}
	}
	fmt.Fprint(b, "\n| goal | at most | measured | |\n|---|--:|--:|---|\n")
	for _, g := range rep.Goals {
		fmt.Fprintf(b, "| %s | %.2g | %.2f (%.2f..%.2f) | %s |\n", strings.TrimSuffix(g.What+", "+g.Note, ", "), g.Most, g.Value.Median, g.Value.Min, g.Value.Max, met(g.Value.Median, g.Most))
	}
}
