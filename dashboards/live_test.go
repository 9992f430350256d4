package dashboards

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// chosen is what the boards' variables stand for in tests: everything.
var chosen = strings.NewReplacer("$cluster", ".*", "$namespace", ".*", "$job", ".*", "$instance", ".*", "$domain", ".*", "$rls", "keyward|ratelimit.*",
	"$__rate_interval", "10s")

// moments is why a metric or an alert need not be seen although this test causes its trouble: it may be over before the next
// scrape.
const moments = "lasts for moments"

// flat are the metrics that stay 0 even while everything goes wrong that this test makes go wrong, with the reason.
var flat = map[string]string{
	"keyward_ring_disagreement":           moments,
	"keyward_ring_incomplete":             moments,
	"keyward_ring_acks_missing":           moments,
	"keyward_handoff_unconfirmed_members": moments,
	"keyward_lease_unreachable_holders":   moments,
	"keyward_rules_disagreement":          moments,
	"keyward_waiting_questions":           moments,
	"keyward_cluster_collisions_total":    "two members under one name end each other; cluster's tests have them",
	"keyward_gossip_health_score":         "rises when packets get lost",
	"keyward_gossip_refused":              "rises with announcements that only a foreign program sends",
	"keyward_handoff_incomplete_total":    "a transfer lasts for milliseconds; test/sim breaks them off",
	"keyward_drains_incomplete_total":     "told in the moments before the process ends",
	"keyward_waits_refused_total":         "wants more waiting questions than this load asks",
	"keyward_share_untold_hits_total":     "wants more keys admitted by shares than there is memory for",
	"keyward_charges_refused_total":       "wants more charges without a copy than there is memory for",
	"keyward_lease_violations_total":      "is 0 unless a clock steps or the code is wrong",
	"keyward_copies_total":                "copies have twice the room of counters, more than this load fills; owner's tests do",
	"keyward_stats_overflow_total":        "wants thousands of detailed series",
	"envoy_cluster_upstream_rq_timeout":   "Envoy asks the heir in time",
	"keyward_off_ring":                    "wants a member that is set up wrongly; cluster's tests have them",
	"keyward_cluster_joined":              "members are scraped once they have joined",
	"keyward_clock_fences_total":          "wants a clock that stands still or is set",
	"keyward_clock_steps_total":           "wants a clock that is set",
	"keyward_certificate_reloads_total":   "certificates stay; security's tests change them",

	"keyward_connection_wait_seconds_total": "wants connections that send much and ask little; gate's tests have them",
}

// still are parts of queries that stay 0 although others of the same metrics do not, with the reason.
var still = map[string]string{
	`authority="shed"`:    "wants an owner that is alive and too slow; peer's tests have one",
	`result=~"late|shed"`: "the same",
	`unless on (cluster, job, instance) keyward_rules_version_info`: "wants a member whose first rules are faulty",
}

// staysFlat reports whether a query need not show anything but 0.
func staysFlat(expr string) bool {
	for part := range still {
		if strings.Contains(expr, part) {
			return true
		}
	}
	return flat[named.FindString(expr)] != ""
}

// silent are the alerts that nothing in this test makes fire, with the reason.
var silent = map[string]string{
	"KeywardRingDisagreement":        moments,
	"KeywardTokensVoid":              moments,
	"KeywardAcksMissing":             moments,
	"KeywardHandoffIncomplete":       moments,
	"KeywardLeaseHoldersUnreachable": moments,
	"KeywardRulesDisagreement":       moments,
	"KeywardNotJoined":               "members are scraped once they have joined",
	"KeywardOffRing":                 "wants a member that is set up wrongly; cluster's tests have them",
	"KeywardNoRules":                 "wants a member whose first rules are faulty",
	"KeywardClockFence":              "wants a clock that stands still or is set",
	"KeywardShed":                    "wants an owner that is alive and too slow",
	"KeywardChargesRefused":          "wants more charges without a copy than there is memory for",
	"KeywardConnectionsWait":         "wants connections that send much and ask little",
	"KeywardNameServiceDown":         "members are given addresses, no names",
	"KeywardDrainIncomplete":         "told in the moments before the process ends",
	"KeywardSkew":                    "all share one clock",
	"KeywardMisrouted":               "Envoy follows xDS",
	"KeywardFallback":                "takes five minutes",
	"KeywardLeaseViolation":          "wants a clock that steps",
	"KeywardSlowDecisions":           "depends on the machine",
	"KeywardCertificateExpiring":     "demo certificates last for a year",
	"KeywardCertificateNotReloaded":  "certificates stay; security's tests change them",
	"KeywardNameCollision":           "two members under one name end each other",
	"KeywardGossipUnhealthy":         "wants lost packets",
	"KeywardRefused":                 "wants more than one caller a second",
}

// named finds what a query asks for.
var named = regexp.MustCompile(`\b(?:keyward|ratelimit|envoy)_[a-z_0-9]+`)

// TestLive asks every query of every panel, variable and annotation of a real Prometheus that scrapes a real cluster under
// load. While all is well each must find something, the panels of faults apart, and no alert may fire; when things have gone
// wrong, each must have shown something else than 0.
func TestLive(t *testing.T) {
	if base := os.Getenv("KEYWARD_PROMETHEUS"); base != "" { // scripts/compose has its own
		healthy(t, base)
		return
	}
	envoy := os.Getenv("ENVOY_BIN")
	if envoy == "" {
		t.Skip("ENVOY_BIN names no Envoy: make boards")
	}
	prometheus, err := exec.LookPath("prometheus")
	if err != nil {
		missing(t, "Prometheus")
	}
	c := newTown(t, envoy)
	began := time.Now()
	base := prometheusOf(t, prometheus, c.Dir, c.targets()...)
	c.wait(8 * time.Second)
	c.changes()
	c.wait(5 * time.Second)
	healthy(t, base)
	show(t, c, base)
	c.faults()
	moved(t, base, began)
	alarmed(t, base, began)
}

// moved wants every query to have shown something else than 0 since then.
func moved(t *testing.T, base string, began time.Time) {
	t.Helper()
	for _, b := range All() {
		for _, q := range b.queries() {
			if q.label != "" || staysFlat(q.Expr) {
				continue
			}
			if all, err := query(t.Context(), base, chosen.Replace(written(q.Expr)), began); err != nil {
				t.Errorf("%s: %v", q.where, err)
			} else if !some(all, notZero) {
				t.Errorf("%s: nothing but 0 all the time: %s", q.where, q.Expr)
			}
		}
	}
}

// alarmed wants every alert's condition to have held for a moment, that of the silent ones apart. How long it must hold is
// for promtool's tests.
func alarmed(t *testing.T, base string, began time.Time) {
	t.Helper()
	for _, a := range readAlerts(t) {
		all, err := query(t.Context(), base, a.Expr, began)
		if err != nil {
			t.Errorf("%s: %v", a.Alert, err)
		}
		if _, ok := silent[a.Alert]; !ok && len(all) == 0 {
			t.Errorf("%s: nothing that went wrong makes it fire: %s", a.Alert, a.Expr)
		}
	}
}

// missing skips a test that wants programs which are not here; where KEYWARD_BOARDS=required says that they are, it fails.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("KEYWARD_BOARDS") == "required" {
		t.Fatalf("%s must be there", what)
	}
	t.Skipf("%s: not here", what)
}

// healthy wants a value for every query, which the next scrapes may bring, and no alert.
func healthy(t *testing.T, base string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var open []asking
	for _, b := range All() {
		open = append(open, b.queries()...)
	}
	open = slices.DeleteFunc(open, func(q asking) bool { return q.Fault })
	_ = lab.Await(within(t, 20*time.Second), "all queries to find something", func(context.Context) error {
		open = slices.DeleteFunc(open, func(q asking) bool { return q.finds(ctx, t, base) })
		if len(open) > 0 {
			return errors.New("some find nothing")
		}
		return nil
	})
	for _, q := range open {
		t.Errorf("%s: finds nothing: %s", q.where, q.Expr)
	}
	for _, a := range readAlerts(t) {
		if _, err := query(ctx, base, a.Expr, time.Time{}); err != nil {
			t.Errorf("%s: %v", a.Alert, err)
		}
		if all, err := query(ctx, base, fmt.Sprintf(`ALERTS{alertname=%q,alertstate="firing"}`, a.Alert), time.Time{}); err != nil || len(all) > 0 {
			t.Errorf("%s: fires in a healthy cluster: %v, %v", a.Alert, all, err)
		}
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// asking is a query of a board and where it stands.
type asking struct {
	Query
	where        string
	label, regex string // of a variable: whose values it lists
}

// finds says whether a query has a number for a result now.
func (q asking) finds(ctx context.Context, t *testing.T, base string) bool {
	t.Helper()
	all, err := query(ctx, base, chosen.Replace(written(q.Expr)), time.Time{})
	if err != nil {
		t.Fatalf("%s: %v", q.where, err)
	}
	return some(all, number) && q.serves(all)
}

// serves says whether a variable's label has a value to choose; of other queries, that they are no variable's.
func (q asking) serves(all []result) bool {
	if q.label == "" {
		return true
	}
	keep := regexp.MustCompile(strings.Trim(strings.NewReplacer("(?!-xds)", "").Replace(q.regex), "/"))
	for _, r := range all {
		if v := r.labels[q.label]; v != "" && keep.MatchString(v) {
			return true
		}
	}
	return false
}

// queries are all expressions of a board.
func (b Board) queries() (all []asking) {
	for _, r := range b.Rows {
		for _, p := range r.Panels {
			for _, q := range p.Queries {
				all = append(all, asking{Query: q, where: fmt.Sprintf("%s: %s: %s: %q", b.Title, r.Title, p.Title, q.Legend)})
			}
		}
	}
	for _, v := range b.choices() {
		all = append(all, asking{Query: Query{Expr: v.Metric}, where: b.Title + ": variable " + v.Name, label: v.Value, regex: v.Regex})
	}
	for _, a := range annotations() {
		all = append(all, asking{Query: Query{Expr: a.Expr, Fault: true}, where: b.Title + ": annotation " + a.Name}) // an event, which need not be now
	}
	return all
}

// show keeps the cluster as it is for as long as KEYWARD_SHOW says, for looking at the boards, then has the command in
// KEYWARD_SHOW_WITH look at them; both are set by picture/take.
func show(t *testing.T, c *town, base string) {
	t.Helper()
	d, err := time.ParseDuration(os.Getenv("KEYWARD_SHOW"))
	if err != nil {
		return
	}
	c.wait(d)
	c.faults()
	c.rules(fmt.Sprintf(liveRules, 320), c.Sidecars...)
	c.wait(40 * time.Second)
	cmd := exec.CommandContext(t.Context(), os.Getenv("KEYWARD_SHOW_WITH"), base)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Skip("the boards were shown")
}
