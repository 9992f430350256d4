package dashboards

// quotas describes the board for limits that Envoys spend without calls. Its panels are empty without such rules, and without --module-socket.
func quotas() board {
	return board{
		UID: "keyward-quota", Title: "Keyward / Envoys without calls", Of: "keyward_quota_streams", Who: "Member", Optional: true,
		About: "Limits that Envoys spend without a call for each request, by rules with mechanism: quota or with the dynamic module: how " +
			"much they spend, whether they report and acknowledge, and what is charged and not used.",
		Rows: []row{
			{"At a glance", quotasGlance()},
			{"Spending", quotaSpending()},
			{"Reports and acknowledgements", quotaProof()},
			{"Faults", quotaFaults()},
			{"Modules in Envoys", modulesSpending()},
			{"Faults of modules", moduleFaults()},
		},
	}
}

func quotasGlance() []panel {
	return []panel{
		{
			Kind: statPanel, Title: "Envoys", Unit: "short", Width: 4, Steps: calm(),
			About:   "Open streams: one for each Envoy and domain.",
			Queries: []query{ask(`sum(keyward_quota_streams{@})`, "")},
		}, {
			Kind: statPanel, Title: "Requests without a call", Unit: "reqps", Width: 4, Steps: calm(),
			About:   "Requests per second that Envoys decide themselves, as they report them every 5 s.",
			Queries: []query{ask(`sum(rate(keyward_quota_requests_total{@}[1m]))`, "")},
		}, {
			Kind: statPanel, Title: "Messages per request", Unit: "percentunit", Width: 4, Steps: bad(0.01, 0.1),
			About:   "Reports and responses per request. With calls, it is 1. Above 1 %, the limits have too few requests, or too many keys, to be worth it.",
			Queries: []query{ask(`(sum(rate(keyward_quota_reports_total{@}[5m])) + sum(rate(keyward_quota_ack_seconds_count{@}[5m]))) / sum(rate(keyward_quota_requests_total{@}[5m]))`, "")},
		}, {
			Kind: statPanel, Title: "Oldest report", Unit: "s", Width: 4, Steps: bad(7, 8), Runbook: "KeywardQuotaReportsOld",
			About:   "Age of the newest report of the Envoy whose newest report is the oldest. Envoys report every 5 s.",
			Queries: []query{ask(`max(keyward_quota_report_age_seconds{@})`, "")},
		}, {
			Kind: statPanel, Title: "Not acknowledged", Unit: "s", Width: 4, Steps: bad(1, 2), Runbook: "KeywardQuotaAcksSlow",
			About:   "Age of the oldest response that an Envoy has not acknowledged. From 1 s on, it gets no assignments.",
			Queries: []query{ask(`max(keyward_quota_unacked_seconds{@})`, "")},
		}, {
			Kind: statPanel, Title: "Charged and not spent", Unit: "percentunit", Width: 4, Steps: bad(0.25, 0.5), Runbook: "KeywardQuotaStranded",
			About: "Part of the charged hits that no request has used when their windows end. High without refusals is usual: what is not " +
				"needed is not used.",
			Queries: []query{ask(quotaLost+` / sum(rate(keyward_quota_granted_hits_total{@}[10m]))`, "")},
		},
	}
}

// quotaLost is the rate of hits that were charged for Envoys and that no Envoy has spent.
const quotaLost = `(sum(rate(keyward_quota_stranded_hits_total{@}[10m])) + sum(rate(keyward_quota_unassigned_hits_total{@}[10m]))` +
	` + sum(rate(keyward_quota_unreturned_hits_total{@}[10m])))`

func quotaSpending() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "Requests that Envoys decide", Unit: "reqps", Width: 8, Colors: map[string]string{"admitted": "green", "refused": "orange"},
			About:   "Requests that Envoys have admitted and refused without a call.",
			Queries: []query{ask(`sum by (result) (rate(keyward_quota_requests_total{@}[1m]))`, "{{result}}")},
		}, {
			Kind: seriesPanel, Title: "Charged hits", Unit: "count:hits/s", Width: 8, Runbook: "KeywardQuotaStranded",
			About: "Hits that owners have charged for Envoys, those that were given back, and those that could be assigned again because a " +
				"report had proven them unspent.",
			Queries: []query{
				ask(`sum(rate(keyward_quota_granted_hits_total{@}[1m]))`, "charged"),
				ask(`sum(rate(keyward_quota_returned_hits_total{@}[1m]))`, "given back"),
				ask(`sum(rate(keyward_quota_credited_hits_total{@}[1m]))`, "assigned again"),
			},
		}, {
			Kind: seriesPanel, Title: "Charged hits that were not spent", Unit: "count:hits/s", Width: 8, Runbook: "KeywardQuotaStranded",
			About: "Hits of windows that have ended: assigned and not proven spent, never assigned, and not needed but impossible to give " +
				"back. With short windows, what Envoys may spend at the turn counts in two windows.",
			Queries: []query{
				ask(`sum(rate(keyward_quota_stranded_hits_total{@}[5m]))`, "assigned"),
				ask(`sum(rate(keyward_quota_unassigned_hits_total{@}[5m]))`, "not assigned"),
				whenWrong(`sum(rate(keyward_quota_unreturned_hits_total{@}[5m]))`, "not given back"),
			},
		}, {
			Kind: seriesPanel, Title: "Envoys by member", Unit: "short", Width: 12, Stacked: true,
			About:   "Open streams of each member.",
			Queries: []query{ask(`sum by (instance) (keyward_quota_streams{@})`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Bucket ids by member", Unit: "short", Width: 12, Stacked: true, Runbook: "KeywardQuotaOverCap",
			About:   "Bucket ids of all Envoys of each member together. An Envoy may have 1,000.",
			Queries: []query{ask(`sum by (instance) (keyward_quota_ids{@})`, "{{instance}}")},
		},
	}
}

func quotaProof() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "Oldest report", Unit: "s", Width: 8, Runbook: "KeywardQuotaReportsOld",
			About:   "Age of the newest report of the Envoy of each member whose newest report is the oldest: a saw below 5 s, plus its delay.",
			Queries: []query{ask(`max by (instance) (keyward_quota_report_age_seconds{@})`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Time until an assignment is used", Unit: "s", Width: 8, Runbook: "KeywardQuotaAcksSlow",
			About:   "From sending a response until all workers of the Envoy use it, over the last five minutes. Only acknowledged responses.",
			Queries: quantiles(`keyward_quota_ack_seconds_bucket{@}`, "5m", "0.5", "0.99"),
		}, {
			Kind: seriesPanel, Title: "Not acknowledged", Unit: "s", Width: 8, Runbook: "KeywardQuotaAcksSlow",
			About:   "Age of the oldest response of each member that an Envoy has not acknowledged.",
			Queries: []query{ask(`max by (instance) (keyward_quota_unacked_seconds{@})`, "{{instance}}")},
		},
	}
}

func quotaFaults() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "Reports above the cap", Unit: "reqps", Width: 8, Runbook: "KeywardQuotaOverCap",
			About: "Reports of bucket ids above the 1,000 of an Envoy, which get no assignment, and of those above the 10,000 that a stream " +
				"may have.",
			Queries: []query{
				ask(`sum by (instance) (rate(keyward_quota_over_cap_total{@}[~]))`, "{{instance}} above the cap"),
				ask(`sum by (instance) (rate(keyward_quota_rejected_total{@,reason="buckets"}[~]))`, "{{instance}} above the stream's"),
			},
		}, {
			Kind: seriesPanel, Title: "Responses that were not sent", Unit: "ops", Width: 8, Runbook: "KeywardQuotaUnsent",
			About: "Responses whose streams had ended, and streams that were ended because the Envoy did not read.",
			Queries: []query{
				ask(`sum by (instance) (rate(keyward_quota_unsent_total{@}[~]))`, "{{instance}} not sent"),
				ask(`sum by (instance) (rate(keyward_quota_rejected_total{@,reason="unread"}[~]))`, "{{instance}} not read"),
			},
		}, {
			Kind: seriesPanel, Title: "Faults of reports", Unit: "ops", Width: 8,
			About: "Other faults of Envoys, and bucket ids that fit no rule (admitted without a limit), several rules, or a rule with another " +
				"mechanism.",
			Queries: []query{
				ask(`sum by (reason) (rate(keyward_quota_rejected_total{@,reason=~"malformed|streams|oversize"}[~]))`, "{{reason}}"),
				ask(`sum by (fit) (rate(keyward_quota_unmatched_total{@}[~]))`, "{{fit}}"),
			},
		},
	}
}
