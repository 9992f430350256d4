package dashboards

// regions describes the board for limits that several regions share. Its panels are empty without a federation.
func regions() board {
	return board{
		UID: "keyward-federation", Title: "Keyward / Federation", Of: "keyward_federation_up", Who: "Member", Optional: true,
		About: "Limits that several regions share: whether members reach the coordinator, what decides, how far limits may be " +
			"exceeded in an outage, and what the coordinator lends.",
		Rows: []row{
			{"At a glance", regionsGlance()},
			{"Decisions", regionDecisions()},
			{"The way to the coordinator", coordinatorCalls()},
			{"Coordinator (cmd/coordinator)", coordinators()},
		},
	}
}

func regionsGlance() []panel {
	return []panel{
		{
			Kind: statPanel, Title: "Coordinator reached", Unit: "percentunit", Width: 4, Steps: good(0.5, 1), Runbook: "KeywardCoordinatorAway",
			About:   "Share of the members whose last call to the coordinator succeeded.",
			Queries: []query{ask(`avg(keyward_federation_up{@})`, "")},
		}, {
			Kind: statPanel, Title: "Decided from escrows", Unit: "reqps", Width: 4, Steps: calm(),
			About:   "Decisions per second from hits that the coordinator has lent, in addition to floors.",
			Queries: []query{ask(`sum(rate(keyward_authority_total{@,authority="escrow"}[~]))`, "")},
		}, {
			Kind: statPanel, Title: "Outage policies", Unit: "reqps", Width: 4, Steps: bad(0.001, 1), Runbook: "KeywardOutagePolicy",
			About:   "Decisions per second by the rules' outage policies.",
			Queries: []query{ask(`sum(rate(keyward_federation_outage_decisions_total{@}[~]))`, "")},
		}, {
			Kind: statPanel, Title: "Above floors in outages", Unit: "count:hits", Width: 4, Steps: bad(1, 1000), Runbook: "KeywardOutagePolicy",
			About:   "Most hits of one key that members have admitted above their region's floor while the coordinator was away.",
			Queries: []query{ask(`max(keyward_overadmission_bound_by_cause{@,cause="outage"})`, "")},
		}, {
			Kind: statPanel, Title: "Calls per decision", Unit: "percentunit", Width: 4, Steps: bad(0.05, 0.2),
			About:   "Requests to the coordinator per decision from an escrow. 1 % is usual; short windows and many keys need more.",
			Queries: []query{ask(`sum(rate(keyward_federation_requests_total{@}[~])) / sum(rate(keyward_authority_total{@,authority="escrow"}[~]))`, "")},
		}, {
			Kind: statPanel, Title: "Layouts in use", Unit: "short", Width: 4, Steps: bad(2, 3), Runbook: "KeywardFederationRefused",
			About:   "Different epochs of the layout in the chosen clusters. More than 1 is right only while a layout is being replaced.",
			Queries: []query{ask(`count(count_values("epoch", keyward_federation_epoch{@cluster}))`, "")},
		},
	}
}

func regionDecisions() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "Decisions from escrows", Unit: "reqps", Width: 8,
			About: "Decisions from hits that the coordinator has lent, by member, and requests that had to wait for them, for a round trip each. " +
				"Decisions from floors are among those of authority full.",
			Queries: []query{
				ask(`sum by (instance) (rate(keyward_authority_total{@,authority="escrow"}[~]))`, "{{instance}}"),
				ask(`sum by (instance) (rate(keyward_federation_waits_total{@}[~]))`, "{{instance}} waited"),
			},
		}, {
			Kind: seriesPanel, Title: "Decisions by outage policies", Unit: "reqps", Width: 8, Runbook: "KeywardOutagePolicy",
			About: "Decisions that the coordinator's absence has changed, by policy. With fail_closed they are denials; with the others, " +
				"some of them are admissions that no other region sees.",
			Queries: []query{ask(`sum by (outage) (rate(keyward_federation_outage_decisions_total{@}[~]))`, "{{outage}}")},
		}, {
			Kind: seriesPanel, Title: "Bound above a limit", Unit: "count:hits", Width: 8, Runbook: "KeywardOutagePolicy",
			About: "Hits of one key that each member has admitted above its region's floor because the coordinator was away, and those under " +
				"fail_open.",
			Queries: []query{
				ask(`max by (instance) (keyward_overadmission_bound_by_cause{@,cause="outage"})`, "{{instance}} outage"),
				ask(`max by (instance) (keyward_fail_open_admitted{@})`, "{{instance}} fail_open"),
			},
		}, {
			Kind: seriesPanel, Title: "Keys with an escrow", Unit: "short", Width: 12, Runbook: "KeywardEscrowsRefused",
			About:   "Keys for which each member has an escrow, at most 16,384.",
			Queries: []query{ask(`max by (instance) (keyward_federation_escrows{@})`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Keys without an escrow", Unit: "reqps", Width: 12, Runbook: "KeywardEscrowsRefused",
			About:   "Requests for keys that found no room for an escrow, and have only their floors.",
			Queries: []query{ask(`sum by (instance) (rate(keyward_federation_escrows_refused_total{@}[~]))`, "{{instance}}")},
		},
	}
}

func coordinatorCalls() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "Coordinator reached", Unit: "short", Width: 6, Runbook: "KeywardCoordinatorAway",
			About:   "1 if the last call of a member to the coordinator succeeded, else 0.",
			Queries: []query{ask(`min by (instance, authority) (keyward_federation_up{@})`, "{{instance}} {{authority}}")},
		}, {
			Kind: seriesPanel, Title: "Requests", Unit: "ops", Width: 6, Runbook: "KeywardFederationRefused",
			About: "Requests for parts of pools, of which one call has many; those that the coordinator refused because they were late or " +
				"of another layout; those that found no room and are repeated.",
			Queries: []query{
				ask(`sum by (authority) (rate(keyward_federation_requests_total{@}[~]))`, "{{authority}}"),
				ask(`sum by (authority) (rate(keyward_federation_refused_total{@}[~]))`, "{{authority}} refused"),
				ask(`sum by (authority) (rate(keyward_federation_dropped_total{@}[~]))`, "{{authority}} dropped"),
			},
		}, {
			Kind: seriesPanel, Title: "Failed calls", Unit: "ops", Width: 6, Runbook: "KeywardCoordinatorAway",
			About:   "Calls to the coordinator that failed, or had no reply in 3 s.",
			Queries: []query{ask(`sum by (instance, authority) (rate(keyward_federation_errors_total{@}[~]))`, "{{instance}} {{authority}}")},
		}, {
			Kind: seriesPanel, Title: "Duration of a call", Unit: "s", Width: 6,
			About:   "From sending a call to its reply, over the last five minutes. Requests of keys without floor and escrow wait this long.",
			Queries: quantiles(`keyward_federation_call_seconds_bucket{@}`, "5m", "0.5", "0.99"),
		}, {
			Kind: seriesPanel, Title: "Clocks", Unit: "s", Width: 12, Runbook: "KeywardFederationClock",
			About: "By how much the coordinator's clock is at least ahead of each member's: the part that the duration of a call does not explain. " +
				"250 ms are tolerated.",
			Queries: []query{ask(`keyward_federation_clock_offset_seconds{@}`, "{{instance}} {{authority}}")},
		}, {
			Kind: seriesPanel, Title: "Hits whose record was lost", Unit: "count:hits", Width: 12, Runbook: "KeywardStoreRepaired",
			About: "Hits that regions had and that the coordinator's store (Redis or PostgreSQL) had lost. They are charged again; meanwhile " +
				"other regions may have been lent the same hits.",
			Queries: []query{
				whenWrong(`sum by (authority) (increase(keyward_federation_repaired_hits_total{@}[5m]))`, "{{authority}}"),
				whenWrong(`sum by (instance) (increase(keyward_coordinator_repaired_hits_total{@cluster}[5m]))`, "{{instance}}"),
			},
		},
	}
}

// coordinators shows cmd/coordinator, which other coordinators, such as Redis, do not run.
func coordinators() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "Store", Unit: "short", Width: 6, Runbook: "KeywardCoordinatorStore",
			About:   "1 if the coordinator's store was healthy at the last check, else 0.",
			Queries: []query{ask(`min by (instance) (keyward_coordinator_up{@cluster})`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Hits lent", Unit: "count:hits/s", Width: 6,
			About:   "Hits lent to each region per second, including those that came back.",
			Queries: []query{ask(`sum by (region) (rate(keyward_coordinator_grants_hits_total{@cluster}[~]))`, "{{region}}")},
		}, {
			Kind: seriesPanel, Title: "Requests of regions", Unit: "ops", Width: 6, Runbook: "KeywardFederationRefused",
			About: "Requests of each region, and those that were refused because they were late, invalid or of another layout.",
			Queries: []query{
				ask(`sum by (region) (rate(keyward_coordinator_requests_total{@cluster}[~]))`, "{{region}}"),
				ask(`sum by (region) (rate(keyward_coordinator_refused_total{@cluster}[~]))`, "{{region}} refused"),
			},
		}, {
			Kind: seriesPanel, Title: "Connections", Unit: "short", Width: 6,
			About:   "Open connections of each region's members.",
			Queries: []query{ask(`sum by (region) (keyward_coordinator_connections{@cluster})`, "{{region}}")},
		}, {
			Kind: seriesPanel, Title: "Calls to the store", Unit: "s", Width: 12,
			About:   "Duration of a call to the store over the last five minutes.",
			Queries: quantiles(`keyward_coordinator_store_seconds_bucket{@cluster}`, "5m", "0.5", "0.99"),
		}, {
			Kind: seriesPanel, Title: "Failed calls to the store", Unit: "ops", Width: 12, Runbook: "KeywardCoordinatorStore",
			About:   "Calls to the store that failed. The regions count the coordinator as away then.",
			Queries: []query{ask(`sum by (instance) (rate(keyward_coordinator_store_errors_total{@cluster}[~]))`, "{{instance}}")},
		},
	}
}
