package app

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/envoy/xds"
	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
)

const primeRules = `domain: app
descriptors:
- {key: hot, rate_limit: {unit: hour, requests_per_unit: 100}, metadata: {keyward: {hot_step: quota, envoys: 4}}}
- {key: calls, rate_limit: {unit: hour, requests_per_unit: 100}}
- {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 100}, metadata: {keyward: {hot_step: quota}}}
`

func quotaRoute(key string) hotkey.Route {
	return hotkey.Route{
		Domain: "app", Name: key + "=k", Owner: "k", Author: "m", Version: 1, Mode: hotkey.Quota, Entries: []hotkey.RouteEntry{{Key: key, Value: "k"}},
	}
}

// A route is served when the Envoy has admitted a request for the key's bucket, and not before.
func TestPrimer(t *testing.T) {
	rules, err := config.Load([]config.File{{Name: "app.yaml", Content: []byte(primeRules)}}, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	admits := atomic.Bool{}
	asked := make(chan string, 1000)
	envoy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get(xds.PrimeHeader)
		if !admits.Load() {
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer envoy.Close()
	changed := make(chan struct{}, 1000)
	p := newPrimer(strings.TrimPrefix(envoy.URL, "http://"), func() *config.Rules { return rules }, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	p.changed = func() { changed <- struct{}{} }
	r, other := quotaRoute("hot"), hotkey.Route{Domain: "app", Owner: "x", Mode: hotkey.Never}
	hot := []hotkey.Route{r, other, quotaRoute("calls"), quotaRoute("shadow"), quotaRoute("unknown")}
	served, primes := p.plan(hot)
	if len(served) != 1 || served[0].Owner != "x" || len(primes) != 1 || primes[0].Entry != "hot" || primes[0].ExpiredShare != 50 || p.state(&r) != api.QuotaPriming {
		t.Fatalf("at first: %+v, %+v, %s", served, primes, p.state(&r))
	}
	now := time.Unix(3600_010, 0)
	if again, ready := p.round(context.Background(), now); again == 0 || ready {
		t.Errorf("refused: again in %v, ready %v", again, ready)
	}
	if id := <-asked; id != primes[0].ID() {
		t.Errorf("asked for %s", id)
	}
	admits.Store(true)
	if _, ready := p.round(context.Background(), now.Add(time.Hour-12*time.Second)); ready || len(asked) > 0 {
		t.Error("asked at the end of a window")
	}
	if again, ready := p.round(context.Background(), now.Add(2*time.Hour)); again != 0 || !ready {
		t.Errorf("admitted: again in %v, ready %v", again, ready)
	}
	if served, _ = p.plan(hot); len(served) != 2 || p.state(&r) != api.QuotaSwitched {
		t.Errorf("primed: %+v", served)
	}
	if served, primes = p.plan(nil); len(served)+len(primes) != 0 || p.state(&r) != "" {
		t.Errorf("cooled: %+v, %+v", served, primes)
	}
	if served, _ = p.plan(hot); len(served) != 1 {
		t.Error("hot again: not primed again")
	}
	allowed := r
	allowed.Allow = true
	if served, _ = (*primer)(nil).plan([]hotkey.Route{r, allowed, other}); len(served) != 2 || !served[0].Allow {
		t.Errorf("without priming: %+v", served)
	}
}
