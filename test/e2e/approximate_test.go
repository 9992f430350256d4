package e2e

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

const approximateRules = `domain: app
descriptors:
  - key: approximate
    rate_limit: {unit: minute, requests_per_unit: 60000}
    metadata: {keyward: {window: 10s, mechanism: approximate, epsilon: 1%}}
  - key: owner
    rate_limit: {unit: minute, requests_per_unit: 30000}
    metadata: {keyward: {window: 5s}}
`

// traffic counts the messages between members for decisions: forwarded requests, and reports of admitted hits,
// each with its answer.
func traffic(f *fleet) (forwarded, reports float64) {
	return f.sum("keyward_owner_requests_total"), f.sum("keyward_approximate_reconciliations_total") / 2 // counted at both ends
}

// TestApproximate asks all members about a key, for more than its limit, first by an approximate rule, then by one that its
// owner decides. The former admits at most epsilon above the limit, the latter nothing; for that members have far less to
// tell each other.
func TestApproximate(t *testing.T) {
	const rate, few = 7000, 50
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": approximateRules}, Expect: 3, Args: []string{"--decision-timeout", "1s", "--no-hot"}})
	f := newFleet(t, l, names(3)...)
	sent := map[string]float64{}
	for _, x := range []struct {
		rule            string
		limit           uint64
		window          time.Duration
		windows, beyond int
	}{
		{"approximate", 60_000, 10 * time.Second, 2, 600},
		{"owner", 30_000, 5 * time.Second, 1, 0}, // which decides each window alike
	} {
		rule, window := x.rule, x.window
		spent := newAccount(rule, "spent", x.limit, 1, window)
		steadily(time.Until(time.Now().Truncate(window).Add(window - 200*time.Millisecond))) // the first window is a whole one
		forwarded, reports := traffic(f)
		crowd, began := startCrowd(t, stream{spent, rate, f.pick}), time.Now()
		steadily(time.Duration(x.windows)*window + 500*time.Millisecond)
		crowd.stop()
		q, r := traffic(f)
		q, r = q-forwarded, r-reports
		asked := float64(crowd.asked.Load())
		sent[rule] = (q + r) / asked
		s := spent.since(began)
		_, over, wrong := spent.audit(func(*account) float64 { return float64(x.beyond) }, false)
		t.Logf("%s: %.0f asked, %.0f requests and %.0f reports between members; %d of %d windows spent, %.4f of the limit used, at most %v hits above it",
			rule, asked, q, r, s.spent, s.windows, s.used(), over)
		for _, w := range wrong {
			t.Error(w)
		}
		if s.spent == 0 || s.used() < 0.99 {
			t.Errorf("%s: %d windows spent, %.4f used", rule, s.spent, s.used())
		}
		if n := crowd.failed.Load(); n > 0 {
			t.Errorf("%d requests had no answer", n)
		}
	}
	if d := f.sum("keyward_degraded_total"); d > 0 {
		t.Errorf("%v answers were degraded", d)
	}
	if r := sent["owner"] / sent["approximate"]; r < few {
		t.Errorf("only %.1f times fewer messages", r)
	} else {
		t.Logf("%.1f times fewer messages", r)
	}
}
