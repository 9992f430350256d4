package e2e

import (
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

const quotaValueRules = `domain: app
descriptors:
- {key: api_key, value: gold, rate_limit: {unit: hour, requests_per_unit: 400}, metadata: {keyward: {mechanism: quota, degraded: fail_closed}}}
- {key: api_key, value: free, rate_limit: {unlimited: true}}
- {key: api_key, value: exempt}
- {key: api_key, value: "trial-*", shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 5}, metadata: {keyward: {mechanism: quota, degraded: fail_closed}}}
- {key: api_key, rate_limit: {unit: hour, requests_per_unit: 200}, metadata: {keyward: {mechanism: quota, degraded: fail_closed}}}
`

// TestQuotaValues requires that Envoy gives each value of a descriptor what its own rule says: a limit is spent once, not by calls as well,
// and requests without a limit, or of a rule in shadow mode, are never refused, also not before the first assignment.
func TestQuotaValues(t *testing.T) {
	for _, path := range slices.Compact(soakEnvoys(t)) { // of different releases where these are installed
		t.Run("", func(t *testing.T) { testQuotaValues(t, path) })
	}
}

func testQuotaValues(t *testing.T, path string) {
	l := newLab(t, lab.Options{Insecure: true, Rules: map[string]string{"app.yaml": quotaValueRules}})
	start(t, l, "pod-a")
	e := rlqsEnvoy(t, l, "envoy-values", l.Sidecars[0], startUpstream(t).addr, path)
	if out, code := tool(t.Context(), t, "check", "--envoy", e.Config, filepath.Join(l.Sidecars[0].Runtime, "ratelimit", "config")); code != 0 {
		t.Errorf("check of the printed configuration: exit code %d\n%s", code, out)
	}
	admitted := func(key string, n int) (ok int) {
		for range n {
			if status, _ := get(t, e.Listener, key); status == http.StatusOK {
				ok++
			}
		}
		return ok
	}
	for _, key := range []string{"free", "exempt", "trial-1"} {
		if n := admitted(key, 300); n != 300 {
			t.Errorf("%s: %d of 300 admitted", key, n)
		}
	}
	for key, limit := range map[string]int{"gold": 400, "other": 200} {
		total := 0
		// Reports and assignments take some seconds each. Requests go on until nine tenths are spent, and beyond.
		for until := time.Now().Add(40 * time.Second); total < limit*9/10 && time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
			total += admitted(key, 50)
		}
		if total += admitted(key, limit); total > limit || total < limit*9/10 {
			t.Errorf("%s: %d admitted of a limit of %d", key, total, limit)
		}
	}
}
