package loadtest

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Report is the printed form of a comparison. All servers are compared with the first one.
type Report struct {
	Rounds  int     `json:"rounds"`
	Seconds float64 `json:"seconds"` // of each server in each phase of each round
	Lines   []Line  `json:"results"`
}

// Line is a server in a phase: medians over the rounds.
type Line struct {
	Name  string `json:"server"`
	Phase Phase  `json:"phase"`
	Figures
	CPURatio        *Spread `json:"cpu_ratio,omitempty"` // to the first server, round by round; none: a CPU is not known
	ThroughputRatio *Spread `json:"throughput_ratio,omitempty"`
	P99Ratio        *Spread `json:"p99_ratio,omitempty"`
}

// NewReport makes the report of what Compare measured.
func NewReport(p Plan, rows []*Measurement) *Report {
	rep := &Report{Rounds: p.Rounds, Seconds: p.Seconds}
	for _, phase := range p.Phases {
		var first *Measurement
		for _, r := range rows {
			if r.Phase != phase {
				continue
			}
			l := Line{Name: r.Name, Phase: phase, Figures: r.Median()}
			if first == nil {
				first = r
			} else {
				l.CPURatio = known(Ratio(r, first, CPU))
				l.ThroughputRatio = known(Ratio(r, first, Throughput))
				l.P99Ratio = known(Ratio(r, first, func(f *Figures) float64 { return f.P99 }))
			}
			rep.Lines = append(rep.Lines, l)
		}
	}
	return rep
}

func known(s Spread) *Spread {
	if s == (Spread{}) {
		return nil
	}
	return &s
}

// Text writes a table for each phase.
func (rep *Report) Text(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	var phase Phase
	for _, l := range rep.Lines {
		if l.Phase != phase {
			phase = l.Phase
			fmt.Fprintf(w, "\n%v\tCPU us\tx first (min..max)\tcalls/s\tp50 ms\tp90 ms\tp99 ms\tp99.9 ms\tx first\trefused\tfailed\n", phase)
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%.0f\t%.3f\t%.3f\t%.3f\t%.3f\t%s\t%d\t%d\n", l.Name, orDash(l.CPU), l.CPURatio.times(true), l.Throughput,
			l.P50/1000, l.P90/1000, l.P99/1000, l.P999/1000, l.P99Ratio.times(false), l.Over, l.Errors)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, l := range rep.Lines {
		if l.Error != "" {
			fmt.Fprintf(out, "\n%s, %v: %d failed, one because: %s", l.Name, l.Phase, l.Errors, l.Error)
		}
	}
	_, err := fmt.Fprintf(out, "\nMedians of %d rounds of %g s each. CPU is the time that the server's process spent on a call; \"-\": its process is not known, see --pid.\n"+
		"\"x first\": as many times as much as the first server, in CPU and in p99, round by round.\n", rep.Rounds, rep.Seconds)
	return err
}

func (s *Spread) times(all bool) string {
	switch {
	case s == nil:
		return "-"
	case all:
		return fmt.Sprintf("%.2f (%.2f..%.2f)", s.Median, s.Min, s.Max)
	}
	return fmt.Sprintf("%.2f", s.Median)
}

func orDash(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", v)
}
