package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// The aims of one node's CPU per decision, against others of the same run.
const (
	aimConstant  = 1.3     // at most this many times the constant server's
	aimRatelimit = 1.0 / 3 // at most this part of envoyproxy/ratelimit's with Redis
	aimTogether  = 1.15    // three members that replicate: at most this many times three that do not know each other
)

// Report is a whole run.
type Report struct {
	When     time.Time `json:"when"`
	Machine  Machine   `json:"machine"`
	Seconds  float64   `json:"seconds"`
	Inflight int       `json:"inflight"`
	Conns    int       `json:"connections"`
	Keys     int       `json:"keys"`
	Rate     float64   `json:"paced_calls_per_second"`
	Rows     []*Row    `json:"contestants"`
	LeftOut  []string  `json:"left_out,omitempty"`
}

// Machine is where it ran.
type Machine struct {
	CPU  string `json:"cpu"`
	CPUs int    `json:"cpus"`
	OS   string `json:"os"`
	Go   string `json:"go"`
}

// Row is one contestant over all rounds.
type Row struct {
	Name       string   `json:"name"`
	Title      string   `json:"title"`
	CPU        Spread   `json:"cpu_us"`
	Ratio      float64  `json:"cpu_ratio_to_constant"` // median of the rounds' ratios; 0 without the constant server
	Throughput Spread   `json:"calls_per_second"`
	Latency    Latency  `json:"latency_us"`
	PacedCPU   Spread   `json:"paced_cpu_us"`
	Paced      Latency  `json:"paced_latency_us"`
	RSS        int64    `json:"rss_bytes"`
	Forwarded  float64  `json:"forwarded"`
	Degraded   float64  `json:"degraded"`
	Errors     int      `json:"errors"`
	Over       int      `json:"over_limit"`
	Uncounted  *int     `json:"uncounted,omitempty"` // calls answered and not counted; errors may make it negative
	Samples    []Sample `json:"rounds"`
}

// Spread is a figure over the rounds.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// Latency is the medians of the rounds' quantiles.
type Latency struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
}

func newReport(o options) *Report {
	return &Report{
		When:    time.Now().UTC().Round(time.Second),
		Machine: Machine{CPU: cpuModel(), CPUs: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version()},
		Seconds: o.seconds, Inflight: o.inflight, Conns: o.conns, Keys: o.keys, Rate: o.rate,
	}
}

func cpuModel() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	_, rest, _ := strings.Cut(string(b), "model name")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.Trim(line, " \t:")
}

func (rep *Report) row(name string) *Row {
	for _, r := range rep.Rows {
		if r.Name == name {
			return r
		}
	}
	return nil
}

func (rep *Report) add(c *running, s Sample) {
	r := rep.row(c.Name)
	if r == nil {
		r = &Row{Name: c.Name, Title: c.Title}
		rep.Rows = append(rep.Rows, r)
	}
	r.Samples = append(r.Samples, s)
}

func (rep *Report) audit(c *running, counted int) {
	missing := c.sent - counted
	rep.row(c.Name).Uncounted = &missing
}

// finish makes the rows' figures of their rounds.
func (rep *Report) finish() {
	var constant []Sample
	if c := rep.row(nameConstant); c != nil {
		constant = c.Samples
	}
	for _, r := range rep.Rows {
		r.finish(constant)
	}
}

func (r *Row) finish(constant []Sample) {
	over := func(f func(*Sample) float64) Spread { return spread(r.Samples, f) }
	r.CPU = over(func(s *Sample) float64 { return s.Full.CPU })
	r.Throughput = over(func(s *Sample) float64 { return s.Full.Throughput })
	r.Latency = latency(r.Samples, func(s *Sample) *Figures { return &s.Full })
	r.PacedCPU = over(func(s *Sample) float64 { return s.Paced.CPU })
	r.Paced = latency(r.Samples, func(s *Sample) *Figures { return &s.Paced })
	r.RSS = int64(over(func(s *Sample) float64 { return float64(s.RSS) }).Max)
	r.Forwarded = over(func(s *Sample) float64 { return s.Forwarded }).Median
	r.Degraded = over(func(s *Sample) float64 { return s.Degraded }).Max
	for _, s := range r.Samples {
		r.Errors += s.Full.Errors + s.Paced.Errors
		r.Over += s.Full.Over + s.Paced.Over
	}
	r.Ratio = ratio(r.Samples, constant)
}

// ratio compares round by round and takes the median: what slows the machine down for a while slows both.
func ratio(of, to []Sample) float64 {
	if len(to) != len(of) {
		return 0
	}
	i := 0
	return spread(of, func(s *Sample) float64 { i++; return s.Full.CPU / to[i-1].Full.CPU }).Median
}

// pacedRatio is ratio at the fixed pace.
func pacedRatio(of, to []Sample) float64 {
	if len(to) != len(of) {
		return 0
	}
	i := 0
	return spread(of, func(s *Sample) float64 { i++; return s.Paced.CPU / to[i-1].Paced.CPU }).Median
}

func spread(samples []Sample, f func(*Sample) float64) Spread {
	var v []float64
	for i := range samples {
		v = append(v, f(&samples[i]))
	}
	if len(v) == 0 {
		return Spread{}
	}
	slices.Sort(v)
	n := len(v)
	return Spread{Median: (v[(n-1)/2] + v[n/2]) / 2, Min: v[0], Max: v[n-1]}
}

func latency(samples []Sample, f func(*Sample) *Figures) Latency {
	median := func(get func(*Figures) float64) float64 {
		return spread(samples, func(s *Sample) float64 { return get(f(s)) }).Median
	}
	return Latency{
		P50: median(func(f *Figures) float64 { return f.P50 }), P90: median(func(f *Figures) float64 { return f.P90 }),
		P99: median(func(f *Figures) float64 { return f.P99 }), P999: median(func(f *Figures) float64 { return f.P999 }),
	}
}

// print writes the tables, what one must know to read them, and how the aims were met.
func (rep *Report) print(out io.Writer) {
	fmt.Fprintf(out, "\n%s, %d CPUs, %s, %s; %d rounds of %g s, %d calls in flight over %d connections, %d keys\n", rep.Machine.CPU, rep.Machine.CPUs,
		rep.Machine.OS, rep.Machine.Go, rep.rounds(), rep.Seconds, rep.Inflight, rep.Conns, rep.Keys)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "\n%s\tCPU us/decision (min..max)\tx constant\tdecisions/s\tp50 ms\tp90 ms\tp99 ms\tp99.9 ms\tRSS MB\t\n", rep.left("as fast as answers come"))
	for _, r := range rep.Rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%.0f\t%s\t%.0f\t\n", rep.left(r.Title), r.CPU, times(r.Ratio), r.Throughput.Median, r.Latency, float64(r.RSS)/1e6)
	}
	if rep.Rate > 0 {
		fmt.Fprintf(w, "\t\t\t\t\t\t\t\t\t\n%s\tCPU us/decision (min..max)\t\t\tp50 ms\tp90 ms\tp99 ms\tp99.9 ms\t\t\n", rep.left(fmt.Sprintf("at %g calls a second", rep.Rate)))
		for _, r := range rep.Rows {
			fmt.Fprintf(w, "%s\t%s\t\t\t%s\t\t\n", rep.left(r.Title), r.PacedCPU, r.Paced)
		}
	}
	_ = w.Flush()
	fmt.Fprintf(out, "\nMedians of the rounds. CPU and memory are those of all of a contestant's processes, Redis among them.\n")
	for _, r := range rep.Rows {
		fmt.Fprintf(out, "%s: %s\n", r.Title, r.remarks())
	}
	rep.printAims(out)
	for _, l := range rep.LeftOut {
		fmt.Fprintln(out, l)
	}
}

// left fills a title up to the width of the longest: the tables align to the right.
func (rep *Report) left(title string) string {
	width := 0
	for _, r := range rep.Rows {
		width = max(width, len(r.Title))
	}
	return fmt.Sprintf("%-*s", width, title)
}

func times(ratio float64) string {
	if ratio == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", ratio)
}

func (s Spread) String() string {
	return fmt.Sprintf("%.1f (%.1f..%.1f)", s.Median, s.Min, s.Max)
}

func (l Latency) String() string {
	return fmt.Sprintf("%.2f\t%.2f\t%.2f\t%.2f", l.P50/1000, l.P90/1000, l.P99/1000, l.P999/1000)
}

func (rep *Report) rounds() int {
	n := 0
	for _, r := range rep.Rows {
		n = max(n, len(r.Samples))
	}
	return n
}

func (r *Row) remarks() string {
	calls := 0
	for _, s := range r.Samples {
		calls += s.Full.Calls + s.Paced.Calls
	}
	parts := []string{fmt.Sprintf("%d calls measured, %d failed, %d over the limit", calls, r.Errors, r.Over)}
	if r.Uncounted != nil {
		parts = append(parts, fmt.Sprintf("%d answered and not counted", *r.Uncounted))
	}
	if strings.HasPrefix(r.Name, "keyward") {
		parts = append(parts, fmt.Sprintf("%.1f %% forwarded, %.2f %% degraded", 100*r.Forwarded, 100*r.Degraded))
	}
	return strings.Join(parts, "; ")
}

func (rep *Report) printAims(out io.Writer) {
	if on, off := rep.row(nameDirect), rep.row(nameAlone); on != nil && off != nil {
		full := ratio(on.Samples, off.Samples)
		fmt.Fprintf(out, "aim: replication and heartbeats add at most 15 %% CPU: %.2f x as fast as answers come, %s", full, met(full, aimTogether))
		if rep.Rate > 0 {
			paced := pacedRatio(on.Samples, off.Samples)
			fmt.Fprintf(out, "; %.2f x at %g calls a second, %s", paced, rep.Rate, met(paced, aimTogether))
		}
		fmt.Fprintln(out)
	}
	one, ratelimit := rep.row(nameOne), rep.row(nameRatelimit)
	if one == nil {
		return
	}
	if one.Ratio > 0 {
		fmt.Fprintf(out, "aim: one node's CPU at most %.1f x the constant server's: %.2f x, %s\n", aimConstant, one.Ratio, met(one.Ratio, aimConstant))
	}
	if ratelimit != nil {
		part := ratio(one.Samples, ratelimit.Samples)
		fmt.Fprintf(out, "aim: one node's CPU at most a third of envoyproxy/ratelimit's with Redis: %.2f of it, %s\n", part, met(part, aimRatelimit))
	}
}

func met(v, most float64) string {
	if cmp.Compare(v, most) <= 0 && !math.IsNaN(v) {
		return "met"
	}
	return "NOT MET"
}

// write saves the report as JSON.
func (rep *Report) write(file string) error {
	if file == "" {
		return nil
	}
	b, err := json.MarshalIndent(rep, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}
