// Package admin serves what people and Kubernetes look at: /metrics, /cluster, the API below /v1/, the page at /ui/,
// /healthz and /readyz, which change nothing, and a unix socket for what does, /drain and /hot, and for what shows
// callers' values: /v1/tap.
package admin

import (
	"io"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/keyward/keyward/internal/browser"
	"github.com/keyward/keyward/internal/config"
)

// ClusterStatus is what /cluster shows: one member's view of everyone.
type ClusterStatus struct {
	Self       string         `json:"self"`
	Inst       string         `json:"inst"`
	Label      string         `json:"cluster"`
	Version    string         `json:"version"`
	Joined     bool           `json:"joined"`
	Problem    string         `json:"problem,omitempty"` // why it stays off the ring
	Cause      string         `json:"cause,omitempty"`   // of Problem: lookup, gossip, streams, rival, full or flaps
	Standalone bool           `json:"standalone"`
	NRef       int            `json:"n_ref"`
	Ring       RingStatus     `json:"ring"`
	Members    []MemberStatus `json:"members"`
	Rules      RulesStatus    `json:"rules"`
	// Unreachable are the members that this one has had no streams with for some seconds.
	Unreachable []Unreachable `json:"unreachable,omitempty"`
	XDS         any           `json:"xds,omitempty"` // the served xDS clients: acknowledged versions, last NACK
}

// RingStatus is the adopted ring.
type RingStatus struct {
	Fingerprint  string   `json:"fingerprint"`
	Members      []string `json:"members"`
	Disagreement int      `json:"disagreement"` // live members that announce another fingerprint
}

// Unreachable is a member that this one cannot ask, or that cannot ask it.
type Unreachable struct {
	Member string `json:"member"`
	Reason string `json:"reason"`
}

// MemberStatus is one live member or observer.
type MemberStatus struct {
	ID     string `json:"id"`
	Inst   string `json:"inst"`
	State  string `json:"state"` // joining, active or leaving
	Role   string `json:"role"`  // member or observer
	Weight uint32 `json:"weight"`
	Gossip string `json:"gossip,omitempty"`
	Peer   string `json:"peer,omitempty"`
	RLS    string `json:"rls,omitempty"`
	Route  string `json:"route,omitempty"`
	Page   string `json:"page,omitempty"` // where it serves this
	Ring   string `json:"ring"`           // fingerprint it announces
	// Protocol is the versions that it speaks between members, as min-max.
	Protocol string `json:"protocol,omitempty"`
	// Complete is the last ring of which it has taken over all that is its own.
	Complete string `json:"complete,omitempty"`
	Rules    struct {
		InForce  string `json:"in_force"`
		Prepared string `json:"prepared"`
	} `json:"rules"`
}

// RulesStatus is the versions of the rules, newest first.
type RulesStatus struct {
	InForce      string         `json:"in_force"`
	Prepared     string         `json:"prepared"`
	Disagreement int            `json:"disagreement"` // live members with other rules in force
	LastError    string         `json:"last_error,omitempty"`
	Versions     []RulesVersion `json:"versions"`
}

// RulesVersion is one of the last ten versions.
type RulesVersion struct {
	Hash     string    `json:"hash"`
	Source   string    `json:"source"`
	State    string    `json:"state"`            // prepared, in force, past, or replaced before it came into force
	Reason   string    `json:"reason,omitempty"` // why it came into force: first, agreed or timeout
	Prepared time.Time `json:"prepared"`
	InForce  time.Time `json:"in_force,omitzero"`
	Until    time.Time `json:"until,omitzero"` // when another one took its place
}

// Options says what to serve. Every func may be called concurrently.
type Options struct {
	Gatherer    prometheus.Gatherer
	MetricsPath string               // default /metrics
	Cluster     func() ClusterStatus // required
	Ready       func() error         // why this process should get no traffic; nil when it may
	// Counters is how the key of a descriptor stands; nil serves no /v1/counters.
	Counters func(domain string, entries []config.Entry) (CounterStatus, error)
	// Explain is what becomes of one more hit on it, and why; nil serves no /v1/explain.
	Explain func(domain string, entries []config.Entry) (Explanation, error)
	Self    func() Self       // nil serves no /v1/self
	HotKeys func() HotKeys    // nil serves no /v1/hotkeys
	Leases  func() HeldLeases // nil serves no /v1/leases

	RingMap  func() RingMap         // nil serves no /v1/ring
	RuleTree func() RuleTree        // nil serves no /v1/rules
	Timeline func() []TimelineEvent // newest first; nil serves no /v1/timeline

	Hosts  browser.Hosts       // names that the port answers for
	Refuse func(reason string) // called for each request for which there is no room, or whose Host is another one; nil: not called
}

// endpoints is what GET / tells of, beside the metrics and the page.
const endpoints = `/cluster  members, ring and rules as JSON
/v1/ring  the ring, to draw it
/v1/rules  rules and their versions
/v1/counters?domain=D&key=NAME=VALUE  how a key stands
/v1/explain?domain=D&key=NAME=VALUE  which rule and which member decide about a key, and why
/v1/self  what this member knows of itself: flags, certificates, clocks
/v1/hotkeys  hot keys that this member counts, and what is done about them
/v1/leases  what this member holds of others' keys
/v1/timeline  what this member has seen happen, newest first
/healthz  the process runs
/readyz   it may be sent questions
`

// Handler serves the pages.
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
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "OK\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := o.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "OK\n")
	})
	pageRoutes(mux, page, &o)
	mux.HandleFunc("GET /{$}", index("Keyward\n\n/ui/  all of this as a page\n"+o.MetricsPath+"  Prometheus metrics\n"+endpoints))
	return secureHeaders(o.Hosts.Guard(mux, pages.refuse, "/healthz", "/readyz"))
}

// Server is an HTTP server for Handler with the time-outs that an open port needs.
func Server(o Options) *http.Server {
	return &http.Server{
		Handler: Handler(o), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: writeTime, WriteTimeout: writeTime,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
	}
}
