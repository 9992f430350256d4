package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/ops/loadtest"
)

// Report is a whole run.
type Report struct {
	When        time.Time               `json:"when"`
	Machine     Machine                 `json:"machine"`
	Seconds     float64                 `json:"seconds"`
	Rounds      int                     `json:"rounds"`
	Levels      []int                   `json:"inflight"`
	Conns       int                     `json:"connections"`
	Keys        int                     `json:"keys"`
	Fill        int                     `json:"fill"`
	Rate        float64                 `json:"calls_per_second"`
	Contestants []*Entry                `json:"contestants"`
	Results     []*loadtest.Measurement `json:"results"`
	Half        []*loadtest.Measurement `json:"half"` // at half of what one node, and the constant server, can do
	Goals       []Goal                  `json:"goals"`
	LeftOut     []string                `json:"left_out,omitempty"`
}

// Machine is where it ran.
type Machine struct {
	CPU  string `json:"cpu"`
	CPUs int    `json:"cpus"`
	OS   string `json:"os"`
	Go   string `json:"go"`
}

// Entry is one contestant, apart from what its calls were like.
type Entry struct {
	Name      string  `json:"name"`
	Title     string  `json:"title"`
	Envoy     bool    `json:"behind_envoy"`
	RSS       int64   `json:"rss_bytes"`           // of all its processes after the rounds, Envoy apart
	KeyBytes  float64 `json:"key_bytes,omitempty"` // that RSS grew by for each key that was added
	Forwarded float64 `json:"forwarded"`           // share of Keyward's decisions
	Degraded  float64 `json:"degraded"`            // share of Keyward's decisions
	Uncounted *int    `json:"uncounted,omitempty"` // calls answered and not counted; errors may make it negative
}

// Goal is something that a run is to show.
type Goal struct {
	What  string          `json:"what"`
	Most  float64         `json:"at_most"`
	Value loadtest.Spread `json:"value"`
	Met   bool            `json:"met"`
	Note  string          `json:"note,omitempty"`
}

func newReport(o options) *Report {
	return &Report{
		When:    time.Now().UTC().Round(time.Second),
		Machine: Machine{CPU: cpuModel(), CPUs: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version()},
		Seconds: o.seconds, Rounds: o.rounds, Levels: o.levels, Conns: o.conns, Keys: o.keys, Fill: o.fill, Rate: o.rate,
	}
}

func cpuModel() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	_, rest, _ := strings.Cut(string(b), "model name")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.Trim(line, " \t:")
}

func (rep *Report) phases() []loadtest.Phase {
	var all []loadtest.Phase
	for _, n := range rep.Levels {
		all = append(all, loadtest.Phase{Inflight: n})
	}
	if rep.Rate > 0 {
		all = append(all, rep.paced())
	}
	return all
}

func (rep *Report) paced() loadtest.Phase { return loadtest.Phase{Rate: rep.Rate} }

// at is a contestant's row with that many calls in flight; nil: it was not measured.
func (rep *Report) at(name string, inflight int) *loadtest.Measurement {
	return loadtest.Find(rep.Results, name, loadtest.Phase{Inflight: inflight})
}

func (rep *Report) entry(name string) *Entry {
	for _, e := range rep.Contestants {
		if e.Name == name {
			return e
		}
	}
	return nil
}

// base returns the name of the contestant to compare with: the constant server, behind Envoy for those that are.
func (e *Entry) base() string {
	if e.Envoy {
		return nameEnvoyConstant
	}
	return nameConstant
}

// ratio is a contestant's CPU a call over the constant server's.
func (rep *Report) ratio(e *Entry, inflight int) loadtest.Spread {
	return loadtest.Ratio(rep.at(e.Name, inflight), rep.at(e.base(), inflight), loadtest.CPU)
}

// judge compares the results with the goals, if they were measured.
func (rep *Report) judge() {
	rep.Goals = nil
	cpu := func(of, to string, inflight int) loadtest.Spread {
		return loadtest.Ratio(rep.at(of, inflight), rep.at(to, inflight), loadtest.CPU)
	}
	rep.goal("CPU of one node over the constant server's, 64 in flight", 0.2, cpu(nameOne, nameConstant, 64), "")
	rep.goal("CPU of one node over the constant server's, 1 in flight", 0.6, cpu(nameOne, nameConstant, 1), "")
	rep.goal("CPU of three nodes with calls to any over the constant server's, 64 in flight", 0.6, cpu(nameThree, nameConstant, 64), "")
	rep.goal("CPU of one node over envoyproxy/ratelimit's with Redis, 64 in flight", 1.0/16, cpu(nameOne, nameRatelimit, 64), "about")
	rep.goal("CPU of one node over Limitador's, 64 in flight", 1.0/4, cpu(nameOne, nameLimitador, 64), "about")
	rep.goal("CPU of three nodes with calls to any over Gubernator's three, 64 in flight", 0.1, cpu(nameThree, nameGubernators, 64), "")
	rep.goal("CPU of three nodes with calls to the owner over three separate ones, 64 in flight", 1.15, cpu(nameDirect, nameAlone, 64), "")
	rep.goalAtHalf("p99 of one node over the constant server's, at half of what the node can do", nameOne)
	rep.goalAtHalf("p99 of one node over the constant server's, at half of what the constant server can do", nameConstant)
	rep.goal("latency (p50) that one node adds to Envoy's over what the constant server adds", 0.8, rep.added(p50), fmt.Sprintf("at %g calls a second", rep.Rate))
}

// goalAtHalf compares the latency at half of what one of the two can do.
func (rep *Report) goalAtHalf(what, whose string) {
	rate := math.Round(rep.most(whose) / 2)
	one, constant := loadtest.Find(rep.Half, nameOne, loadtest.Phase{Rate: rate}), loadtest.Find(rep.Half, nameConstant, loadtest.Phase{Rate: rate})
	note := fmt.Sprintf("at %.0f calls a second", rate)
	if constant != nil {
		if m := constant.Median(); m.Errors > 0 {
			note += fmt.Sprintf(", of which the constant server failed %.0f %%", 100*float64(m.Errors)/float64(m.Errors+m.Calls))
		}
	}
	rep.goal(what, 1, loadtest.Ratio(one, constant, p99), note)
}

func p50(f *loadtest.Figures) float64 { return f.P50 }
func p99(f *loadtest.Figures) float64 { return f.P99 }

// added compares what one node adds to a call through Envoy with what the constant server adds, round by round.
func (rep *Report) added(latency func(*loadtest.Figures) float64) loadtest.Spread {
	find := func(name string) *loadtest.Measurement { return loadtest.Find(rep.Results, name, rep.paced()) }
	none, one, constant := find(nameEnvoyNone), find(nameEnvoyOne), find(nameEnvoyConstant)
	if none == nil || one == nil || constant == nil {
		return loadtest.Spread{}
	}
	var v []float64
	for i := range none.Rounds {
		base := latency(&none.Rounds[i])
		v = append(v, (latency(&one.Rounds[i])-base)/(latency(&constant.Rounds[i])-base))
	}
	return loadtest.SpreadOf(v)
}

func (rep *Report) goal(what string, most float64, got loadtest.Spread, note string) {
	if got == (loadtest.Spread{}) {
		return
	}
	rep.Goals = append(rep.Goals, Goal{What: what, Most: most, Value: got, Met: atMost(got.Median, most), Note: note})
}

func atMost(v, most float64) bool { return cmp.Compare(v, most) <= 0 && !math.IsNaN(v) }

func met(v, most float64) string {
	if atMost(v, most) {
		return "met"
	}
	return "NOT MET"
}

// write saves the report as JSON.
func (rep *Report) write(file string) error {
	b, err := json.MarshalIndent(rep, "", "  ")
	if err != nil {
		return err
	}
	return save(file, append(b, '\n'))
}

func save(file string, content []byte) error {
	if file == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o644)
}

func readReport(file string) (*Report, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	rep := &Report{}
	return rep, json.Unmarshal(b, rep)
}
