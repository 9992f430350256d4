package dashboards

func overview() board {
	return board{
		UID: "keyward-overview", Title: "Keyward / Overview", Of: "keyward_ring_members", Who: "Member",
		About: "How requests are decided, how well Envoy finds the owners, and how much may have been admitted " +
			"above the limits.",
		More: []variable{{
			Name: "domain", Label: "Domain", Value: "domain", Metric: `ratelimit_service_rate_limit_total_hits{cluster=~"$cluster"}`,
		}},
		Rows: []row{
			{"At a glance", glance()},
			{"Decisions", decisions()},
			{"Unavailable owners", withoutOwner()},
			{"Limits of domain $domain (the statistics of envoyproxy/ratelimit)", limits()},
			{"Rules", rules()},
		},
	}
}

func glance() []panel {
	return []panel{
		{
			Kind: statPanel, Title: "Decisions", Unit: "reqps", Width: 3, Steps: calm(),
			About:   "Requests decided per second, by all members.",
			Queries: []query{ask(`sum(rate(keyward_decisions_total{@}[~]))`, "")},
		}, {
			Kind: statPanel, Title: "Over the limit", Unit: "percentunit", Width: 3, Steps: calm(),
			About:   "Share of all requests that were answered with OVER_LIMIT.",
			Queries: []query{ask(`sum(rate(keyward_decisions_total{@,decision="over"}[~])) / sum(rate(keyward_decisions_total{@}[~]))`, "")},
		}, {
			Kind: statPanel, Title: "Direct hits", Unit: "percentunit", Width: 3, Steps: good(0.8, 0.95), Runbook: "KeywardMisrouted",
			About:   "Of the requests with a key, the share that Envoy sent directly to the owner.",
			Queries: []query{ask(`sum(rate(keyward_direct_total{@}[~])) / (sum(rate(keyward_direct_total{@}[~])) + sum(rate(keyward_misrouted_total{@}[~])))`, "")},
		}, {
			Kind: statPanel, Title: "Degraded", Unit: "percentunit", Width: 3, Steps: bad(0.001, 0.01), Runbook: "KeywardDegraded",
			About:   "Share of all requests that the owner did not decide in time.",
			Queries: []query{ask(`(sum(rate(keyward_degraded_total{@}[~])) or vector(0)) / sum(rate(keyward_decisions_total{@}[~]))`, "")},
		}, {
			Kind: statPanel, Title: "Bound above a limit", Unit: "count:hits", Width: 3, Steps: bad(1, 1000), Runbook: "KeywardDegraded",
			About: "Most hits that may have been admitted above any one limit in its current window, summed over " +
				"members; 0 while nothing fails.",
			Queries: []query{ask(`sum(keyward_overadmission_bound{@})`, "")},
		}, {
			Kind: statPanel, Title: "On the ring", Unit: "short", Width: 3, Steps: calm(),
			About:   "Members on the ring, in the view of the member with the fewest.",
			Queries: []query{ask(`min(keyward_ring_members{@})`, "")},
		}, {
			Kind: statPanel, Title: "Rings / rules in use", Unit: "short", Width: 3, Steps: bad(2, 3), Runbook: "KeywardRingDisagreement",
			About: "Different rings in use, and different versions of the rules in force. More than 1 for more than " +
				"a moment is a fault.",
			Queries: []query{
				ask(`count(count_values("fingerprint", keyward_ring_fingerprint{@}))`, "rings"),
				ask(`count(count by (version) (keyward_rules_version_info{@,state="in_force"}))`, "rules"),
			},
		}, {
			Kind: statPanel, Title: "Alerts", Unit: "short", Width: 3, Steps: bad(1, 3),
			About:   "Keyward's alerts that fire in the chosen clusters.",
			Queries: []query{ask(`count(ALERTS{@cluster,alertname=~"Keyward.*",alertstate="firing"}) or vector(0)`, "")},
		},
	}
}

func decisions() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "By result", Unit: "reqps", Width: 6, Stacked: true, Colors: resultColors(),
			About:   "Results for callers: ok, or over the limit.",
			Queries: []query{ask(`sum by (decision) (rate(keyward_decisions_total{@}[~]))`, "{{decision}}")},
		}, {
			Kind: seriesPanel, Title: "By path", Unit: "reqps", Width: 6, Stacked: true,
			About: "How requests were decided: direct (Envoy chose the owner), local (at the receiving member, " +
				"without a key from Envoy), forwarded (one hop), lease, degraded.",
			Queries: []query{ask(`sum by (path) (rate(keyward_decisions_total{@}[~]))`, "{{path}}")},
		}, {
			Kind: seriesPanel, Title: "By member", Unit: "reqps", Width: 6,
			About: "Requests at each member. A member with far more requests than the others owns a busy key or " +
				"has more Envoys.",
			Queries: []query{ask(`sum by (instance) (rate(keyward_decisions_total{@}[~]))`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Time to decide", Unit: "s", Width: 6,
			About:   "From a decoded request to its response, forwarding included, without the network to Envoy.",
			Queries: quantiles(`keyward_decision_duration_seconds_bucket{@}`, "$__rate_interval", "0.5", "0.99", "0.999"),
		},
	}
}

func withoutOwner() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "Degraded decisions", Unit: "reqps", Width: 6, Runbook: "KeywardDegraded",
			About:   "Requests whose owner did not reply in time, by the policy that decided instead.",
			Queries: []query{whenWrong(`sum by (policy) (rate(keyward_degraded_total{@}[~])) > 0`, "{{policy}}")},
		}, {
			Kind: seriesPanel, Title: "Hits admitted without the owner", Unit: "count:hits/s", Width: 6, Runbook: "KeywardShares",
			About: "By authority: a share of the limit, fail_open up to its cap, fail_closed from the last known " +
				"state of the key.",
			Queries: []query{ask(`sum by (authority) (rate(keyward_degraded_admitted_hits_total{@}[~]))`, "{{authority}}")},
		}, {
			Kind: seriesPanel, Title: "Bound by cause", Unit: "count:hits", Width: 6, Stacked: true, Runbook: "KeywardDegraded",
			About: "Most hits that each cause may have added to one key's current window, summed over members. " +
				"fail_open is separate, since the limit does not bound it. docs/operating.md has the sizes.",
			Queries: []query{
				ask(`sum by (cause) (keyward_overadmission_bound_by_cause{@})`, "{{cause}}"),
				ask(`sum(keyward_fail_open_admitted{@})`, "fail_open"),
			},
		}, {
			Kind: seriesPanel, Title: "Decisions without full authority", Unit: "percentunit", Width: 6, Stacked: true, Runbook: "KeywardShares",
			About: "Share of decisions that are not made by owners with the full limit: part (an owner that lacks " +
				"members), share (a member that cannot reach the owner), fail_open, fail_closed, overflow (the " +
				"sketch), shed (denied: the owner is alive but too slow). Close to 0 in normal operation.",
			Queries: []query{ask(`sum by (authority) (rate(keyward_authority_total{@,authority!~"full|cached|static"}[~])) / scalar(sum(rate(keyward_authority_total{@}[~])))`, "{{authority}}")},
		}, {
			Kind: seriesPanel, Title: "Denied because owners are too slow", Unit: "reqps", Width: 12, Runbook: "KeywardShed",
			About: "Requests that were denied although their limits may have room, because live owners did not " +
				"answer in time (denied), and the reason: the reply came too late (late), or too many requests wait " +
				"for the owner (shed).",
			Queries: []query{
				ask(`sum(rate(keyward_authority_total{@,authority="shed"}[~]))`, "denied"),
				ask(`sum by (result) (rate(keyward_peer_questions_total{@,result=~"late|shed"}[~]))`, "{{result}}"),
			},
		}, {
			Kind: seriesPanel, Title: "Time without owners", Unit: "s", Width: 12, Runbook: "KeywardFallback",
			About: "How long each member has decided by degraded policies without a break of 10 s: seconds after " +
				"a crash, minutes in a partition.",
			Queries: []query{ask(`max by (instance) (keyward_fallback_seconds{@})`, "{{instance}}")},
		},
	}
}

func limits() []panel {
	rate := func(what string) string {
		return `sum by (domain, key1) (rate(ratelimit_service_rate_limit_` + what + `{@,domain=~"$domain"}[~]))`
	}
	return []panel{
		{
			Kind: seriesPanel, Title: "Hits", Unit: "count:hits/s", Width: 8,
			About:   "Hits that rules were applied to, by domain and the rule's first key.",
			Queries: []query{ask(rate("total_hits"), "{{domain}} {{key1}}")},
		}, {
			Kind: seriesPanel, Title: "Within the limit", Unit: "count:hits/s", Width: 8,
			About:   "Hits that were admitted.",
			Queries: []query{ask(rate("within_limit"), "{{domain}} {{key1}}")},
		}, {
			Kind: seriesPanel, Title: "Over the limit", Unit: "count:hits/s", Width: 8,
			About:   "Hits above the limit. They are denied, except those of shadow rules.",
			Queries: []query{ask(rate("over_limit"), "{{domain}} {{key1}}")},
		}, {
			Kind: seriesPanel, Title: "Shadow rules", Unit: "count:hits/s", Width: 8,
			About:   "Hits above the limit of a rule in shadow mode, which it would deny.",
			Queries: []query{ask(rate("shadow_mode"), "{{domain}} {{key1}}")},
		}, {
			Kind: seriesPanel, Title: "Near the limit", Unit: "count:hits/s", Width: 8,
			About:   "Hits admitted above NEAR_LIMIT_RATIO (80 %) of a limit. These callers are denied next.",
			Queries: []query{ask(rate("near_limit"), "{{domain}} {{key1}}")},
		}, {
			Kind: seriesPanel, Title: "Requests", Unit: "reqps", Width: 8,
			About: "Calls to the rate-limit service by method, and failed calls.",
			Queries: []query{
				ask(`sum by (grpc_method) (rate(ratelimit_service_total_requests{@}[~]))`, "{{grpc_method}}"),
				whenWrong(`sum by (err_type) (rate(ratelimit_service_should_rate_limit_error{@}[~]))`, "{{err_type}}"),
			},
		}, {
			Kind: seriesPanel, Title: "Response time", Unit: "s", Width: 12,
			About:   "Of the rate-limit service, as measured by envoyproxy/ratelimit.",
			Queries: quantiles(`ratelimit_service_response_time_seconds_bucket{@}`, "$__rate_interval", "0.5", "0.99"),
		}, {
			Kind: seriesPanel, Title: "Configuration loads", Unit: "short", Width: 12, Runbook: "KeywardRulesNotRead",
			About: "Loads of rules in the last five minutes, and errors in rules since the members started.",
			Queries: []query{
				ask(`sum(increase(ratelimit_service_config_load_success{@}[5m]))`, "read"),
				whenWrong(`sum(ratelimit_service_config_load_error{@})`, "errors since the start"),
			},
		},
	}
}

func rules() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "Versions in force", Unit: "short", Width: 8, Stacked: true, Runbook: "KeywardRulesDisagreement",
			About: "Members by the version of the rules that they use. Two colors for more than a moment are a " +
				"fault.",
			Queries: []query{ask(`count by (version) (keyward_rules_version_info{@,state="in_force"})`, "{{version}}")},
		}, {
			Kind: seriesPanel, Title: "Waiting and disagreement", Unit: "short", Width: 8, Runbook: "KeywardRulesDisagreement",
			About: "Members that have not read the prepared rules, members that use other rules than the reporting " +
				"member, processes whose last attempt to read rules failed, and members without any rules, which " +
				"are not ready.",
			Queries: []query{
				ask(`max(keyward_rules_waiting_members{@})`, "not read yet"),
				ask(`max(keyward_rules_disagreement{@})`, "disagree"),
				ask(`count(keyward_config_last_reload_successful{@} == 0 and on (cluster, job, instance) keyward_config_reloads_total{@,result="error"} > 0) or vector(0)`, "could not read"),
				ask(`count(keyward_reach{@} unless on (cluster, job, instance) keyward_rules_version_info{@,state="in_force"}) or vector(0)`, "without rules"),
			},
		}, {
			Kind: seriesPanel, Title: "Reloads and switches", Unit: "short", Width: 8, Runbook: "KeywardRulesNotRead",
			About: "Attempts to read rules, and switches to them (first, agreed, timeout), in the last five minutes.",
			Queries: []query{
				ask(`sum by (result) (increase(keyward_config_reloads_total{@}[5m]))`, "reload {{result}}"),
				ask(`sum by (reason) (increase(keyward_rules_switches_total{@}[5m]))`, "switch {{reason}}"),
			},
		},
	}
}
