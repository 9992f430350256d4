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

// chosen replaces the boards' variables in tests; they match everything.
var chosen = strings.NewReplacer("$cluster", ".*", "$namespace", ".*", "$job", ".*", "$instance", ".*", "$domain", ".*", "$rls", "keyward|ratelimit.*",
	"$__rate_interval", "10s")

// moments is the reason why a metric or an alert may be missed although this test causes it: it may be over before the
// next scrape.
const moments = "lasts for moments"

// flat are the metrics that stay 0 during all faults of this test, with the reason.
var flat = map[string]string{
	"keyward_ring_disagreement":           moments,
	"keyward_ring_incomplete":             moments,
	"keyward_ring_acks_missing":           moments,
	"keyward_handoff_unconfirmed_members": moments,
	"keyward_lease_unreachable_holders":   moments,
	"keyward_rules_disagreement":          moments,
	"keyward_waiting_questions":           moments,
	"keyward_audit_records_total":         "needs a sink that fails; see the tests of app",
	"keyward_cluster_collisions_total":    "needs two members with one name, of which one exits; see the tests of cluster",
	"keyward_gossip_health_score":         "needs packet loss",
	"keyward_gossip_refused":              "needs announcements that only a foreign program sends",
	"keyward_handoff_incomplete_total":    "a transfer takes milliseconds; test/sim interrupts them",
	"keyward_drains_incomplete_total":     "reported moments before the process ends",
	"keyward_waits_refused_total":         "needs more waiting requests than this load has",
	"keyward_share_taken_back_hits_total": "needs an owner that charges requests after its silence; see the tests of peer",
	"keyward_share_untold_hits_total":     "needs more keys admitted from shares than fit in memory",
	"keyward_charges_refused_total":       "needs more unreplicated charges than fit in memory",
	"keyward_lease_violations_total":      "0 unless a clock steps or the code has a bug",
	"keyward_copies_total":                "replicas have twice the room of counters, more than this load fills; see the tests of owner",
	"keyward_stats_overflow_total":        "needs thousands of detailed series",
	"envoy_cluster_upstream_rq_timeout":   "Envoy retries at the successor in time",
	"keyward_off_ring":                    "needs a misconfigured member; see the tests of cluster",
	"keyward_cluster_joined":              "members are scraped once they have joined",
	"keyward_journal_missing":             "needs the loss of all members and of a volume; see the tests of test/e2e",
	"keyward_journal_bad_blocks_total":    "needs a faulty disk; see the tests of journal",
	"keyward_clock_fences_total":          "needs a clock that stops or is set",
	"keyward_clock_steps_total":           "needs a clock that is set",
	"keyward_certificate_reloads_total":   "certificates do not change here; see the security tests",

	"keyward_federation_escrows_refused_total": "needs more keys than this load has; see the tests of owner",
	"keyward_federation_dropped_total":         "needs more requests than this load has",
	"keyward_federation_refused_total":         "needs another layout, or late requests",
	"keyward_federation_clock_offset_seconds":  "all processes share one clock",
	"keyward_federation_repaired_hits_total":   "needs a Redis that loses writes; see the tests of federation/redis",
	"keyward_coordinator_repaired_hits_total":  "needs a store that loses writes; see the tests of federation/postgres",
	"keyward_coordinator_refused_total":        "needs another layout, or late requests",
	"keyward_coordinator_store_errors_total":   "the coordinator's memory does not fail",

	"keyward_holds_settlements_waiting":    moments,
	"keyward_holds_settlements_lost_total": "needs an owner that is away for a minute; see the tests of peer",
	"keyward_holds_lost_hits_total":        "needs an owner that fails while it gives hits back; see the tests of owner",
	"keyward_holds_copies_dropped_total":   "needs more holds than this load has; see the tests of owner",
	"keyward_holds_abandoned_total":        "needs callers that give up while a member decides; see the tests of rls",
	"keyward_holds_callers_dead_total":     "needs an Envoy that dies; see the tests of test/e2e",
	"keyward_holds_sets_unclaimed_total":   "needs more holds than this load has; see the tests of owner",
	"keyward_budget_events_lost_total":     "needs more keys than this load has; see the tests of owner",

	"keyward_quota_unsent_total":            "needs a stream that ends while a response is made; see the tests of assign",
	"keyward_quota_credited_hits_total":     "needs load that moves between Envoys; see the tests of quota",
	"keyward_quota_returned_hits_total":     "needs load that falls; see the tests of quota",
	"keyward_quota_unreturned_hits_total":   "needs an owner that is away; see the tests of assign",
	"keyward_module_unreturned_hits_total":  "needs an owner that is away; see the tests of modules",
	"keyward_module_expired_hits_total":     "needs leases that are used until a window ends",
	"keyward_module_full_total":             "needs more leases than this load has; see the tests of sublease",
	"keyward_connection_wait_seconds_total": "needs connections with much data and few calls; see the tests of connguard",
}

// still are parts of queries that stay 0 although others of the same metric do not, with the reason.
var still = map[string]string{
	`authority="shed"`:       "needs a live owner that is too slow; see the tests of peer",
	`result=~"late|shed"`:    "the same",
	`1 - keyward_journal_up`: "needs a disk that fails; see the tests of durable",
	`reason="unread"`:        "needs an Envoy that does not read; see the tests of rlqs",
	`unless on (cluster, job, instance) keyward_rules_version_info`: "needs a member whose first rules are invalid",
}

// staysFlat reports whether a query may stay 0.
func staysFlat(expr string) bool {
	for part := range still {
		if strings.Contains(expr, part) {
			return true
		}
	}
	return flat[named.FindString(expr)] != ""
}

// unseen are the metrics of queries without a result in the stack of docker-compose.yml, with the reason.
var unseen = map[string]string{
	"ratelimit_service_rate_limit_shadow_mode": "its rules have no shadow mode",
	"keyward_handoff_seconds_bucket":           "its members start at the same time",
	"keyward_lease_size_sum":                   "it has no hot keys",
	"keyward_xds_ack_seconds_bucket":           "its endpoints change only when it starts",
}

// machine is the reason of alerts that may fire on a busy machine.
const machine = "depends on the machine"

// silent are the alerts that do not fire in this test, with the reason.
var silent = map[string]string{
	"KeywardRingDisagreement":        moments,
	"KeywardTokensVoid":              moments,
	"KeywardAcksMissing":             moments,
	"KeywardHandoffIncomplete":       moments,
	"KeywardLeaseHoldersUnreachable": moments,
	"KeywardRulesDisagreement":       moments,
	"KeywardJournalDown":             "needs a disk that fails; see the tests of durable",
	"KeywardJournalSlow":             machine,
	"KeywardJournalFull":             "needs more counters than this load has",
	"KeywardJournalMissing":          "needs the loss of all members and of a volume; see the tests of test/e2e",
	"KeywardJournalCorrupt":          "needs a faulty disk; see the tests of journal",
	"KeywardNotJoined":               "members are scraped once they have joined",
	"KeywardOffRing":                 "needs a misconfigured member; see the tests of cluster",
	"KeywardNoRules":                 "needs a member whose first rules are invalid",
	"KeywardAuditLost":               "needs a sink that fails; see the tests of app",
	"KeywardClockFence":              "needs a clock that stops or is set",
	"KeywardShed":                    "needs a live owner that is too slow",
	"KeywardChargesRefused":          "needs more unreplicated charges than fit in memory",
	"KeywardConnectionsWait":         "needs connections with much data and few calls",
	"KeywardNameServiceDown":         "members join addresses, not names",
	"KeywardDrainIncomplete":         "reported moments before the process ends",
	"KeywardSkew":                    "all members share one clock",
	"KeywardMisrouted":               "Envoy follows xDS",
	"KeywardFallback":                "takes five minutes",
	"KeywardLeaseViolation":          "needs a clock that steps",
	"KeywardSlowDecisions":           machine,
	"KeywardNearCapacity":            machine,
	"KeywardCertificateExpiring":     "demo certificates are valid for a year",
	"KeywardCertificateNotReloaded":  "certificates do not change here; see the security tests",
	"KeywardNameCollision":           "needs two members with one name",
	"KeywardGossipUnhealthy":         "needs packet loss",
	"KeywardEscrowsRefused":          "needs more keys than this load has",
	"KeywardStoreRepaired":           "needs a store that loses writes",
	"KeywardFederationRefused":       "needs another layout",
	"KeywardFederationClock":         "all processes share one clock",
	"KeywardCoordinatorStore":        "the coordinator's memory does not fail",
	"KeywardSettlementsLost":         "needs an owner that is away for a minute",
	"KeywardQuotaUnsent":             "needs Envoys that fail again and again",
	"KeywardQuotaStranded":           "takes ten minutes",
	"KeywardRefused":                 "needs more than one refused caller per second",
}

// named matches the metric of a query.
var named = regexp.MustCompile(`\b(?:keyward|ratelimit|envoy)_[a-z_0-9]+`)

// TestLive runs every query of every panel, variable and annotation on a real Prometheus that scrapes a real cluster
// under load. In normal operation each must have a result, except those for faults, and no alert may fire. After
// faults, each must have had a value other than 0.
func TestLive(t *testing.T) {
	if base := os.Getenv("KEYWARD_PROMETHEUS"); base != "" { // set by scripts/compose
		healthy(t, base)
		return
	}
	envoy := os.Getenv("ENVOY_BIN")
	if envoy == "" {
		t.Skip("ENVOY_BIN is not set: run make boards")
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

// moved requires that every query has had a value other than 0 since began.
func moved(t *testing.T, base string, began time.Time) {
	t.Helper()
	for _, b := range boards() {
		for _, q := range queriesOf(b) {
			if q.label != "" || staysFlat(q.Expr) {
				continue
			}
			if all, err := queryPrometheus(t.Context(), base, chosen.Replace(expand(q.Expr)), began); err != nil {
				t.Errorf("%s: %v", q.where, err)
			} else if !some(all, notZero) {
				t.Errorf("%s: always 0: %s", q.where, q.Expr)
			}
		}
	}
}

// alarmed requires that the condition of every alert, except silent ones, has been true for a moment. The duration is
// tested with promtool.
func alarmed(t *testing.T, base string, began time.Time) {
	t.Helper()
	for _, a := range readAlerts(t) {
		all, err := queryPrometheus(t.Context(), base, a.Expr, began)
		if err != nil {
			t.Errorf("%s: %v", a.Alert, err)
		}
		if _, ok := silent[a.Alert]; !ok && len(all) == 0 {
			t.Errorf("%s: no fault makes it fire: %s", a.Alert, a.Expr)
		}
	}
}

// missing skips a test whose programs are not installed. With KEYWARD_BOARDS=required it fails instead.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("KEYWARD_BOARDS") == "required" {
		t.Fatalf("%s is not installed", what)
	}
	t.Skipf("%s is not installed", what)
}

// healthy requires a result for every query within the next scrapes, and that no alert fires.
func healthy(t *testing.T, base string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var open []asking
	for _, b := range boards() {
		if b.Optional && os.Getenv("KEYWARD_PROMETHEUS") != "" {
			continue // the stack of docker-compose.yml has no federation by default
		}
		open = append(open, queriesOf(b)...)
	}
	compose := os.Getenv("KEYWARD_PROMETHEUS") != ""
	open = slices.DeleteFunc(open, func(q asking) bool { return q.Fault || compose && unseen[named.FindString(q.Expr)] != "" })
	_ = lab.Await(within(t, 20*time.Second), "all queries to have results", func(context.Context) error {
		open = slices.DeleteFunc(open, func(q asking) bool { return q.finds(ctx, t, base) })
		if len(open) > 0 {
			return errors.New("some have no result")
		}
		return nil
	})
	for _, q := range open {
		t.Errorf("%s: no result: %s", q.where, q.Expr)
	}
	for _, a := range readAlerts(t) {
		if _, err := queryPrometheus(ctx, base, a.Expr, time.Time{}); err != nil {
			t.Errorf("%s: %v", a.Alert, err)
		}
		if compose && silent[a.Alert] == machine {
			continue // it may be busy
		}
		if all, err := queryPrometheus(ctx, base, fmt.Sprintf(`ALERTS{alertname=%q,alertstate="firing"}`, a.Alert), time.Time{}); err != nil || len(all) > 0 {
			t.Errorf("%s: fires in a healthy cluster: %v, %v", a.Alert, all, err)
		}
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// asking is a query of a board with its position.
type asking struct {
	query
	where        string
	label, regex string // for variables: the label whose values it lists
}

// finds reports whether the query has a number as its result now.
func (q asking) finds(ctx context.Context, t *testing.T, base string) bool {
	t.Helper()
	all, err := queryPrometheus(ctx, base, chosen.Replace(expand(q.Expr)), time.Time{})
	if err != nil {
		t.Fatalf("%s: %v", q.where, err)
	}
	return some(all, number) && q.serves(all)
}

// serves reports whether the label of a variable has a value to choose. It is true for queries that belong to no
// variable.
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

// queriesOf returns all expressions of a board.
func queriesOf(b board) (all []asking) {
	for _, r := range b.Rows {
		for _, p := range r.Panels {
			for _, q := range p.Queries {
				all = append(all, asking{query: q, where: fmt.Sprintf("%s: %s: %s: %q", b.Title, r.Title, p.Title, q.Legend)})
			}
		}
	}
	for _, v := range b.choices() {
		all = append(all, asking{query: query{Expr: v.Metric}, where: b.Title + ": variable " + v.Name, label: v.Value, regex: v.Regex})
	}
	for _, a := range annotations() {
		all = append(all, asking{query: query{Expr: a.Expr, Fault: true}, where: b.Title + ": annotation " + a.Name}) // an event that may not be happening now
	}
	return all
}

// show keeps the cluster running for KEYWARD_SHOW, then causes faults and runs the command KEYWARD_SHOW_WITH.
// picture/take sets both.
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
