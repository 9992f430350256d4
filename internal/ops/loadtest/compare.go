package loadtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Runner generates load. Load implements it.
type Runner interface {
	Run(ctx context.Context, p Phase, length time.Duration) (Calls, error)
}

// Contender is one service of a comparison.
type Contender struct {
	Name  string
	Load  Runner
	CPU   func() (time.Duration, error) // CPU time that its processes have used; nil if unknown
	Proxy func() (time.Duration, error) // CPU time that the proxy in front of them has used; nil if there is none
}

// Plan describes a comparison.
type Plan struct {
	Phases  []Phase
	Rounds  int
	Seconds float64 // of each contender in each phase of each round
	Warm    float64 // seconds before each contender's turn that are not measured
}

// Figures are the results of one phase of one round. CPU and latencies are in microseconds.
type Figures struct {
	Calls      int     `json:"calls"`
	Errors     int     `json:"errors,omitempty"`
	Over       int     `json:"over_limit,omitempty"`
	CPU        float64 `json:"cpu_us,omitempty"` // of the contender's processes, a call
	Proxy      float64 `json:"proxy_cpu_us,omitempty"`
	Throughput float64 `json:"calls_per_second"`
	P50        float64 `json:"p50_us"`
	P90        float64 `json:"p90_us"`
	P99        float64 `json:"p99_us"`
	P999       float64 `json:"p999_us"`
	Error      string  `json:"error,omitempty"` // one of the errors
}

// Spread is a figure over the rounds.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

func (s Spread) String() string { return fmt.Sprintf("%.1f (%.1f..%.1f)", s.Median, s.Min, s.Max) }

// SpreadOf is the spread of values; the zero Spread of none.
func SpreadOf(values []float64) Spread {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	if n == 0 {
		return Spread{}
	}
	return Spread{Median: (v[(n-1)/2] + v[n/2]) / 2, Min: v[0], Max: v[n-1]}
}

// Measurement is one contender in one phase, over all rounds.
type Measurement struct {
	Name   string    `json:"name"`
	Phase  Phase     `json:"phase"`
	Rounds []Figures `json:"rounds"`
}

// Over is a figure over the rounds.
func (r *Measurement) Over(figure func(f *Figures) float64) Spread {
	var v []float64
	for i := range r.Rounds {
		v = append(v, figure(&r.Rounds[i]))
	}
	return SpreadOf(v)
}

// Median is the medians of all figures; calls, errors and refusals are sums.
func (r *Measurement) Median() Figures {
	m := func(figure func(f *Figures) float64) float64 { return r.Over(figure).Median }
	sum := Figures{
		CPU: m(CPU), Proxy: m(func(f *Figures) float64 { return f.Proxy }), Throughput: m(Throughput),
		P50: m(func(f *Figures) float64 { return f.P50 }), P90: m(func(f *Figures) float64 { return f.P90 }),
		P99: m(func(f *Figures) float64 { return f.P99 }), P999: m(func(f *Figures) float64 { return f.P999 }),
	}
	for _, f := range r.Rounds {
		sum.Calls, sum.Errors, sum.Over = sum.Calls+f.Calls, sum.Errors+f.Errors, sum.Over+f.Over
		sum.Error = cmp.Or(sum.Error, f.Error)
	}
	return sum
}

// CPU is the figure of that name.
func CPU(f *Figures) float64 { return f.CPU }

// Throughput is the figure of that name.
func Throughput(f *Figures) float64 { return f.Throughput }

// Ratio compares a figure of two rows round by round: what slows the machine down for a while slows both. It is the zero Spread where either
// has none of it.
func Ratio(of, to *Measurement, figure func(f *Figures) float64) Spread {
	if of == nil || to == nil || len(of.Rounds) != len(to.Rounds) {
		return Spread{}
	}
	var v []float64
	for i := range of.Rounds {
		a, b := figure(&of.Rounds[i]), figure(&to.Rounds[i])
		if a == 0 || b == 0 {
			return Spread{}
		}
		v = append(v, a/b)
	}
	return SpreadOf(v)
}

// Find is the row of a contender in a phase; nil: there is none.
func Find(rows []*Measurement, name string, p Phase) *Measurement {
	for _, r := range rows {
		if r.Name == name && r.Phase == p {
			return r
		}
	}
	return nil
}

// Compare measures all contenders in rounds, each round starting with another one, so that other work on the machine affects all of them alike.
// It calls report with each row's figures as they come.
func Compare(ctx context.Context, p Plan, all []*Contender, report func(round int, r *Measurement, f Figures)) ([]*Measurement, error) {
	var rows []*Measurement
	for _, c := range all {
		for _, phase := range p.Phases {
			rows = append(rows, &Measurement{Name: c.Name, Phase: phase})
		}
	}
	for round := range p.Rounds {
		for i := range all {
			i = (round + i) % len(all)
			mine := rows[i*len(p.Phases) : (i+1)*len(p.Phases)]
			if err := all[i].round(ctx, p, mine, func(r *Measurement, f Figures) { report(round+1, r, f) }); err != nil {
				return rows, fmt.Errorf("%s: %w", all[i].Name, err)
			}
		}
	}
	return rows, nil
}

func (c *Contender) round(ctx context.Context, p Plan, rows []*Measurement, report func(*Measurement, Figures)) error {
	if p.Warm > 0 {
		if _, err := c.Load.Run(ctx, p.Phases[0], seconds(p.Warm)); err != nil {
			return err
		}
	}
	for _, r := range rows {
		f, err := c.measure(ctx, r.Phase, seconds(p.Seconds))
		if err != nil {
			return fmt.Errorf("%v: %w", r.Phase, err)
		}
		r.Rounds = append(r.Rounds, f)
		report(r, f)
	}
	return nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// measure runs the load and accounts for the CPU that processes spent meanwhile.
func (c *Contender) measure(ctx context.Context, p Phase, length time.Duration) (Figures, error) {
	spent := [2]func() (time.Duration, error){c.CPU, c.Proxy}
	var before, after [2]time.Duration
	var errs [5]error
	for i, read := range spent {
		if read != nil {
			before[i], errs[i] = read()
		}
	}
	got, err := c.Load.Run(ctx, p, length)
	errs[4] = err
	for i, read := range spent {
		if read != nil {
			after[i], errs[2+i] = read()
		}
	}
	if err := errors.Join(errs[:]...); err != nil {
		return Figures{}, err
	}
	n := got.Answered()
	if n == 0 {
		return Figures{}, fmt.Errorf("no call was answered, %d failed: %w", got.Errors, got.Err)
	}
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	q := func(q float64) float64 { return us(got.Latency.Quantile(q)) }
	why := ""
	if got.Err != nil {
		why = got.Err.Error()
	}
	return Figures{
		Calls: n, Errors: got.Errors, Over: got.Over, Error: why,
		CPU: us(after[0]-before[0]) / float64(n), Proxy: us(after[1]-before[1]) / float64(n),
		Throughput: float64(n) / got.Elapsed.Seconds(), P50: q(0.5), P90: q(0.9), P99: q(0.99), P999: q(0.999),
	}, nil
}
