package loadtest

import (
	"context"
	"strings"
	"testing"
	"time"
)

func TestHistogram(t *testing.T) {
	var h, even Histogram
	for i := range 100_000 {
		d := time.Duration(i+1) * time.Microsecond
		if i%2 == 1 {
			even.Add(d)
		} else {
			h.Add(d)
		}
	}
	h.Merge(&even)
	for _, q := range []float64{0.001, 0.5, 0.9, 0.99, 0.999, 1} {
		want := time.Duration(q * 1e5 * float64(time.Microsecond))
		if got := h.Quantile(q); got < want || float64(got) > float64(want)*1.01 {
			t.Errorf("%v: %v, want %v", q, got, want)
		}
	}
	h.Add(-1)
	h.Add(time.Hour)
	if h.Count() != 100_002 || h.Quantile(0) != 1 || h.Quantile(1) < 990*time.Second {
		t.Errorf("%d durations from %v to %v", h.Count(), h.Quantile(0), h.Quantile(1))
	}
	if got := new(Histogram).Quantile(0.5); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

// Ratios are taken within a round: one in which the machine was busy must not be set against one in which it was not.
func TestRatioIsOfRounds(t *testing.T) {
	row := func(cpu ...float64) *Measurement {
		r := &Measurement{}
		for _, us := range cpu {
			r.Rounds = append(r.Rounds, Figures{CPU: us})
		}
		return r
	}
	if got, want := Ratio(row(20, 90, 50), row(10, 90, 10), CPU), (Spread{2, 1, 5}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if got := Ratio(row(20), row(0), CPU); got != (Spread{}) {
		t.Errorf("to nothing: %v", got)
	}
}

// script answers with what a list says, without a server.
type script struct {
	name string
	log  *[]string
}

func (s script) Run(_ context.Context, p Phase, _ time.Duration) (r Calls, _ error) {
	*s.log = append(*s.log, s.name+" "+p.String())
	r.OK, r.Elapsed = 10, time.Second
	r.Latency.Add(time.Millisecond)
	return r, nil
}

func TestCompareInTurns(t *testing.T) {
	var log []string
	spent := time.Duration(0)
	cpu := func() (time.Duration, error) { spent += time.Millisecond; return spent, nil }
	all := []*Contender{{Name: "a", Load: script{"a", &log}, CPU: cpu}, {Name: "b", Load: script{"b", &log}}}
	seen := 0
	rows, err := Compare(t.Context(), Plan{Phases: []Phase{{Inflight: 1}, {Rate: 5}}, Rounds: 2, Seconds: 1}, all, func(int, *Measurement, Figures) { seen++ })
	if err != nil {
		t.Fatal(err)
	}
	want := "a 1 in flight,a 5 calls a second,b 1 in flight,b 5 calls a second,b 1 in flight,b 5 calls a second,a 1 in flight,a 5 calls a second"
	if got := strings.Join(log, ","); got != want || seen != 8 {
		t.Errorf("%s; %d rows reported", got, seen)
	}
	if m := Find(rows, "a", Phase{Rate: 5}).Median(); m.CPU != 100 || m.Calls != 20 || m.Throughput != 10 || m.P50 != 1000 {
		t.Errorf("%+v", m)
	}
}
