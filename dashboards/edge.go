package dashboards

func edge() board {
	return board{
		UID: "keyward-edge", Title: "Keyward / Envoy edge", Of: "envoy_server_live", Who: "Envoy",
		About: "Calls of Envoys, their results and latency, requests admitted uncounted, and xDS updates.",
		More: []variable{
			{
				Name: "rls", Label: "Rate-limit cluster", Value: "envoy_cluster_name", Regex: "/rate.?limit|^(outbound.*)?keyward(?!-xds)/",
				Metric: `envoy_cluster_upstream_rq_total{cluster=~"$cluster",namespace=~"$namespace",job=~"$job"}`,
			},
		},
		Rows: []row{
			{"At a glance", edgeGlance()},
			{"Decisions", edgeDecisions()},
			{"Calls to cluster $rls", calls()},
			{"What clients see", clients()},
			{"xDS", xdsPanels()},
		},
	}
}

// Envoy has no series for events that have not happened yet, hence the zeros.

// uncounted are the requests that Envoys admitted without a reply.
const uncounted = `sum(rate(envoy_cluster_ratelimit_failure_mode_allowed{@}[~])) or vector(0)`

// denied, failed and all are the calls that were answered with OVER_LIMIT, that failed, and all calls.
const (
	denied = `(sum(rate(envoy_cluster_ratelimit_over_limit{@}[~])) or vector(0))`
	failed = `(sum(rate(envoy_cluster_ratelimit_error{@}[~])) or vector(0))`
	all    = `(sum(rate(envoy_cluster_ratelimit_ok{@}[~])) + ` + denied + ` + ` + failed + `)`
)

func edgeGlance() []panel {
	return []panel{
		{
			Kind: statPanel, Title: "Requests", Unit: "reqps", Width: 4, Steps: calm(),
			About:   "Requests of clients to the chosen Envoys, without the admin port.",
			Queries: []query{ask(`sum(rate(envoy_http_downstream_rq_total{@,envoy_http_conn_manager_prefix!="admin"}[~]))`, "")},
		}, {
			Kind: statPanel, Title: "Calls", Unit: "reqps", Width: 4, Steps: calm(),
			About:   "Calls of rate-limit filters, whatever their result.",
			Queries: []query{ask(all, "")},
		}, {
			Kind: statPanel, Title: "Over the limit", Unit: "percentunit", Width: 4, Steps: calm(),
			About:   "Share of the calls that were answered with OVER_LIMIT: clients got a 429.",
			Queries: []query{ask(denied+" / "+all, "")},
		}, {
			Kind: statPanel, Title: "Failed calls", Unit: "percentunit", Width: 4, Steps: bad(0.0001, 0.01), Runbook: "KeywardFailOpen",
			About:   "Share of the calls that failed or reached Envoy's own timeout.",
			Queries: []query{ask(failed+" / "+all, "")},
		}, {
			Kind: statPanel, Title: "Admitted uncounted", Unit: "reqps", Width: 4, Steps: bad(0.001, 1), Runbook: "KeywardFailOpen",
			About: "Requests per second that were admitted without a reply because failure_mode_deny is not set. " +
				"No member counted them.",
			Queries: []query{ask(uncounted, "")},
		}, {
			Kind: statPanel, Title: "Latency, p99", Unit: "ms", Width: 4, Steps: bad(10, 20), Runbook: "KeywardSlowDecisions",
			About:   "As measured by Envoys, network included.",
			Queries: []query{ask(`histogram_quantile(0.99, sum by (le) (rate(envoy_cluster_upstream_rq_time_bucket{@,envoy_cluster_name=~"$rls"}[~])))`, "")},
		},
	}
}

func edgeDecisions() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "Results", Unit: "reqps", Width: 8, Stacked: true, Colors: resultColors(), Runbook: "KeywardFailOpen",
			About: "Results of the calls of rate-limit filters: ok, over the limit, or no reply in time (error).",
			Queries: []query{
				ask(`sum(rate(envoy_cluster_ratelimit_ok{@}[~]))`, "ok"),
				ask(`sum(rate(envoy_cluster_ratelimit_over_limit{@}[~]))`, "over the limit"),
				whenWrong(`sum(rate(envoy_cluster_ratelimit_error{@}[~]))`, "error"),
			},
		}, {
			Kind: seriesPanel, Title: "Admitted uncounted", Unit: "reqps", Width: 8, Runbook: "KeywardFailOpen",
			About:   "By Envoy: requests that were admitted without a decision.",
			Queries: []query{whenWrong(`sum by (instance) (rate(envoy_cluster_ratelimit_failure_mode_allowed{@}[~]))`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Over the limit by Envoy", Unit: "percentunit", Width: 8,
			About:   "Share of the requests that each Envoy denies. Envoys with the same clients deny the same share.",
			Queries: []query{ask(`sum by (instance) (rate(envoy_cluster_ratelimit_over_limit{@}[~])) / (sum by (instance) (rate(envoy_cluster_ratelimit_ok{@}[~])) + sum by (instance) (rate(envoy_cluster_ratelimit_over_limit{@}[~])))`, "{{instance}}")},
		},
	}
}

func calls() []panel {
	of := func(metric string) string { return metric + `{@,envoy_cluster_name=~"$rls"}` }
	return []panel{
		{
			Kind: seriesPanel, Title: "Latency", Unit: "ms", Width: 6, Runbook: "KeywardSlowDecisions",
			About:   "As measured by Envoys, network included. Envoy's default timeout is 20 ms.",
			Queries: quantiles(of("envoy_cluster_upstream_rq_time_bucket"), "$__rate_interval", "0.5", "0.99", "0.999"),
		}, {
			Kind: seriesPanel, Title: "Direct-hit ratio", Unit: "percentunit", Width: 6, Max: 1, Runbook: "KeywardMisrouted",
			About:   "By member: of the requests with a key, the share that Envoy sent directly to the owner.",
			Queries: []query{ask(`sum by (instance) (rate(keyward_direct_total{@cluster}[~])) / (sum by (instance) (rate(keyward_direct_total{@cluster}[~])) + sum by (instance) (rate(keyward_misrouted_total{@cluster}[~])))`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Misrouted", Unit: "reqps", Width: 6, Runbook: "KeywardMisrouted",
			About: "Requests with a key that had to be forwarded. ring: Envoy uses a different ring. key: the key " +
				"is not the one that the descriptor's rule is sharded by.",
			Queries: []query{ask(`sum by (cause) (rate(keyward_misrouted_total{@cluster}[~]))`, "{{cause}}")},
		}, {
			Kind: seriesPanel, Title: "Failed attempts", Unit: "ops", Width: 6, Runbook: "KeywardFailOpen",
			About: "Connections that failed or timed out, attempts that took too long, and retries at the successor.",
			Queries: []query{
				ask("sum(rate("+of("envoy_cluster_upstream_cx_connect_fail")+"[~]))", "no connection"),
				ask("sum(rate("+of("envoy_cluster_upstream_rq_per_try_timeout")+"[~]))", "attempt timed out"),
				ask("sum(rate("+of("envoy_cluster_upstream_rq_timeout")+"[~]))", "call timed out"),
				ask("sum(rate("+of("envoy_cluster_upstream_rq_retry")+"[~]))", "retried at the successor"),
			},
		}, {
			Kind: seriesPanel, Title: "Members in Envoys", Unit: "short", Width: 6, Runbook: "KeywardXdsNack",
			About: "Healthy and all hosts of the rate-limit cluster, by Envoy: equal to the ring, or a moment behind.",
			Queries: []query{
				ask("max by (instance) ("+of("envoy_cluster_membership_healthy")+")", "{{instance}} healthy"),
				ask("max by (instance) ("+of("envoy_cluster_membership_total")+")", "{{instance}} all"),
			},
		}, {
			Kind: seriesPanel, Title: "Points on Envoy's ring", Unit: "short", Width: 6,
			About: "Points of the member with the most and with the fewest; empty for shapes without a ring. If " +
				"they differ much without weights, --ring-capacity is too small.",
			Queries: []query{
				ask("max("+of("envoy_cluster_ring_hash_lb_max_hashes_per_host")+")", "most"),
				ask("min("+of("envoy_cluster_ring_hash_lb_min_hashes_per_host")+")", "fewest"),
			},
		}, {
			Kind: seriesPanel, Title: "Connections and calls in progress", Unit: "short", Width: 6,
			About: "From all Envoys to the rate-limit cluster.",
			Queries: []query{
				ask("sum("+of("envoy_cluster_upstream_cx_active")+")", "connections"),
				ask("sum("+of("envoy_cluster_upstream_rq_active")+")", "requests"),
			},
		}, {
			Kind: seriesPanel, Title: "Hot keys capped at Envoy", Unit: "reqps", Width: 6,
			About: "Requests for hot keys that Envoys denied themselves; for Envoys with --caps, --hot-filters or " +
				"--hot-routes.",
			Queries: []query{ask(`sum(rate(envoy_http_local_rate_limit_enforced{@,envoy_local_http_ratelimit_prefix="keyward_cap"}[~])) or vector(0)`, "denied by Envoy")},
		},
	}
}

func clients() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "Responses by class", Unit: "reqps", Width: 8, Stacked: true, Colors: map[string]string{"2xx": "green", "3xx": "blue", "4xx": "orange", "5xx": "red"},
			About:   "Responses to clients. 4xx includes 429.",
			Queries: []query{ask(`sum by (envoy_response_code_class) (rate(envoy_http_downstream_rq_xx{@,envoy_http_conn_manager_prefix!="admin"}[~]))`, "{{envoy_response_code_class}}xx")},
		}, {
			Kind: seriesPanel, Title: "Response time", Unit: "ms", Width: 8,
			About:   "Of client requests, the rate-limit call included.",
			Queries: quantiles(`envoy_http_downstream_rq_time_bucket{@,envoy_http_conn_manager_prefix!="admin"}`, "$__rate_interval", "0.5", "0.99"),
		}, {
			Kind: seriesPanel, Title: "Requests by Envoy", Unit: "reqps", Width: 8,
			About:   "Requests of clients, by Envoy.",
			Queries: []query{ask(`sum by (instance) (rate(envoy_http_downstream_rq_total{@,envoy_http_conn_manager_prefix!="admin"}[~]))`, "{{instance}}")},
		},
	}
}

func xdsPanels() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "Connected to xDS", Unit: "short", Width: 6, Runbook: "KeywardXdsNack",
			About: "Envoys with a stream to their management server, and streams as counted by the xDS servers.",
			Queries: []query{
				ask(`sum(envoy_control_plane_connected_state{@})`, "Envoys connected"),
				ask(`sum(keyward_xds_streams{@cluster})`, "streams"),
			},
		}, {
			Kind: seriesPanel, Title: "Pushes", Unit: "ops", Width: 6,
			About:   "Responses sent to Envoys, by type. A change of membership pushes endpoints only.",
			Queries: []query{ask(`sum by (type) (rate(keyward_xds_pushes_total{@cluster}[~]))`, "{{type}}")},
		}, {
			Kind: seriesPanel, Title: "Rejected", Unit: "short", Width: 6, Runbook: "KeywardXdsNack",
			About: "Responses that Envoys rejected in the last five minutes (NACK), by type, as counted by the " +
				"xDS servers. These Envoys keep their previous configuration.",
			Queries: []query{ask(`sum by (type) (increase(keyward_xds_nacks_total{@cluster}[5m]))`, "{{type}}")},
		}, {
			Kind: seriesPanel, Title: "Time to acknowledgement", Unit: "s", Width: 6,
			About:   "From a response to Envoy's ACK, over the last five minutes.",
			Queries: quantiles(`keyward_xds_ack_seconds_bucket{@cluster}`, "5m", "0.5", "0.99"),
		},
	}
}
