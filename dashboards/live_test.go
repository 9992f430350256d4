package dashboards

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// quiet are metrics that have no series while all is well.
var quiet = []string{"keyward_xds_nacks_total", "keyward_peer_inbound_refused_total"}

// TestLive asks a Prometheus that scrapes a running, healthy cluster under some traffic: every query must be accepted and
// find something, and no alert may fire. `scripts/compose test` sets KEYWARD_PROMETHEUS.
func TestLive(t *testing.T) {
	base := os.Getenv("KEYWARD_PROMETHEUS")
	if base == "" {
		t.Skip("KEYWARD_PROMETHEUS names no Prometheus")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	values := strings.NewReplacer("$cluster", ".*", "$instance", ".*", "$domain", ".*", "$__rate_interval", "1m")
	for file, d := range readDashboards(t) {
		for _, q := range d.queries() {
			if strings.HasPrefix(q.where, "annotation") {
				continue // marks events, of which there may be none
			}
			if err := found(ctx, base, values.Replace(q.expr)); err != nil {
				t.Errorf("%s: %s: %v", file, q.where, err)
			}
		}
	}
	for _, a := range readAlerts(t) {
		if _, err := count(ctx, base, a.Expr); err != nil {
			t.Errorf("%s: %v", a.Alert, err)
		}
		if n, err := count(ctx, base, fmt.Sprintf(`ALERTS{alertname=%q,alertstate="firing"}`, a.Alert)); err != nil || n > 0 {
			t.Errorf("%s: fires %d times in a healthy cluster, %v", a.Alert, n, err)
		}
	}
}

// found waits until a query has a result: the next scrape may bring it.
func found(ctx context.Context, base, expr string) error {
	if names := metric.FindAllString(expr, -1); slices.Contains(quiet, names[0]) {
		_, err := count(ctx, base, expr)
		return err
	}
	for round := 0; ; round++ {
		n, err := count(ctx, base, expr)
		if err != nil {
			return err
		}
		if n > 0 {
			return nil
		}
		if round == 12 {
			return fmt.Errorf("nothing found: %s", expr)
		}
		pause := time.NewTimer(5 * time.Second)
		select {
		case <-ctx.Done():
			pause.Stop()
			return fmt.Errorf("nothing found in time: %s", expr)
		case <-pause.C:
		}
	}
}

// count runs an instant query and counts the series of its result.
func count(ctx context.Context, base, expr string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/api/v1/query?"+url.Values{"query": {expr}}.Encode(), nil)
	if err != nil {
		return 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	var body struct {
		Status, Error string
		Data          struct{ Result []json.RawMessage }
	}
	if err := json.NewDecoder(res.Body).Decode(&body); err != nil {
		return 0, fmt.Errorf("%s: %w", res.Status, err)
	}
	if body.Status != "success" {
		return 0, fmt.Errorf("%s: %s", body.Error, expr)
	}
	return len(body.Data.Result), nil
}
