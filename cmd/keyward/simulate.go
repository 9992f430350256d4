package main

import (
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/ops/replay"
)

// simulateFlags are the flags of `keyward simulate`.
type simulateFlags struct {
	logs        []string
	rules, old  string
	from        []string
	descriptors []string
	asking      replay.Actions
	reader      replay.LogReader
	config      config.Options
	stop        bool
	switches    rls.Switches
	top         int
}

func newSimulate() *cobra.Command {
	var f simulateFlags
	cmd := &cobra.Command{
		Use:     "simulate --log FILE --rules DIR [--against OLD]",
		Short:   "Replay Envoy access logs through rules and print what would be denied",
		Long:    helpText("simulate"),
		Example: helpExamples("simulate"),
		Args:    cobra.NoArgs,
	}
	format := outputFlag(cmd)
	f.define(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		rep, err := f.run(cmd.InOrStdin(), cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		return show(cmd.OutOrStdout(), *format, rep, func(w io.Writer) error { return printReport(w, rep, f.top) })
	}
	return cmd
}

func (f *simulateFlags) define(cmd *cobra.Command) {
	s := cmd.Flags()
	s.SortFlags = false
	s.StringArrayVar(&f.logs, "log", nil, "access log, a `file` or -; repeat it for each")
	s.StringVar(&f.rules, "rules", "", "`directory` or file of the rules to simulate")
	s.StringVar(&f.old, "against", "", "`directory` or file of the rules in force, to compare with")
	s.StringArrayVar(&f.from, "from", nil, "`KEY=SOURCE` of a descriptor key's value; repeat it for each key")
	s.StringArrayVar(&f.descriptors, "descriptor", nil, "`KEY,KEY` of a descriptor that Envoy sends; repeat it for each (default: one for each rule)")
	s.StringVar(&f.asking.Domain, "domain", "", "`domain` to replay (default: all, one filter after the other)")
	s.StringVar(&f.reader.Format, "format", "", "Envoy's format `string` of a text log")
	s.StringVar(&f.reader.Time, "time", "", "`field` of a request's time")
	s.StringVar(&f.reader.Hits, "hits", "", "`field` of the number of hits of a request (default: each has one)")
	s.IntVar(&f.top, "top", 10, "`number` of keys to list")
	s.BoolVar(&f.stop, "stop-when-over", false, "as STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT")
	s.BoolVar(&f.switches.Shadow, "shadow", false, "as SHADOW_MODE: rules count, and no request is denied")
	s.BoolVar(&f.switches.Quota, "quota", false, "as QUOTA_MODE")
	s.BoolVar(&f.config.MergeDomains, "merge-domain-configs", false, "merge files that define the same domain (MERGE_DOMAIN_CONFIG)")
	for _, name := range []string{"log", "rules"} {
		_ = cmd.MarkFlagRequired(name) // the flag exists
	}
}

// run reads the logs and the rules and replays them.
func (f *simulateFlags) run(stdin io.Reader, messages io.Writer) (*replay.RunReport, error) {
	if err := f.parse(); err != nil {
		return nil, err
	}
	newSide, err := f.side(f.rules)
	if err != nil {
		return nil, err
	}
	templates := newSide.side.Templates
	var old *replay.Side
	var oldWarnings []string
	if f.old != "" {
		o, err := f.side(f.old)
		if err != nil {
			return nil, fmt.Errorf("--against: %w", err)
		}
		old, oldWarnings = &o.side, o.warnings
		templates = append(templates[:len(templates):len(templates)], o.side.Templates...)
	}
	if err := errors.Join(f.asking.Check(templates)...); err != nil {
		return nil, err
	}
	if len(templates) == 0 {
		return nil, fmt.Errorf("nothing is asked about: %s", strings.Join(append(newSide.warnings, "the rules are empty"), "; "))
	}
	p := newProgress(messages)
	log, err := f.read(stdin, templates, p)
	if err != nil {
		return nil, err
	}
	rep := replay.Run(log, replay.Options{New: newSide.side, Old: old, Top: f.top, Progress: p.replayed})
	p.end()
	rep.New.Warnings = append(newSide.warnings, log.Missing(newSide.side.Templates)...)
	if rep.Old != nil {
		rep.Old.Warnings = append(oldWarnings, log.Missing(old.Templates)...)
	}
	return rep, nil
}

func (f *simulateFlags) parse() error {
	f.asking.From = map[string]replay.Source{}
	var faults []error
	for _, text := range f.from {
		key, source, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			faults = append(faults, fmt.Errorf("--from %s: want KEY=SOURCE", text))
			continue
		}
		s, err := replay.ParseSource(source)
		if err != nil {
			faults = append(faults, fmt.Errorf("--from %s: %w", text, err))
		}
		f.asking.From[key] = s
	}
	for _, d := range f.descriptors {
		f.asking.Descriptors = append(f.asking.Descriptors, strings.Split(d, ","))
	}
	if f.top < 0 {
		faults = append(faults, fmt.Errorf("--top %d: want 0 or more", f.top))
	}
	return errors.Join(faults...)
}

// warned is a side with its warnings.
type warned struct {
	side     replay.Side
	warnings []string
}

func (f *simulateFlags) side(path string) (warned, error) {
	rules, err := loadPath(path, f.config)
	if err != nil {
		return warned{}, err
	}
	templates, warnings := f.asking.Templates(rules)
	return warned{replay.Side{Name: path, Rules: rules, Templates: templates, Stop: f.stop, Switches: f.switches}, warnings}, nil
}

func (f *simulateFlags) read(stdin io.Reader, templates []replay.DescriptorTemplate, p *progress) (*replay.Log, error) {
	var in []io.Reader
	for _, name := range f.logs {
		if name == "-" {
			in = append(in, stdin)
			continue
		}
		file, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("read the log: %w", err)
		}
		defer file.Close()
		if info, err := file.Stat(); err == nil {
			p.size += info.Size()
		}
		if !strings.HasSuffix(name, ".gz") {
			in = append(in, file)
			continue
		}
		z, err := gzip.NewReader(file)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		in, p.size = append(in, z), 0 // the uncompressed size is unknown
	}
	return f.reader.Read(in, templates, p.read)
}

// progress prints the progress of a replay to a terminal. It prints nothing to a file or a pipe.
type progress struct {
	out  io.Writer // nil: no terminal
	size int64     // bytes of the logs; 0 when unknown
	last time.Time
}

func newProgress(out io.Writer) *progress {
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &progress{out: out}
	}
	return &progress{}
}

func (p *progress) tell(format string, a ...any) {
	if p.out == nil || time.Since(p.last) < 100*time.Millisecond {
		return
	}
	p.last = time.Now()
	fmt.Fprintf(p.out, "\r\x1b[K"+format, a...)
}

func (p *progress) read(bytes int64, lines int) {
	if p.size > 0 {
		p.tell("reading: %d%%, %s lines", min(100, 100*bytes/p.size), thousands(lines))
		return
	}
	p.tell("reading: %s lines", thousands(lines))
}

func (p *progress) replayed(done, all int) { p.tell("replaying: %d%%", 100*done/max(1, all)) }

func (p *progress) end() {
	if p.out != nil {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}

// thousands formats a number with commas.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func percent(part, whole int) string {
	if whole == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f %%", 100*float64(part)/float64(whole))
}

func printReport(out io.Writer, r *replay.RunReport, top int) error {
	const day = "2006-01-02 15:04:05"
	fmt.Fprintf(out, "%s requests, %s to %s UTC.", thousands(r.Requests), r.First.Format(day), r.Last.Format(day))
	if r.Skipped > 0 {
		fmt.Fprintf(out, " %s of %s lines could not be read: %s", thousands(r.Skipped), thousands(r.Lines), printable(r.SkippedWhy))
	}
	fmt.Fprint(out, "\n\n")
	err := table(out, func(t io.Writer) { printRefused(t, r) })
	if err != nil {
		return err
	}
	printChart(out, r)
	if r.Old != nil {
		if err := printOutcome(out, "OLD", r.Old, top); err != nil {
			return err
		}
	}
	return printOutcome(out, "NEW", &r.New, top)
}

// table aligns columns that fill separates by tabs, without trailing blanks.
func table(out io.Writer, fill func(t io.Writer)) error {
	var text strings.Builder
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fill(t)
	if err := t.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(text.String()) {
		fmt.Fprintln(out, strings.TrimRight(line, " \n"))
	}
	return nil
}

func printRefused(t io.Writer, r *replay.RunReport) {
	fmt.Fprintln(t, "REFUSED BY\tREQUESTS\t\t")
	fmt.Fprintf(t, "the log itself\t%s\t%s\t\n", thousands(r.RefusedByLog), percent(r.RefusedByLog, r.Requests))
	if r.Old != nil {
		fmt.Fprintf(t, "old: %s\t%s\t%s\t\n", r.Old.Rules, thousands(r.Old.Refused), percent(r.Old.Refused, r.Requests))
	}
	fmt.Fprintf(t, "new: %s\t%s\t%s\t\n", r.New.Rules, thousands(r.New.Refused), percent(r.New.Refused, r.Requests))
	if r.Old != nil {
		fmt.Fprintf(t, "  new only\t%s\t%s\t\n", thousands(r.OnlyNew), percent(r.OnlyNew, r.Requests))
		fmt.Fprintf(t, "  old only\t%s\t%s\t\n", thousands(r.OnlyOld), percent(r.OnlyOld, r.Requests))
	}
}

func printOutcome(out io.Writer, which string, o *replay.Outcome, top int) error {
	fmt.Fprintln(out)
	err := table(out, func(t io.Writer) {
		fmt.Fprintf(t, "%s RULE\tLIMIT\tASKED\tOVER\t\tKEYS OVER\tWORST MINUTE\n", which)
		for _, r := range o.PerRule {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", printable(r.Rule), limitText(r.Limit, r.Window), thousands(r.Asked), thousands(r.Over), percent(r.Over, r.Asked), thousands(r.Keys), worst(&r))
		}
	})
	if err == nil && len(o.TopKeys) > 0 && top > 0 {
		fmt.Fprintln(out)
		err = table(out, func(t io.Writer) {
			fmt.Fprintf(t, "%s KEY REFUSED MOST\tRULE\tASKED\tOVER\t\n", which)
			for _, k := range o.TopKeys {
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", printable(cutText(k.Key, 60)), printable(k.Rule), thousands(k.Asked), thousands(k.Over), percent(k.Over, k.Asked))
			}
		})
	}
	for _, w := range o.Warnings {
		fmt.Fprintf(out, "warning: %s\n", w)
	}
	return err
}

// worst describes a rule's worst minute.
func worst(r *replay.RuleResult) string {
	text := ""
	if r.Peak > 0 {
		at, _ := time.Parse(time.RFC3339, r.PeakTime) // it has this format
		text = fmt.Sprintf("%s at %s", thousands(r.Peak), at.Format("01-02 15:04"))
	}
	if r.Shadow {
		text = strings.TrimSpace(text + " (shadow: not enforced)")
	}
	return text
}

// chartWidth is the largest number of columns of a chart.
const chartWidth = 72

// printChart draws requests and denials over time, each line with its own scale.
func printChart(out io.Writer, r *replay.RunReport) {
	first, width := r.Buckets[0].Time.Unix(), r.BucketSeconds
	span := int((r.Buckets[len(r.Buckets)-1].Time.Unix()-first)/width) + 1
	each := (span + chartWidth - 1) / chartWidth // buckets per column
	columns := (span + each - 1) / each
	requests, news, olds := make([]int, columns), make([]int, columns), make([]int, columns)
	for _, b := range r.Buckets {
		at := int((b.Time.Unix()-first)/width) / each
		requests[at] += b.Requests
		news[at] += b.New
		olds[at] += b.Old
	}
	column := time.Duration(each) * time.Duration(width) * time.Second
	fmt.Fprintf(out, "\nEach column is %s from %s.\n", strings.TrimSuffix(column.String(), "0s"), r.Buckets[0].Time.Format("01-02 15:04"))
	most := func(v []int) (m int) {
		for _, n := range v {
			m = max(m, n)
		}
		return m
	}
	line := func(name string, v []int, scale int) {
		fmt.Fprintf(out, "%-9s %s  most %s\n", name, spark(v, scale), thousands(most(v)))
	}
	line("requests", requests, most(requests))
	scale := max(most(news), most(olds)) // old and new have the same scale
	if r.Old != nil {
		line("old over", olds, scale)
	}
	line(cmp.Or(map[bool]string{true: "new over"}[r.Old != nil], "refused"), news, scale)
}

// spark draws numbers as blocks of eight heights. 0 is a blank, and any other number has at least the smallest height.
func spark(v []int, most int) string {
	blocks := []rune(" ▁▂▃▄▅▆▇█")
	s := make([]rune, len(v))
	for i, n := range v {
		if s[i] = blocks[0]; n > 0 {
			s[i] = blocks[max(1, min(8, (8*n+most-1)/most))]
		}
	}
	return string(s)
}
