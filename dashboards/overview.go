package dashboards

func overview() Board {
	return Board{
		UID: "keyward-overview", Title: "Keyward / Overview", Of: "keyward_ring_members", Who: "Member",
		About: "Who decides what, how well Envoy finds the owners, and what may have been admitted above the limits.",
		More: []Variable{{
			Name: "domain", Label: "Domain", Value: "domain", Metric: `ratelimit_service_rate_limit_total_hits{cluster=~"$cluster"}`,
		}},
		Rows: []Row{
			{"At a glance", glance()},
			{"Decisions", decisions()},
			{"When an owner cannot be reached", withoutOwner()},
			{"Limits of domain $domain (the statistics of envoyproxy/ratelimit)", limits()},
			{"Rules", rules()},
		},
	}
}

func glance() []Panel {
	return []Panel{
		{
			Kind: Stat, Title: "Decisions", Unit: "reqps", Width: 3, Steps: calm(),
			About:   "Questions answered per second, by all members.",
			Queries: []Query{ask(`sum(rate(keyward_decisions_total{@}[~]))`, "")},
		}, {
			Kind: Stat, Title: "Over the limit", Unit: "percentunit", Width: 3, Steps: calm(),
			About:   "Share of all questions that were answered OVER_LIMIT.",
			Queries: []Query{ask(`sum(rate(keyward_decisions_total{@,decision="over"}[~])) / sum(rate(keyward_decisions_total{@}[~]))`, "")},
		}, {
			Kind: Stat, Title: "Direct hits", Unit: "percentunit", Width: 3, Steps: good(0.8, 0.95), Runbook: "KeywardMisrouted",
			About:   "Of the questions that came with a key, the share that Envoy sent straight to the owner.",
			Queries: []Query{ask(`sum(rate(keyward_direct_total{@}[~])) / (sum(rate(keyward_direct_total{@}[~])) + sum(rate(keyward_misrouted_total{@}[~])))`, "")},
		}, {
			Kind: Stat, Title: "Degraded", Unit: "percentunit", Width: 3, Steps: bad(0.001, 0.01), Runbook: "KeywardDegraded",
			About:   "Share of all questions that their owner could not answer in time.",
			Queries: []Query{ask(`(sum(rate(keyward_degraded_total{@}[~])) or vector(0)) / sum(rate(keyward_decisions_total{@}[~]))`, "")},
		}, {
			Kind: Stat, Title: "Bound above a limit", Unit: "count:hits", Width: 3, Steps: bad(1, 1000), Runbook: "KeywardDegraded",
			About:   "Most hits that may have been admitted above any one limit in its present window, the members' bounds added up; 0 when nothing fails.",
			Queries: []Query{ask(`sum(keyward_overadmission_bound{@})`, "")},
		}, {
			Kind: Stat, Title: "On the ring", Unit: "short", Width: 3, Steps: calm(),
			About:   "Members on the ring, as the member that sees fewest sees it.",
			Queries: []Query{ask(`min(keyward_ring_members{@})`, "")},
		}, {
			Kind: Stat, Title: "Rings / rules in use", Unit: "short", Width: 3, Steps: bad(2, 3), Runbook: "KeywardRingDisagreement",
			About: "Different rings that members go by, and different versions of the rules in force; more than 1 for more than a moment is a fault.",
			Queries: []Query{
				ask(`count(count_values("fingerprint", keyward_ring_fingerprint{@}))`, "rings"),
				ask(`count(count by (version) (keyward_rules_version_info{@,state="in_force"}))`, "rules"),
			},
		}, {
			Kind: Stat, Title: "Alerts", Unit: "short", Width: 3, Steps: bad(1, 3),
			About:   "Keyward's alerts that fire in the chosen clusters.",
			Queries: []Query{ask(`count(ALERTS{@cluster,alertname=~"Keyward.*",alertstate="firing"}) or vector(0)`, "")},
		},
	}
}

func decisions() []Panel {
	return []Panel{
		{
			Kind: Series, Title: "By answer", Unit: "reqps", Width: 6, Stacked: true, Colours: verdicts(),
			About:   "What callers were told: ok, or over the limit.",
			Queries: []Query{ask(`sum by (decision) (rate(keyward_decisions_total{@}[~]))`, "{{decision}}")},
		}, {
			Kind: Series, Title: "By path", Unit: "reqps", Width: 6, Stacked: true,
			About:   "How answers were reached: direct (Envoy chose the owner), local (decided where it was asked, without a key from Envoy), forwarded (one hop), lease, degraded.",
			Queries: []Query{ask(`sum by (path) (rate(keyward_decisions_total{@}[~]))`, "{{path}}")},
		}, {
			Kind: Series, Title: "By member", Unit: "reqps", Width: 6,
			About:   "Asked of each member. One that is asked far more than the others owns a busy key, or has more Envoys.",
			Queries: []Query{ask(`sum by (instance) (rate(keyward_decisions_total{@}[~]))`, "{{instance}}")},
		}, {
			Kind: Series, Title: "Time to decide", Unit: "s", Width: 6,
			About:   "From a decoded request to its response, forwarding included. Envoy waits for the network on top.",
			Queries: quantiles(`keyward_decision_duration_seconds_bucket{@}`, "$__rate_interval", "0.5", "0.99", "0.999"),
		},
	}
}

func withoutOwner() []Panel {
	return []Panel{
		{
			Kind: Series, Title: "Degraded answers", Unit: "reqps", Width: 6, Runbook: "KeywardDegraded",
			About:   "Questions whose owner gave no answer in time, by the policy of their rule that answered instead.",
			Queries: []Query{whenWrong(`sum by (policy) (rate(keyward_degraded_total{@}[~])) > 0`, "{{policy}}")},
		}, {
			Kind: Series, Title: "Hits admitted without the owner", Unit: "count:hits/s", Width: 6, Runbook: "KeywardShares",
			About:   "By the right under which they were admitted: a share of the limit, fail_open up to its cap, fail_closed from what was known of the key.",
			Queries: []Query{ask(`sum by (authority) (rate(keyward_degraded_admitted_hits_total{@}[~]))`, "{{authority}}")},
		}, {
			Kind: Series, Title: "Bound by cause", Unit: "count:hits", Width: 6, Stacked: true, Runbook: "KeywardDegraded",
			About: "What each cause may have added to one key's present window, the members' sum; fail_open stands apart, since the limit does not bound it. docs/operating.md has the sizes.",
			Queries: []Query{
				ask(`sum by (cause) (keyward_overadmission_bound_by_cause{@})`, "{{cause}}"),
				ask(`sum(keyward_fail_open_admitted{@})`, "fail_open"),
			},
		}, {
			Kind: Series, Title: "Decisions not by right of the whole limit", Unit: "percentunit", Width: 6, Stacked: true, Runbook: "KeywardShares",
			About:   "Decisions as parts of all, those of owners with the whole limit left out: part (an owner that misses members), share (a member that cannot reach the owner), fail_open, fail_closed, overflow (the sketch), shed (refused: the owner is alive and too slow). Next to nothing when all is well.",
			Queries: []Query{ask(`sum by (authority) (rate(keyward_authority_total{@,authority!~"full|cached"}[~])) / scalar(sum(rate(keyward_authority_total{@}[~])))`, "{{authority}}")},
		}, {
			Kind: Series, Title: "Refused because owners are too slow", Unit: "reqps", Width: 12, Runbook: "KeywardShed",
			About: "Questions that were refused although their limits may have room, because their owners are alive and did not answer in time (refused); and why: the answer came too late (late), or too much waits for the owner already (shed).",
			Queries: []Query{
				ask(`sum(rate(keyward_authority_total{@,authority="shed"}[~]))`, "refused"),
				ask(`sum by (result) (rate(keyward_peer_questions_total{@,result=~"late|shed"}[~]))`, "{{result}}"),
			},
		}, {
			Kind: Series, Title: "Without owners since", Unit: "s", Width: 12, Runbook: "KeywardFallback",
			About:   "For how long each member has answered by degraded policies without a break of 10 s: seconds in a crash, minutes are a cut.",
			Queries: []Query{ask(`max by (instance) (keyward_fallback_seconds{@})`, "{{instance}}")},
		},
	}
}

func limits() []Panel {
	rate := func(what string) string {
		return `sum by (domain, key1) (rate(ratelimit_service_rate_limit_` + what + `{@,domain=~"$domain"}[~]))`
	}
	return []Panel{
		{
			Kind: Series, Title: "Hits", Unit: "count:hits/s", Width: 8,
			About:   "Hits that rules were asked about, by domain and the rule's first key.",
			Queries: []Query{ask(rate("total_hits"), "{{domain}} {{key1}}")},
		}, {
			Kind: Series, Title: "Within the limit", Unit: "count:hits/s", Width: 8,
			About:   "Hits that were admitted.",
			Queries: []Query{ask(rate("within_limit"), "{{domain}} {{key1}}")},
		}, {
			Kind: Series, Title: "Over the limit", Unit: "count:hits/s", Width: 8,
			About:   "Hits that were refused; those of shadow rules were admitted all the same.",
			Queries: []Query{ask(rate("over_limit"), "{{domain}} {{key1}}")},
		}, {
			Kind: Series, Title: "Shadow rules", Unit: "count:hits/s", Width: 8,
			About:   "Hits above the limit of a rule in shadow mode: what it would refuse.",
			Queries: []Query{ask(rate("shadow_mode"), "{{domain}} {{key1}}")},
		}, {
			Kind: Series, Title: "Near the limit", Unit: "count:hits/s", Width: 8,
			About:   "Hits admitted above NEAR_LIMIT_RATIO (80 %) of a limit: these callers are refused next.",
			Queries: []Query{ask(rate("near_limit"), "{{domain}} {{key1}}")},
		}, {
			Kind: Series, Title: "Requests", Unit: "reqps", Width: 8,
			About: "Requests to the rate-limit service by method, and those that ended with an error.",
			Queries: []Query{
				ask(`sum by (grpc_method) (rate(ratelimit_service_total_requests{@}[~]))`, "{{grpc_method}}"),
				whenWrong(`sum by (err_type) (rate(ratelimit_service_should_rate_limit_error{@}[~]))`, "{{err_type}}"),
			},
		}, {
			Kind: Series, Title: "Response time", Unit: "s", Width: 12,
			About:   "Of the rate-limit service, as envoyproxy/ratelimit measures it.",
			Queries: quantiles(`ratelimit_service_response_time_seconds_bucket{@}`, "$__rate_interval", "0.5", "0.99"),
		}, {
			Kind: Series, Title: "Configuration loads", Unit: "short", Width: 12, Runbook: "KeywardRulesNotRead",
			About: "Times that members read rules in the last five minutes, and the faults that they have found in rules since they started.",
			Queries: []Query{
				ask(`sum(increase(ratelimit_service_config_load_success{@}[5m]))`, "read"),
				whenWrong(`sum(ratelimit_service_config_load_error{@})`, "faults since the start"),
			},
		},
	}
}

func rules() []Panel {
	return []Panel{
		{
			Kind: Series, Title: "Versions in force", Unit: "short", Width: 8, Stacked: true, Runbook: "KeywardRulesDisagreement",
			About:   "Members by the version of the rules that they answer by. Two colours for more than a moment are a fault.",
			Queries: []Query{ask(`count by (version) (keyward_rules_version_info{@,state="in_force"})`, "{{version}}")},
		}, {
			Kind: Series, Title: "Waiting and disagreement", Unit: "short", Width: 8, Runbook: "KeywardRulesDisagreement",
			About: "Members that have not read what is prepared elsewhere, members that answer by other rules than the one that says so, processes whose last attempt to read rules failed, and members without any rules, which are not ready.",
			Queries: []Query{
				ask(`max(keyward_rules_waiting_members{@})`, "waited for"),
				ask(`max(keyward_rules_disagreement{@})`, "disagree"),
				ask(`count(keyward_config_last_reload_successful{@} == 0 and on (cluster, job, instance) keyward_config_reloads_total{@,result="error"} > 0) or vector(0)`, "could not read"),
				ask(`count(keyward_reach{@} unless on (cluster, job, instance) keyward_rules_version_info{@,state="in_force"}) or vector(0)`, "without rules"),
			},
		}, {
			Kind: Series, Title: "Reloads and switches", Unit: "short", Width: 8, Runbook: "KeywardRulesNotRead",
			About: "Attempts to read rules, and switches to them (first, agreed, timeout), in the last five minutes.",
			Queries: []Query{
				ask(`sum by (result) (increase(keyward_config_reloads_total{@}[5m]))`, "reload {{result}}"),
				ask(`sum by (reason) (increase(keyward_rules_switches_total{@}[5m]))`, "switch {{reason}}"),
			},
		},
	}
}
