// Package doctor says what is wrong with a cluster and with the Envoys in front of it, and what to do: from what its
// members say of themselves and of each other, and from Envoys' own configuration.
//
// It only judges. Whoever calls it has asked ([Facts]).
package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/promtext"
)

// Severity is how bad a finding is.
type Severity string

// The levels.
const (
	OK   Severity = "ok"
	Warn Severity = "warn" // it works, and will not always, or not as meant
	Fail Severity = "fail" // limits are not held as configured, or will soon not be
)

// Finding is the result of one check. Text is one line; Advice, what to do, is empty when nothing is to be done.
type Finding struct {
	Check    string   `json:"check"`
	Severity Severity `json:"level"`
	Text     string   `json:"text"`
	Advice   string   `json:"advice,omitempty"`
}

// Snapshot are what has been asked.
type Snapshot struct {
	Now         time.Time
	Members     []MemberReport // processes that answered, observers among them
	Unreachable []UnreachablePage
	Probes      []Probe
	Envoys      []EnvoyPages
	Rules       *LocalRules // nil: not given
	NoRules     string      // the version of rules without any domain
}

// MemberReport is one process: what it says at /cluster, /v1/self and /metrics.
type MemberReport struct {
	Page    string
	Cluster api.ClusterStatus
	Self    *api.Self     // nil: it does not serve it
	Ahead   time.Duration // its clock before the one here, as far as one exchange tells
	Within  time.Duration // how far Ahead may be wrong
	Metrics promtext.Page
}

// UnreachablePage is a page that nobody answered at.
type UnreachablePage struct {
	Page, Name string // Name is empty when nobody knows it but by its address
	Err        error
}

// Probe is one try to reach a port from here.
type Probe struct {
	Member, What, Address string // What is gossip/tcp, gossip/udp or peer/tcp
	Err                   error
}

// LocalRules are rules in files that the members should have in force.
type LocalRules struct {
	Path, Hash string
	Domains    []string
	Err        error
}

// Name is the member's own.
func (m *MemberReport) Name() string { return m.Cluster.Self }

// flag is a flag in force; empty when it is not told.
func (m *MemberReport) flag(name string) string {
	if m.Self == nil {
		return ""
	}
	return m.Self.Flags[name]
}

// observer says that the process counts nothing: cmd/xds.
func (m *MemberReport) observer() bool {
	if m.Self != nil {
		return m.Self.Role == "observer"
	}
	return slices.ContainsFunc(m.Cluster.Members, func(x api.MemberStatus) bool { return x.ID == m.Name() && x.Role == "observer" })
}

// report collects findings.
type report struct {
	check    string
	findings []Finding
}

func (r *report) add(level Severity, advice, format string, args ...any) {
	r.findings = append(r.findings, Finding{r.check, level, fmt.Sprintf(format, args...), advice})
}

func (r *report) ok(format string, args ...any)           { r.add(OK, "", format, args...) }
func (r *report) warn(advice, format string, args ...any) { r.add(Warn, advice, format, args...) }
func (r *report) fail(advice, format string, args ...any) { r.add(Fail, advice, format, args...) }

// quiet adds an ok line when nothing else was found in this check.
func (r *report) quiet(format string, args ...any) {
	if !slices.ContainsFunc(r.findings, func(f Finding) bool { return f.Check == r.check }) {
		r.ok(format, args...)
	}
}

// Examine runs every check, each of which adds at least one finding: causes before what follows from them.
func Examine(f *Snapshot) []Finding {
	var r report
	for _, c := range []struct {
		name string
		run  func(*Snapshot, *report)
	}{
		{"off the ring", offRing}, {"gossip keys", gossipKeys}, {"certificates", certificates}, {"members", members}, {"ports", ports}, {"one cluster", oneCluster},
		{"clocks", clocks}, {"ring", onRing}, {"capacity", capacity}, {"expected", expected}, {"settings", settings},
		{"rules", rules}, {"direct", direct}, {"xds", served}, {"memory", memory}, {"authority", authority}, {"versions", versions},
	} {
		r.check = c.name
		c.run(f, &r)
	}
	for i := range f.Envoys {
		r.check = "envoy"
		examineEnvoy(f, &f.Envoys[i], &r)
	}
	return r.findings
}

// Worst is the worst level there is.
func Worst(findings []Finding) Severity {
	worst := OK
	for _, f := range findings {
		if f.Severity == Fail || f.Severity == Warn && worst == OK {
			worst = f.Severity
		}
	}
	return worst
}

// counters are the members that count: all but observers.
func (f *Snapshot) counters() (all []*MemberReport) {
	for i := range f.Members {
		if !f.Members[i].observer() {
			all = append(all, &f.Members[i])
		}
	}
	return all
}

// groups puts members together by what they say; a member without an answer is in none.
func groups(all []*MemberReport, say func(*MemberReport) string) map[string][]string {
	by := map[string][]string{}
	for _, m := range all {
		if s := say(m); s != "" {
			by[s] = append(by[s], m.Name())
		}
	}
	return by
}

// formatGroups lists groups as "a, b: x; c: y".
func formatGroups(by map[string][]string) string {
	var parts []string
	for what, names := range by {
		slices.Sort(names)
		parts = append(parts, strings.Join(names, ", ")+": "+what)
	}
	slices.Sort(parts)
	return strings.Join(parts, "; ")
}

// number is n of a thing, as people write it.
func number(n int, thing string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(thing, "s"):
		thing += "es"
	default:
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}
