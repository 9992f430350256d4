// Package admin serves the endpoints for operators and Kubernetes. A port serves what only reads: /metrics, /cluster,
// the API below /v1/, the page at /ui/, /healthz and /readyz. A unix socket serves what changes something, /drain,
// /hot and /reset, and what shows callers' values, /v1/tap. Package api declares the JSON documents.
package admin

import (
	"io"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/browser"
	"github.com/keyward/keyward/internal/config"
)

// Options configures Handler. All functions may be called concurrently. An endpoint whose function is nil is not
// served.
type Options struct {
	Gatherer    prometheus.Gatherer
	MetricsPath string                   // default /metrics
	Cluster     func() api.ClusterStatus // required
	Ready       func() error             // required; returns why this process must not receive traffic, or nil
	// Counters returns the counter of a descriptor's key: /v1/counters.
	Counters func(domain string, entries []config.Entry) (api.CounterStatus, error)
	// Explain returns what happens to the next hit on a descriptor, and why: /v1/explain.
	Explain func(domain string, entries []config.Entry) (api.Explanation, error)

	Self     func() api.Self            // /v1/self
	HotKeys  func() api.HotKeys         // /v1/hotkeys
	Leases   func() api.HeldLeases      // /v1/leases
	Escrows  func() api.Escrows         // /v1/escrows
	Quotas   func() api.Quotas          // /v1/quotas
	Modules  func() api.Modules         // /v1/modules
	Budgets  func() api.Budgets         // /v1/budgets
	RingMap  func() api.RingMap         // /v1/ring
	RuleTree func() api.RuleTree        // /v1/rules
	Timeline func() []api.TimelineEvent // /v1/timeline; newest first

	Hosts  browser.Hosts       // host names that the port accepts
	Refuse func(reason string) // called for each request that is refused for lack of room or for its Host; nil: not called
}

// endpoints is the list that GET / prints, in addition to the metrics and the page.
const endpoints = `/cluster  members, ring and rules as JSON
/v1/ring  the ring, to draw it
/v1/rules  the rules in force, their versions and totals
/v1/counters?domain=D&key=NAME=VALUE  the counter of a key
/v1/explain?domain=D&key=NAME=VALUE  which rule and which member decide about a key, and why
/v1/self  this member's own state: flags, certificates, clocks
/v1/hotkeys  the hot keys that this member counts, and the routes of all hot keys
/v1/leases  the leases that this member holds
/v1/escrows  what this member has of limits that several regions share
/v1/quotas  the limits that Envoys with streams to this member spend without calls
/v1/modules  the Envoys of this pod whose modules spend leases without calls
/v1/budgets  what is spent, held and left of keys with holds that this member counts
/v1/timeline  recent events at this member, newest first
/healthz  200 while the process runs
/readyz   200 while the member may receive traffic
`

// Handler serves the endpoints of the port.
func Handler(o Options) http.Handler {
	if o.MetricsPath == "" {
		o.MetricsPath = "/metrics"
	}
	mux := http.NewServeMux()
	pages := newPageLimiter(o.Refuse)
	looks := newLookupLimiter(pages)
	page := func(pattern string, serve http.HandlerFunc) { mux.HandleFunc("GET "+pattern, pages.wrap(serve)) }
	page(o.MetricsPath, promhttp.HandlerFor(o.Gatherer, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP)
	page("/cluster", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, o.Cluster()) })
	if o.Counters != nil {
		mux.HandleFunc("GET /v1/counters", looks.wrap(counters(o.Counters)))
	}
	if o.Explain != nil {
		mux.HandleFunc("GET /v1/explain", looks.wrap(explain(o.Explain)))
	}
	if o.Self != nil {
		page("/v1/self", func(w http.ResponseWriter, _ *http.Request) { writeLive(w, o.Self()) })
	}
	if o.HotKeys != nil {
		page("/v1/hotkeys", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, o.HotKeys()) })
	}
	if o.Leases != nil {
		page("/v1/leases", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, o.Leases()) })
	}
	if o.Quotas != nil {
		page("/v1/quotas", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, o.Quotas()) })
	}
	if o.Modules != nil {
		page("/v1/modules", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, o.Modules()) })
	}
	if o.Escrows != nil {
		page("/v1/escrows", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, o.Escrows()) })
	}
	if o.Budgets != nil {
		page("/v1/budgets", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, o.Budgets()) })
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "OK\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := o.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "OK\n")
	})
	pageRoutes(mux, page, &o)
	mux.HandleFunc("GET /{$}", index("Keyward\n\n/ui/  this information as a page\n"+o.MetricsPath+"  Prometheus metrics\n"+endpoints))
	return secureHeaders(o.Hosts.Guard(mux, pages.refuse, "/healthz", "/readyz"))
}

// Server is an HTTP server for Handler with the timeouts that an open port needs.
func Server(o Options) *http.Server {
	return &http.Server{
		Handler: Handler(o), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: writeTime, WriteTimeout: writeTime,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
	}
}
