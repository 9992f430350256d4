package dashboards

func edge() Board {
	return Board{
		UID: "keyward-edge", Title: "Keyward / Envoy edge", Of: "envoy_server_live", Who: "Envoy",
		About: "What Envoys ask, what they are told and how long they wait for it, what passed uncounted, and whether xDS reaches them.",
		More: []Variable{
			{
				Name: "rls", Label: "Rate-limit cluster", Value: "envoy_cluster_name", Regex: "/rate.?limit|^(outbound.*)?keyward(?!-xds)/",
				Metric: `envoy_cluster_upstream_rq_total{cluster=~"$cluster",namespace=~"$namespace",job=~"$job"}`,
			},
		},
		Rows: []Row{
			{"At a glance", edgeGlance()},
			{"Verdicts", edgeVerdicts()},
			{"Questions to cluster $rls", questions()},
			{"What clients see", clients()},
			{"xDS", xdsPanels()},
		},
	}
}

// Envoy has no series of what has not happened yet, hence the zeros.

// uncounted are the requests that Envoys let through because nobody answered.
const uncounted = `sum(rate(envoy_cluster_ratelimit_failure_mode_allowed{@}[~])) or vector(0)`

// refused, unanswered and asked are the questions that were answered OVER_LIMIT, not at all, and all of them.
const (
	refused    = `(sum(rate(envoy_cluster_ratelimit_over_limit{@}[~])) or vector(0))`
	unanswered = `(sum(rate(envoy_cluster_ratelimit_error{@}[~])) or vector(0))`
	asked      = `(sum(rate(envoy_cluster_ratelimit_ok{@}[~])) + ` + refused + ` + ` + unanswered + `)`
)

func edgeGlance() []Panel {
	return []Panel{
		{
			Kind: Stat, Title: "Requests", Unit: "reqps", Width: 4, Steps: calm(),
			About:   "Requests of clients, by all chosen Envoys; those to the admin port apart.",
			Queries: []Query{ask(`sum(rate(envoy_http_downstream_rq_total{@,envoy_http_conn_manager_prefix!="admin"}[~]))`, "")},
		}, {
			Kind: Stat, Title: "Verdicts", Unit: "reqps", Width: 4, Steps: calm(),
			About:   "Questions that rate-limit filters asked, however they ended.",
			Queries: []Query{ask(asked, "")},
		}, {
			Kind: Stat, Title: "Over the limit", Unit: "percentunit", Width: 4, Steps: calm(),
			About:   "Share of the questions that were answered OVER_LIMIT: clients got 429.",
			Queries: []Query{ask(refused+" / "+asked, "")},
		}, {
			Kind: Stat, Title: "Without an answer", Unit: "percentunit", Width: 4, Steps: bad(0.0001, 0.01), Runbook: "KeywardFailOpen",
			About:   "Share of the questions that ended in an error or at Envoy's own timeout.",
			Queries: []Query{ask(unanswered+" / "+asked, "")},
		}, {
			Kind: Stat, Title: "Let through uncounted", Unit: "reqps", Width: 4, Steps: bad(0.001, 1), Runbook: "KeywardFailOpen",
			About:   "Requests a second that passed because nobody answered and failure_mode_deny is not set. No member knows of them.",
			Queries: []Query{ask(uncounted, "")},
		}, {
			Kind: Stat, Title: "Time for an answer, p99", Unit: "ms", Width: 4, Steps: bad(10, 20), Runbook: "KeywardSlowDecisions",
			About:   "As Envoys measure it, network included.",
			Queries: []Query{ask(`histogram_quantile(0.99, sum by (le) (rate(envoy_cluster_upstream_rq_time_bucket{@,envoy_cluster_name=~"$rls"}[~])))`, "")},
		},
	}
}

func edgeVerdicts() []Panel {
	return []Panel{
		{
			Kind: Series, Title: "Verdicts", Unit: "reqps", Width: 8, Stacked: true, Colours: verdicts(), Runbook: "KeywardFailOpen",
			About: "What rate-limit filters were told: ok, over the limit, or nothing in time (error).",
			Queries: []Query{
				ask(`sum(rate(envoy_cluster_ratelimit_ok{@}[~]))`, "ok"),
				ask(`sum(rate(envoy_cluster_ratelimit_over_limit{@}[~]))`, "over the limit"),
				whenWrong(`sum(rate(envoy_cluster_ratelimit_error{@}[~]))`, "error"),
			},
		}, {
			Kind: Series, Title: "Let through uncounted", Unit: "reqps", Width: 8, Runbook: "KeywardFailOpen",
			About:   "By Envoy: requests that passed without a verdict.",
			Queries: []Query{whenWrong(`sum by (instance) (rate(envoy_cluster_ratelimit_failure_mode_allowed{@}[~]))`, "{{instance}}")},
		}, {
			Kind: Series, Title: "Over the limit by Envoy", Unit: "percentunit", Width: 8,
			About:   "Envoys in front of the same clients refuse the same share.",
			Queries: []Query{ask(`sum by (instance) (rate(envoy_cluster_ratelimit_over_limit{@}[~])) / (sum by (instance) (rate(envoy_cluster_ratelimit_ok{@}[~])) + sum by (instance) (rate(envoy_cluster_ratelimit_over_limit{@}[~])))`, "{{instance}}")},
		},
	}
}

func questions() []Panel {
	of := func(metric string) string { return metric + `{@,envoy_cluster_name=~"$rls"}` }
	return []Panel{
		{
			Kind: Series, Title: "Time for an answer", Unit: "ms", Width: 6, Runbook: "KeywardSlowDecisions",
			About:   "As Envoys measure it, network included. Envoy's default timeout is 20 ms.",
			Queries: quantiles(of("envoy_cluster_upstream_rq_time_bucket"), "$__rate_interval", "0.5", "0.99", "0.999"),
		}, {
			Kind: Series, Title: "Direct-hit ratio", Unit: "percentunit", Width: 6, Max: 1, Runbook: "KeywardMisrouted",
			About:   "Of the questions that came to the chosen clusters' members with a key, the share that went straight to the owner, by member.",
			Queries: []Query{ask(`sum by (instance) (rate(keyward_direct_total{@cluster}[~])) / (sum by (instance) (rate(keyward_direct_total{@cluster}[~])) + sum by (instance) (rate(keyward_misrouted_total{@cluster}[~])))`, "{{instance}}")},
		}, {
			Kind: Series, Title: "Misrouted", Unit: "reqps", Width: 6, Runbook: "KeywardMisrouted",
			About:   "Questions with a key that had to be forwarded. ring: Envoy's ring is another than the members'. key: the key is not the one that the descriptor's rule is sharded by.",
			Queries: []Query{ask(`sum by (cause) (rate(keyward_misrouted_total{@cluster}[~]))`, "{{cause}}")},
		}, {
			Kind: Series, Title: "Tries that failed", Unit: "ops", Width: 6, Runbook: "KeywardFailOpen",
			About: "Connections that failed or timed out, tries that took too long, and questions asked again, of the heir.",
			Queries: []Query{
				ask("sum(rate("+of("envoy_cluster_upstream_cx_connect_fail")+"[~]))", "no connection"),
				ask("sum(rate("+of("envoy_cluster_upstream_rq_per_try_timeout")+"[~]))", "try timed out"),
				ask("sum(rate("+of("envoy_cluster_upstream_rq_timeout")+"[~]))", "question timed out"),
				ask("sum(rate("+of("envoy_cluster_upstream_rq_retry")+"[~]))", "asked the heir"),
			},
		}, {
			Kind: Series, Title: "Members that Envoys know", Unit: "short", Width: 6, Runbook: "KeywardXdsNack",
			About: "Healthy hosts of the rate-limit cluster and all of them, by Envoy: equal to the ring, or moments behind.",
			Queries: []Query{
				ask("max by (instance) ("+of("envoy_cluster_membership_healthy")+")", "{{instance}} healthy"),
				ask("max by (instance) ("+of("envoy_cluster_membership_total")+")", "{{instance}} all"),
			},
		}, {
			Kind: Series, Title: "Places on Envoy's ring", Unit: "short", Width: 6,
			About: "Of the member with most and with fewest, in rings of Envoy; empty for shapes without one. Far apart without weights: --ring-capacity is too small.",
			Queries: []Query{
				ask("max("+of("envoy_cluster_ring_hash_lb_max_hashes_per_host")+")", "most"),
				ask("min("+of("envoy_cluster_ring_hash_lb_min_hashes_per_host")+")", "fewest"),
			},
		}, {
			Kind: Series, Title: "Connections and requests under way", Unit: "short", Width: 6,
			About: "To the rate-limit cluster, by all Envoys.",
			Queries: []Query{
				ask("sum("+of("envoy_cluster_upstream_cx_active")+")", "connections"),
				ask("sum("+of("envoy_cluster_upstream_rq_active")+")", "requests"),
			},
		}, {
			Kind: Series, Title: "Hot keys capped at Envoy", Unit: "reqps", Width: 6,
			About:   "Requests of hot keys that Envoys refused by themselves, as Keyward told them over xDS; for Envoys with --hot-routes.",
			Queries: []Query{ask(`sum(rate(envoy_http_local_rate_limit_enforced{@,envoy_local_http_ratelimit_prefix="keyward_cap"}[~])) or vector(0)`, "refused by Envoy")},
		},
	}
}

func clients() []Panel {
	return []Panel{
		{
			Kind: Series, Title: "Answers by class", Unit: "reqps", Width: 8, Stacked: true, Colours: map[string]string{"2xx": "green", "3xx": "blue", "4xx": "orange", "5xx": "red"},
			About:   "What clients got, 429 among the 4xx.",
			Queries: []Query{ask(`sum by (envoy_response_code_class) (rate(envoy_http_downstream_rq_xx{@,envoy_http_conn_manager_prefix!="admin"}[~]))`, "{{envoy_response_code_class}}xx")},
		}, {
			Kind: Series, Title: "Response time", Unit: "ms", Width: 8,
			About:   "Of whole requests, the question for a verdict included.",
			Queries: quantiles(`envoy_http_downstream_rq_time_bucket{@,envoy_http_conn_manager_prefix!="admin"}`, "$__rate_interval", "0.5", "0.99"),
		}, {
			Kind: Series, Title: "Requests by Envoy", Unit: "reqps", Width: 8,
			About:   "Of clients.",
			Queries: []Query{ask(`sum by (instance) (rate(envoy_http_downstream_rq_total{@,envoy_http_conn_manager_prefix!="admin"}[~]))`, "{{instance}}")},
		},
	}
}

func xdsPanels() []Panel {
	return []Panel{
		{
			Kind: Series, Title: "Connected to xDS", Unit: "short", Width: 6, Runbook: "KeywardXdsNack",
			About: "Envoys with a stream to their management server, and streams as the xDS servers count them.",
			Queries: []Query{
				ask(`sum(envoy_control_plane_connected_state{@})`, "Envoys connected"),
				ask(`sum(keyward_xds_streams{@cluster})`, "streams"),
			},
		}, {
			Kind: Series, Title: "Pushes", Unit: "ops", Width: 6,
			About:   "Responses sent to Envoys, by type. A change of membership pushes endpoints only.",
			Queries: []Query{ask(`sum by (type) (rate(keyward_xds_pushes_total{@cluster}[~]))`, "{{type}}")},
		}, {
			Kind: Series, Title: "Refused", Unit: "short", Width: 6, Runbook: "KeywardXdsNack",
			About:   "Responses that Envoys refused in the last five minutes (NACK), by type, as the xDS servers count them; they keep what they had.",
			Queries: []Query{ask(`sum by (type) (increase(keyward_xds_nacks_total{@cluster}[5m]))`, "{{type}}")},
		}, {
			Kind: Series, Title: "Time to an acknowledgement", Unit: "s", Width: 6,
			About:   "From a response to Envoy's ACK, over the last five minutes.",
			Queries: quantiles(`keyward_xds_ack_seconds_bucket{@cluster}`, "5m", "0.5", "0.99"),
		},
	}
}
