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
    rate_limit: {unit: minute, requests_per_unit: 60000}
    metadata: {keyward: {window: 10s}}
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
	const limit, rate, window, few = 60_000, 7000, 10 * time.Second, 50
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": approximateRules}, Expect: 3, Args: []string{"--decision-timeout", "1s", "--no-hot"}})
	f := newFleet(t, l, names(3)...)
	sent := map[string]float64{}
	windows := map[string]time.Duration{"approximate": 2, "owner": 1} // the owner decides each window alike
	for _, rule := range []string{"approximate", "owner"} {
		spent := newAccount(rule, "spent", limit, 1, window)
		steadily(time.Until(time.Now().Truncate(window).Add(window - 200*time.Millisecond))) // the first window is a whole one
		forwarded, reports := traffic(f)
		crowd, began := startCrowd(t, stream{spent, rate, f.pick}), time.Now()
		steadily(windows[rule]*window + 500*time.Millisecond)
		crowd.stop()
		q, r := traffic(f)
		q, r = q-forwarded, r-reports
		asked := float64(crowd.asked.Load())
		sent[rule] = (q + r) / asked
		s := spent.since(began)
		_, over, wrong := spent.audit(func(*account) float64 { return map[string]float64{"approximate": limit / 100}[rule] }, false)
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
