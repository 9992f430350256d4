package admin

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/keyward/keyward/owner"
)

// TestHoldMetrics requires that each metric of holds shows the count that its name says.
func TestHoldMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(NewCollector(func() owner.Stats {
		f := owner.Stats{OpenHolds: 1, OpenHoldHits: 2, Claims: 3, ClaimsHeld: 4}
		h := &f.Holds
		h.Reserved, h.Refused, h.Repeats, h.Collisions, h.GivenBack, h.Excess = 5, 6, 7, 8, 9, 10
		h.Unmatched, h.Unknown, h.Lapsed, h.Dropped, h.Lost = 29, 11, 12, 13, 14
		h.CallersDead, h.SetsUnclaimed = 21, 22
		f.BudgetEvents, f.BudgetEventsLost = [2]uint64{15, 16}, 17
		return f
	}))
	text := metricsText(t, reg)
	for series, want := range map[string]string{
		"holds_open": "1", "holds_open_hits": "2", `holds_records{of="own"}`: "3", `holds_records{of="copies"}`: "4", "holds_reserved_total": "5",
		"holds_refused_total": "6", "holds_repeated_requests_total": "7", "holds_collisions_total": "8", "holds_given_back_hits_total": "9",
		"holds_excess_hits_total": "10", `holds_unmatched_total{settlement="commit"}`: "11", `holds_unmatched_total{settlement="other"}`: "18", "holds_lapsed_total": "12", "holds_copies_dropped_total": "13",
		"holds_lost_hits_total": "14", "holds_callers_dead_total": "21", "holds_sets_unclaimed_total": "22", `budget_events_total{level="80"}`: "15", `budget_events_total{level="100"}`: "16", "budget_events_lost_total": "17",
	} {
		if !strings.Contains(text, "\nkeyward_"+series+" "+want+"\n") {
			t.Errorf("%s is not %s", series, want)
		}
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

// metricsText returns what reg has, as Prometheus reads it.
func metricsText(t *testing.T, reg prometheus.Gatherer) string {
	t.Helper()
	w := httptest.NewRecorder()
	Handler(Options{Gatherer: reg}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("/metrics: %d %s", w.Code, w.Body)
	}
	return w.Body.String()
}
