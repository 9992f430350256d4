package kube

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/promtext"
)

// The limit of the releases whose Envoys make no calls, which clients exceed.
const (
	noCallLimit  = 300
	noCallWindow = 10 * time.Second
	noCallRules  = `domain: example
descriptors:
- key: api_key
  rate_limit: {unit: second, requests_per_unit: 300}
  metadata: {keyward: {mechanism: quota, window: 10s, degraded: fail_closed}}
`
)

// TestWithoutCalls installs the demo Envoys that spend limits without calls: through the rate limit quota filter, and through the dynamic
// module, whose file an init container copies into a volume. Clients of three pods share one limit, and are admitted at most that.
func TestWithoutCalls(t *testing.T) {
	t.Run("Quota", func(t *testing.T) { withoutCalls(t, "keyward_quota_granted_hits_total", "quota.enabled=true") })
	t.Run("Module", func(t *testing.T) {
		if modules == "" {
			t.Skip("no dynamic module: scripts/kube builds it with cargo")
		}
		withoutCalls(t, "keyward_module_taken_hits_total", "module.enabled=true", "module.image="+moduleImage)
	})
}

// withoutCalls installs a release and exceeds its limit for some windows. The metric counts the hits that needed no call.
func withoutCalls(t *testing.T, metric string, set ...string) {
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(rules, []byte(noCallRules), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &release{helm: "helm4", namespace: newNamespace(t)}
	r.values = []string{"--values", "testdata/values.yaml", "--set-file", `rules.shop\.yaml=` + rules, "--set", "mode=sidecar"}
	for _, s := range set {
		r.values = append(r.values, "--set", s)
	}
	begin := time.Now()
	r.run(t, "install", append([]string{"keyward", chart, "--wait", "--timeout", "2m"}, r.values...)...)
	t.Logf("install --wait took %.1f s", time.Since(begin).Seconds())
	r.agree(t, 3)
	const windows = 4
	admitted, refused, wrong := exceed(t, "http://keyward-envoy."+r.namespace+".svc.cluster.local/", windows*noCallWindow)
	spent := r.sum(t, metric)
	t.Logf("%d admitted and %d refused in %v with a limit of %d in %v; %s: %v", admitted, refused, windows*noCallWindow, noCallLimit, noCallWindow, metric, spent)
	if wrong > 0 {
		t.Errorf("%d requests failed", wrong)
	}
	if most := (windows + 1) * noCallLimit; admitted > most || refused == 0 { // the time touches one window more
		t.Errorf("%d admitted of at most %d, and %d refused", admitted, most, refused)
	}
	if least := (windows - 2) * noCallLimit; admitted < least { // members learn the demands in the first two
		t.Errorf("only %d admitted, want %d", admitted, least)
	}
	if int(spent) < admitted/4 { // with so small a limit, calls decide the last quarter and more of a window
		t.Errorf("%v of %d admitted requests needed no call", spent, admitted)
	}
	r.uninstall(t)
}

// exceed sends requests for one key at twice the limit's rate, on connections of which kube-proxy gives each to a pod.
func exceed(t *testing.T, url string, d time.Duration) (admitted, refused, wrong int) {
	t.Helper()
	var codes [600]atomic.Int64 // by status; 0: no answer
	var done sync.WaitGroup
	end := time.Now().Add(d)
	for range workers {
		done.Go(func() {
			client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			tick := time.NewTicker(noCallWindow * workers / (2 * noCallLimit))
			defer tick.Stop()
			for time.Now().Before(end) {
				<-tick.C
				codes[get(client, url)].Add(1)
			}
		})
	}
	done.Wait()
	total := 0
	for i := range codes {
		total += int(codes[i].Load())
	}
	admitted, refused = int(codes[http.StatusOK].Load()), int(codes[http.StatusTooManyRequests].Load())
	return admitted, refused, total - admitted - refused
}

// get returns the status of a request, or 0 if it failed.
func get(client *http.Client, url string) int {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		panic(err)
	}
	req.Header.Set("x-api-key", "shared")
	res, err := client.Do(req)
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return 0
	}
	return res.StatusCode
}

// sum returns the sum of a metric over the members.
func (r *release) sum(t *testing.T, metric string) (sum float64) {
	t.Helper()
	members, err := r.members(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range members {
		page, err := lab.Get(t.Context(), fmt.Sprintf("http://%s:9090/metrics", p.Status.PodIP))
		if err != nil {
			t.Fatal(err)
		}
		samples, err := promtext.Parse(page)
		if err != nil {
			t.Fatal(err)
		}
		sum += samples.Sum(metric)
	}
	return sum
}
