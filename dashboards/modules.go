package dashboards

// modulesSpending and moduleFaults describe rows for the dynamic modules in Envoys, which spend leases.
func modulesSpending() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "Modules by member", Unit: "short", Width: 8, Stacked: true,
			About:   "Modules that are connected to each member: one for each Envoy of its pod. Without one, all requests are calls.",
			Queries: []query{ask(`sum by (instance) (keyward_module_connections{@})`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Taken, and left to calls", Unit: "reqps", Width: 8, Colors: map[string]string{"taken": "green", "no_lease": "orange", "empty": "yellow"},
			About: "Hits that modules have taken without a call, and requests that they have left to calls because there was no lease, " +
				"or it was empty. Many without a lease are usual: slow keys have none.",
			Queries: []query{
				ask(`sum(rate(keyward_module_taken_hits_total{@}[1m]))`, "taken"),
				ask(`sum by (cause) (rate(keyward_module_missed_total{@,cause=~"no_lease|empty"}[1m]))`, "{{cause}}"),
			},
		}, {
			Kind: seriesPanel, Title: "Hits that are charged for modules", Unit: "count:hits/s", Width: 8,
			About: "Hits that owners have charged, those that were given back as the owner has confirmed, those that could not be given back, " +
				"and those that were left when their windows ended.",
			Queries: []query{
				ask(`sum(rate(keyward_module_granted_hits_total{@}[1m]))`, "charged"),
				ask(`sum(rate(keyward_module_returned_hits_total{@}[1m]))`, "given back"),
				whenWrong(`sum(rate(keyward_module_unreturned_hits_total{@}[5m]))`, "not given back"),
				whenWrong(`sum(rate(keyward_module_expired_hits_total{@}[5m]))`, "expired"),
			},
		},
	}
}

func moduleFaults() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "Refused connections of modules", Unit: "ops", Width: 8, Runbook: "KeywardModuleRefused",
			About: "Connections that were closed or not accepted: malformed messages, no greeting in time, too many, and those whose memory " +
				"was corrupt.",
			Queries: []query{ask(`sum by (instance, reason) (rate(keyward_module_refused_total{@}[~]))`, "{{instance}} {{reason}}")},
		}, {
			Kind: seriesPanel, Title: "Hits lost in corrupt memory", Unit: "count:hits/s", Width: 8, Runbook: "KeywardModuleCorrupt",
			About: "Hits that count as spent because an Envoy's memory was corrupt, and requests for which a module found a corrupt lease. " +
				"0, unless something in Envoy writes to foreign memory.",
			Queries: []query{
				ask(`sum by (instance) (rate(keyward_module_lost_hits_total{@}[~]))`, "{{instance}} lost"),
				ask(`sum by (instance) (rate(keyward_module_missed_total{@,cause="corrupt"}[~]))`, "{{instance}} found by a module"),
			},
		}, {
			Kind: seriesPanel, Title: "Leases without room", Unit: "ops", Width: 8,
			About: "Leases for which an Envoy's memory had no room. Their requests are calls. keyward doctor names the members.",
			Queries: []query{
				ask(`sum by (instance) (rate(keyward_module_full_total{@}[~]))`, "{{instance}} no room"),
			},
		},
	}
}
