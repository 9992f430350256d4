package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/keyward/keyward/internal/lab"
)

// enforcing has Envoy enforce decisions for a percentage of the requests, as docs/introduce-a-limit.md shows it.
const enforcing = `              filter_enforced:
                runtime_key: keyward.enforced
                default_value: {numerator: 30, denominator: HUNDRED}
`

// TestEnforcedForAPartOfTheRequests has Envoys of both versions enforce a limit for 30 % of the requests: members count
// all of them, and Envoy denies only these.
func TestEnforcedForAPartOfTheRequests(t *testing.T) {
	const limit, sent = 100, 1100 // of longRules
	l := newLab(t, lab.Options{Insecure: true, Rules: map[string]string{"app.yaml": longRules}})
	start(t, l, names(1)...)
	up := startUpstream(t).addr
	for version, path := range envoyVersions(t) {
		config := printed(t, l, "--shape", "plain", "--sidecar", l.Sidecars[0].RLS, "--upstream", up, "--timeout", "5s")
		const at = "              enable_x_ratelimit_headers:"
		if !strings.Contains(config, at) {
			t.Fatalf("no filter in\n%s", config)
		}
		config = strings.Replace(config, at, enforcing+at, 1)
		e, err := l.AddEnvoy(lab.EnvoyOptions{Name: "envoy-" + version, Path: path, Config: config})
		if err != nil {
			t.Fatal(err)
		}
		awaitReady(t, e)
		denied := 0
		for _, a := range sendKeys(e.Listener, slices.Repeat([]string{"key-" + version}, sent), 8) {
			switch a.status {
			case 200:
			case 429:
				denied++
			default:
				t.Errorf("%s: %+v", version, a)
			}
		}
		if denied < 200 || denied > 400 { // 30 % of the 1,000 beyond the limit; each bound is seven deviations away
			t.Errorf("%s: %d of %d requests beyond the limit were denied, want about 300", version, denied, sent-limit)
		}
		s := ask(t, dial(t, l.Sidecars[0].RLS, nil), peek("app", "api_key", "key-"+version)).Statuses[0]
		if s.LimitRemaining != 0 {
			t.Errorf("%s: %d left: not all requests were counted", version, s.LimitRemaining)
		}
	}
	if n := sum(t, l, "ratelimit_service_rate_limit_total_hits"); n < float64(sent*len(envoyVersions(t))) {
		t.Errorf("%v requests counted, want %d for each Envoy", n, sent)
	}
}
