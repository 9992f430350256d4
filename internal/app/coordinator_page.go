package app

import (
	"io"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// scrapes is how many pages of metrics a coordinator renders at a time.
const scrapes = 4

// servePage starts to serve --metrics.
func (c *coordinator) servePage() (*http.Server, error) {
	mux := http.NewServeMux()
	o := promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: scrapes}
	mux.Handle("GET /metrics", promhttp.HandlerFor(c.reg, o))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "OK\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := c.health.get(); err != nil {
			http.Error(w, "not ready: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "OK\n")
	})
	hosts := c.flags.hosts()
	gate := c.security.guards.Guard("metrics")
	srv := &http.Server{
		Handler:           hosts.Guard(mux, gate.Refuse, "/healthz", "/readyz"),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
	}
	var addrs []string
	if c.flags.Metrics != "" {
		addrs = append(addrs, c.flags.Metrics)
	}
	return srv, listenPage(srv, addrs, c.security)
}
