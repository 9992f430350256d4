// Package doctor diagnoses a cluster and the Envoys in front of it, and suggests fixes. It compares what the members
// report about themselves and about each other, and checks the configuration of the Envoys.
//
// The caller collects the data in a [Snapshot]. [Examine] performs no I/O.
package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/promtext"
)

// Severity states how serious a finding is.
type Severity string

// The levels.
const (
	OK   Severity = "ok"
	Warn Severity = "warn" // it works now, but may fail later, or does not work as intended
	Fail Severity = "fail" // limits are not enforced as configured, or soon will not be
)

// Finding is the result of one check. Text is one line. Advice is empty if there is nothing to do.
type Finding struct {
	Check    string   `json:"check"`
	Severity Severity `json:"level"`
	Text     string   `json:"text"`
	Advice   string   `json:"advice,omitempty"`
}

// Snapshot is the data that Examine checks.
type Snapshot struct {
	Now         time.Time
	Members     []MemberReport // processes that responded, including observers
	Unreachable []UnreachablePage
	Probes      []Probe
	Envoys      []EnvoyPages
	Rules       *LocalRules // nil if unknown
	NoRules     string      // the version of rules without a domain
}

// MemberReport holds the pages /cluster, /v1/self, /v1/hotkeys and /metrics of one process.
type MemberReport struct {
	Page    string
	Cluster api.ClusterStatus
	Self    *api.Self     // nil if it does not serve this page
	Ahead   time.Duration // difference of its clock to the local clock, estimated from one exchange
	Within  time.Duration // maximum error of Ahead
	Metrics promtext.Page
	HotKeys *api.HotKeys // nil if it counts nothing or did not respond
}

// UnreachablePage is an address that did not respond.
type UnreachablePage struct {
	Page, Name string // Name is empty if only the address is known
	Err        error
}

// Probe is the result of connecting to a port from this machine.
type Probe struct {
	Member, What, Address string // What is gossip/tcp, gossip/udp or peer/tcp
	Err                   error
}

// LocalRules are rules in local files that the members should be using.
type LocalRules struct {
	Path, Hash string
	Domains    []string
	Err        error
}

// Name returns the name of the member.
func (m *MemberReport) Name() string { return m.Cluster.Self }

// flag returns the value of a flag. It is empty if the member does not report it.
func (m *MemberReport) flag(name string) string {
	if m.Self == nil {
		return ""
	}
	return m.Self.Flags[name]
}

// observer reports whether the process does not count requests, such as an xDS server.
func (m *MemberReport) observer() bool {
	if m.Self != nil {
		return m.Self.Role == "observer"
	}
	return slices.ContainsFunc(m.Cluster.Members,
		func(x api.MemberStatus) bool { return x.ID == m.Name() && x.Role == "observer" })
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

// quiet adds an ok finding if this check has no other.
func (r *report) quiet(format string, args ...any) {
	if !slices.ContainsFunc(r.findings, func(f Finding) bool { return f.Check == r.check }) {
		r.ok(format, args...)
	}
}

// Examine runs every check. Each adds at least one finding. Causes come before their consequences.
func Examine(f *Snapshot) []Finding {
	var r report
	for _, c := range []struct {
		name string
		run  func(*Snapshot, *report)
	}{
		{"off the ring", offRing}, {"gossip keys", gossipKeys}, {"certificates", certificates},
		{"members", members}, {"ports", ports}, {"one cluster", oneCluster},
		{"clocks", clocks}, {"ring", onRing}, {"capacity", capacity}, {"expected", expected}, {"settings", settings},
		{"rules", rules}, {"direct", direct}, {"xds", served}, {"hot keys", hot}, {"modules", modules},
		{"memory", memory}, {"journal", journals}, {"authority", authority}, {"regions", regions}, {"versions", versions},
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

// Worst returns the worst severity among the findings.
func Worst(findings []Finding) Severity {
	worst := OK
	for _, f := range findings {
		if f.Severity == Fail || f.Severity == Warn && worst == OK {
			worst = f.Severity
		}
	}
	return worst
}

// counters returns the members that count requests: all but observers.
func (f *Snapshot) counters() (all []*MemberReport) {
	for i := range f.Members {
		if !f.Members[i].observer() {
			all = append(all, &f.Members[i])
		}
	}
	return all
}

// groups groups the names of members by a value. Members without a value are left out.
func groups(all []*MemberReport, value func(*MemberReport) string) map[string][]string {
	by := map[string][]string{}
	for _, m := range all {
		if s := value(m); s != "" {
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

// number returns a count with its noun, such as "2 members".
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
