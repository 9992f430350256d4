package dashboards

// budgets describes the board for rules with holds. Its panels are empty without such rules.
func budgets() board {
	return board{
		UID: "keyward-budgets", Title: "Keyward / Budgets", Of: "keyward_holds_open", Who: "Member", Optional: true,
		About: "Rules with holds: token budgets and requests in flight. How much is held, whether settlements arrive, which limits are " +
			"nearly used, and what was charged or lost because of faults.",
		Rows: []row{
			{"At a glance", budgetsGlance()},
			{"Holds", heldNow()},
			{"Settlements", settlements()},
			{"Faults", holdFaults()},
		},
	}
}

func budgetsGlance() []panel {
	return []panel{
		{
			Kind: statPanel, Title: "Open holds", Unit: "short", Width: 4, Steps: calm(),
			About:   "Holds that are not settled, requests in flight among them. Each is counted by its key's owner.",
			Queries: []query{ask(`sum(keyward_holds_open{@})`, "")},
		}, {
			Kind: statPanel, Title: "Held hits", Unit: "count:hits", Width: 4, Steps: calm(),
			About:   "Hits of open holds. They are charged; what requests do not use of them comes back.",
			Queries: []query{ask(`sum(keyward_holds_open_hits{@})`, "")},
		}, {
			Kind: statPanel, Title: "Lapsed", Unit: "percentunit", Width: 4, Steps: bad(0.01, 0.05), Runbook: "KeywardHoldsLapse",
			About:   "Part of the holds that were not settled within their hold_ttl. It should be close to 0: every request settles its hold when it ends.",
			Queries: []query{ask(`sum(rate(keyward_holds_lapsed_total{@}[5m])) / sum(rate(keyward_holds_reserved_total{@}[5m]))`, "")},
		}, {
			Kind: statPanel, Title: "Commits of unknown holds", Unit: "percentunit", Width: 4, Steps: bad(0.01, 0.05), Runbook: "KeywardHoldsUnmatched",
			About:   "Commits that found no hold and were charged completely, as a part of the holds made. High: callers send other ids, or settle too late.",
			Queries: []query{ask(`sum(rate(keyward_holds_unmatched_total{@,settlement="commit"}[5m])) / sum(rate(keyward_holds_reserved_total{@}[5m]))`, "")},
		}, {
			Kind: statPanel, Title: "Refused for room", Unit: "reqps", Width: 4, Steps: bad(0.001, 1), Runbook: "KeywardHoldsRefused",
			About:   "Requests per second refused because there is no room for their holds, although the limit may have hits left.",
			Queries: []query{ask(`sum(rate(keyward_holds_refused_total{@}[~]))`, "")},
		}, {
			Kind: statPanel, Title: "Limits reached", Unit: "short", Width: 4, Steps: calm(),
			About:   "Limits with holds of which 100 % were used in the last hour, about once for each key and window.",
			Queries: []query{ask(`sum(increase(keyward_budget_events_total{@,level="100"}[1h]))`, "")},
		},
	}
}

func heldNow() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "Open holds by owner", Unit: "short", Width: 8, Stacked: true,
			About:   "Open holds of the keys that each member owns. They move with their keys when the ring changes.",
			Queries: []query{ask(`sum by (instance) (keyward_holds_open{@})`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Held hits by owner", Unit: "count:hits", Width: 8, Stacked: true,
			About:   "Hits of these holds. If they grow while few requests run, settlements do not arrive.",
			Queries: []query{ask(`sum by (instance) (keyward_holds_open_hits{@})`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Holds made", Unit: "ops", Width: 8,
			About: "Holds made per second, and requests that were recognized as repeated and not charged again.",
			Queries: []query{
				ask(`sum(rate(keyward_holds_reserved_total{@}[~]))`, "made"),
				ask(`sum(rate(keyward_holds_repeated_requests_total{@}[~]))`, "repeated"),
			},
		}, {
			Kind: seriesPanel, Title: "Budgets nearly used", Unit: "short", Width: 12,
			About: "Keys with holds whose charges reached 80 % and 100 % of their limits in the last five minutes, and events that found no " +
				"room. The log of the owner, or the audit log, has the digest of the key; keyward budgets lists the keys.",
			Queries: []query{
				ask(`sum by (level) (increase(keyward_budget_events_total{@}[5m]))`, "{{level}} %"),
				ask(`sum(increase(keyward_budget_events_lost_total{@}[5m]))`, "lost"),
			},
		}, {
			Kind: seriesPanel, Title: "Records of holds", Unit: "short", Width: 12, Runbook: "KeywardHoldsRefused",
			About: "Records in memory, those settled in the last minute among them: own, at most --max-holds, and copies of other members' " +
				"holds, as many.",
			Queries: []query{ask(`max by (instance, of) (keyward_holds_records{@})`, "{{instance}} {{of}}")},
		},
	}
}

func settlements() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "Hits given back", Unit: "count:hits/s", Width: 8,
			About:   "Hits that were reserved and not used. High compared with what is used: estimates are too large, and refuse requests that would fit.",
			Queries: []query{ask(`sum(rate(keyward_holds_given_back_hits_total{@}[~]))`, "given back")},
		}, {
			Kind: seriesPanel, Title: "Hits beyond the estimate", Unit: "count:hits/s", Width: 8,
			About:   "Hits that commits charged in addition to what was reserved. They may exceed limits: estimates are too small.",
			Queries: []query{ask(`sum(rate(keyward_holds_excess_hits_total{@}[~]))`, "excess")},
		}, {
			Kind: seriesPanel, Title: "Lapsed holds", Unit: "ops", Width: 8, Runbook: "KeywardHoldsLapse",
			About:   "Holds that were not settled within hold_ttl. With lapse: keep they stay charged, with release they are given back.",
			Queries: []query{ask(`sum by (instance) (rate(keyward_holds_lapsed_total{@}[~]))`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Settlements of unknown holds", Unit: "ops", Width: 8, Runbook: "KeywardHoldsUnmatched",
			About:   "commit: charged completely. other: without effect, as after requests that were refused, which settle although they have no hold.",
			Queries: []query{ask(`sum by (settlement) (rate(keyward_holds_unmatched_total{@}[~]))`, "{{settlement}}")},
		}, {
			Kind: seriesPanel, Title: "Settlements repeated", Unit: "ops", Width: 8, Runbook: "KeywardSettlementsLost",
			About:   "Settlements that no owner had confirmed in time, so that the member that received them has sent them again.",
			Queries: []query{ask(`sum by (instance) (rate(keyward_holds_settlements_repeated_total{@}[~]))`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Settlements waiting", Unit: "short", Width: 8, Runbook: "KeywardSettlementsLost",
			About:   "Settlements that no owner has confirmed yet. They are repeated for a minute.",
			Queries: []query{ask(`max by (instance) (keyward_holds_settlements_waiting{@})`, "{{instance}}")},
		},
	}
}

func holdFaults() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "Refused for room", Unit: "reqps", Width: 8, Runbook: "KeywardHoldsRefused",
			About:   "Requests refused because their key has as many open holds as its rule's holds, or the domain or the member has no room.",
			Queries: []query{ask(`sum by (instance) (rate(keyward_holds_refused_total{@}[~]))`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Ids in use", Unit: "reqps", Width: 8,
			About:   "Requests refused because their id is that of another open hold. An Envoy sends an id that clients can choose, or no unique one.",
			Queries: []query{ask(`sum by (instance) (rate(keyward_holds_collisions_total{@}[~]))`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Without an id", Unit: "reqps", Width: 8, Runbook: "KeywardHoldsLapse",
			About:   "Requests without x-keyward-id. A hold that they make can only lapse, and what they settle has no effect.",
			Queries: []query{ask(`sum by (instance) (rate(keyward_holds_without_id_total{@}[~]))`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Abandoned", Unit: "ops", Width: 8,
			About:   "Holds that were released because their caller gave up before the answer: clients that leave, or timeouts that are too short.",
			Queries: []query{ask(`sum by (instance) (rate(keyward_holds_abandoned_total{@}[~]))`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Settlements lost", Unit: "short", Width: 8, Runbook: "KeywardSettlementsLost",
			About: "Settlements that no owner confirmed within a minute, or that found no room, and hits that could not be given back. They stay " +
				"charged until their window ends.",
			Queries: []query{
				ask(`sum by (instance) (increase(keyward_holds_settlements_lost_total{@}[5m]))`, "{{instance}} settlements"),
				ask(`sum by (instance) (increase(keyward_holds_lost_hits_total{@}[5m]))`, "{{instance}} hits"),
			},
		}, {
			Kind: seriesPanel, Title: "Dead callers", Unit: "ops", Width: 8,
			About:   "Requests in flight that were released because their Envoy is dead.",
			Queries: []query{ask(`sum by (instance) (rate(keyward_holds_callers_dead_total{@}[~]))`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Sets without a hold", Unit: "ops", Width: 8, Runbook: "KeywardHoldsRefused",
			About:   "Charges of sets (all_or_nothing) that found no room for a hold. They stay charged even if another limit of the set refuses the request.",
			Queries: []query{ask(`sum by (instance) (rate(keyward_holds_sets_unclaimed_total{@}[~]))`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Copies without room", Unit: "ops", Width: 8, Runbook: "KeywardHoldsRefused",
			About:   "Copies of other members' holds that found no room. If their owner fails, these holds are not known, and give nothing back.",
			Queries: []query{ask(`sum by (instance) (rate(keyward_holds_copies_dropped_total{@}[~]))`, "{{instance}}")},
		},
	}
}
