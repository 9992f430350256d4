package dashboards

func capacity() board {
	return board{
		UID: "keyward-capacity", Title: "Keyward / Capacity", Of: "keyward_build_info", Who: "Process",
		About: "Usage of each member's CPU, memory, tables and streams, and when it will reach its limits; refused " +
			"traffic and expiry of certificates.",
		Rows: []row{
			{"At a glance", capacityGlance()},
			{"CPU", processor()},
			{"Memory and counters", memory()},
			{"Between members", streams()},
			{"Listeners and certificates", ports()},
			{"Processes", running()},
		},
	}
}

func capacityGlance() []panel {
	return []panel{
		{
			Kind: statPanel, Title: "Headroom", Unit: "percentunit", Width: 4, Steps: good(0.2, 0.5), Runbook: "KeywardNearCapacity",
			About:   "Unused share of what the busiest member could decide.",
			Queries: []query{ask(`1 - max(keyward_load_questions{@} / keyward_capacity_questions{@})`, "")},
		}, {
			Kind: statPanel, Title: "Capacity", Unit: "reqps", Width: 4, Steps: calm(),
			About: "Requests per second that all members together could decide, from the CPU time that requests " +
				"take now.",
			Queries: []query{ask(`sum(keyward_capacity_questions{@})`, "")},
		}, {
			Kind: statPanel, Title: "Fullest table", Unit: "percentunit", Width: 4, Steps: bad(0.6, 0.8), Runbook: "KeywardTableNearlyFull",
			About: "Counters of the member that owns the most, as part of --max-keys. One domain may use half of " +
				"them, or --domain-quota.",
			Queries: []query{ask(`max(keyward_keys{@,table="owned"} / on (cluster, job, instance) keyward_keys_max{@,of="member"})`, "")},
		}, {
			Kind: statPanel, Title: "Full in", Unit: "s", Width: 4, Steps: good(3600, 86400), Runbook: "KeywardTableNearlyFull",
			About: "Time until the first member has --max-keys counters, at the growth of the last half hour; at " +
				"most 30 days, also shown without growth.",
			Queries: []query{ask(`clamp_min(min((keyward_keys_max{@,of="member"} - on (cluster, job, instance) keyward_keys{@,table="owned"}) / on (cluster, job, instance) clamp_min(deriv(keyward_keys{@,table="owned"}[30m]), 1e-9) < 2592000) or vector(2592000), 0)`, "")},
		}, {
			Kind: statPanel, Title: "Memory", Unit: "bytes", Width: 4, Steps: calm(),
			About:   "Resident memory of the largest process.",
			Queries: []query{ask(`max(process_resident_memory_bytes{@})`, "")},
		}, {
			Kind: statPanel, Title: "CPU per decision", Unit: "s", Width: 4, Steps: calm(),
			About: "CPU time of all processes, all work included, divided by all decisions. Meaningful under load " +
				"only.",
			Queries: []query{ask(`sum(rate(process_cpu_seconds_total{@}[~])) / sum(rate(keyward_decisions_total{@}[~]))`, "")},
		},
	}
}

func processor() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "Load", Unit: "percentunit", Width: 6, Runbook: "KeywardNearCapacity",
			About:   "CPU time of each member, expressed in requests, as part of what it could decide.",
			Queries: []query{ask(`max by (instance) (keyward_load_questions{@}) / max by (instance) (keyward_capacity_questions{@})`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "CPU time", Unit: "percentunit", Width: 6,
			About:   "Share of one CPU, by process.",
			Queries: []query{ask(`sum by (instance) (rate(process_cpu_seconds_total{@}[~]))`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "CPU per decision", Unit: "s", Width: 6,
			About: "CPU time of the process, all work included, divided by the decisions at the member. It falls " +
				"with load, because gossip and heartbeats cost the same for few requests.",
			Queries: []query{ask(`sum by (instance) (rate(process_cpu_seconds_total{@}[~])) / (sum by (instance) (rate(keyward_decisions_total{@}[~])) > 0)`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Time to decide", Unit: "s", Width: 6,
			About:   "99th percentile by the receiving member. It rises first where a member lacks CPU time.",
			Queries: []query{ask(`histogram_quantile(0.99, sum by (le, instance) (rate(keyward_decision_duration_seconds_bucket{@}[~])))`, "{{instance}}")},
		},
	}
}

func memory() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "Resident memory", Unit: "bytes", Width: 6,
			About:   "By process. Set GOMEMLIMIT slightly below the container's limit.",
			Queries: []query{ask(`max by (instance) (process_resident_memory_bytes{@})`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Go heap", Unit: "bytes", Width: 6,
			About: "Objects in use by process, and the size at which the next collection begins.",
			Queries: []query{
				ask(`max by (instance) (go_memstats_heap_alloc_bytes{@})`, "{{instance}}"),
				ask(`max(go_memstats_next_gc_bytes{@})`, "next collection, at most"),
			},
		}, {
			Kind: seriesPanel, Title: "Counters by table", Unit: "short", Width: 6, Stacked: true,
			About: "Counters of all members: owned, replicas, and decisions without the owner (share, fail_open, " +
				"fail_closed, deny).",
			Queries: []query{ask(`sum by (table) (keyward_keys{@})`, "{{table}}")},
		}, {
			Kind: seriesPanel, Title: "Table used", Unit: "percentunit", Width: 6, Runbook: "KeywardTableNearlyFull",
			About: "Counters that each member owns, as part of --max-keys. At 100 %, or at the quota of one " +
				"domain, new keys go to the sketch.",
			Queries: []query{ask(`max by (instance) (keyward_keys{@,table="owned"}) / max by (instance) (keyward_keys_max{@,of="member"})`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Overflow", Unit: "ops", Width: 6, Runbook: "KeywardOverflow",
			About: "New keys that found no room, and charges that the sketch counts instead. It may deny early, but " +
				"never admits too much.",
			Queries: []query{
				ask(`sum(rate(keyward_overflow_keys_total{@}[~]))`, "keys"),
				ask(`sum(rate(keyward_overflow_charges_total{@}[~]))`, "charges"),
			},
		}, {
			Kind: seriesPanel, Title: "Refused for lack of room", Unit: "ops", Width: 6, Runbook: "KeywardOverflow",
			About: "Charges, waiting requests and replicas that found no room, and requests beyond a bound.",
			Queries: []query{
				ask(`sum(rate(keyward_charges_refused_total{@}[~]))`, "charges"),
				ask(`sum(rate(keyward_waits_refused_total{@}[~]))`, "waiting requests"),
				ask(`sum(rate(keyward_copies_total{@,result="dropped"}[~]))`, "replicas"),
				ask(`sum(rate(keyward_oversize_total{@}[~]))`, "oversize requests"),
			},
		}, {
			Kind: seriesPanel, Title: "Deny cache", Unit: "reqps", Width: 6,
			About:   "Requests that the deny cache answered (hit) or not (miss).",
			Queries: []query{ask(`sum by (result) (rate(keyward_deny_cache_total{@}[~]))`, "{{result}}")},
		}, {
			Kind: seriesPanel, Title: "Series of ratelimit_*", Unit: "short", Width: 6,
			About: "Statistics whose names came with requests, by member, and times that one had to be shared " +
				"because the budget was used up.",
			Queries: []query{
				ask(`max by (instance) (keyward_stats_series{@})`, "{{instance}}"),
				ask(`sum(increase(keyward_stats_overflow_total{@}[5m]))`, "shared"),
			},
		},
	}
}

func streams() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "Time to reply", Unit: "s", Width: 6, Runbook: "KeywardDegraded",
			About:   "From queueing a request for another member to its reply.",
			Queries: quantiles(`keyward_peer_rpc_duration_seconds_bucket{@}`, "$__rate_interval", "0.5", "0.99", "0.999"),
		}, {
			Kind: seriesPanel, Title: "Requests to other members", Unit: "reqps", Width: 6, Runbook: "KeywardDegraded",
			About: "By result. unreachable and broken indicate the network or a failed owner, timeout an owner " +
				"that does not answer, late a slow one, shed and queue_full an overloaded one.",
			Queries: []query{ask(`sum by (result) (rate(keyward_peer_questions_total{@}[~]))`, "{{result}}")},
		}, {
			Kind: seriesPanel, Title: "Batch size", Unit: "short", Width: 6,
			About:   "Requests in one write to another member. It grows with load and with the queue.",
			Queries: quantiles(`keyward_peer_batch_size_bucket{@}`, "$__rate_interval", "0.5", "0.99"),
		}, {
			Kind: seriesPanel, Title: "Streams", Unit: "short", Width: 6, Runbook: "KeywardPeersUnreachable",
			About: "Members that should be connected, members that are, and connections refused in the last five " +
				"minutes.",
			Queries: []query{
				ask(`sum(keyward_peer_members{@})`, "expected"),
				ask(`sum(keyward_peer_connected{@})`, "connected"),
				whenWrong(`sum by (reason) (increase(keyward_peer_inbound_refused_total{@}[5m]))`, "refused {{reason}}"),
			},
		},
	}
}

func ports() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "Connections", Unit: "short", Width: 8,
			About:   "Open connections of each listener for Envoys, HTTP and metrics. Each accepts --max-connections.",
			Queries: []query{ask(`sum by (instance, surface) (keyward_connections{@})`, "{{instance}} {{surface}}")},
		}, {
			Kind: seriesPanel, Title: "Refused", Unit: "ops", Width: 8, Runbook: "KeywardRefused",
			About: "Connections, calls and packets that were refused before a request was read from them, by " +
				"listener and reason. docs/security.md explains them.",
			Queries: []query{whenWrong(`sum by (surface, reason) (rate(keyward_refused_total{@}[~]))`, "{{surface}} {{reason}}")},
		}, {
			Kind: seriesPanel, Title: "Waiting to be read", Unit: "short", Width: 8, Runbook: "KeywardConnectionsWait",
			About: "Mean number of connections that wait to be read because they are new, or send much data and " +
				"few calls. Close to 0, unless a client floods a listener.",
			Queries: []query{ask(`sum by (instance, surface) (rate(keyward_connection_wait_seconds_total{@}[~]))`, "{{instance}} {{surface}}")},
		}, {
			Kind: seriesPanel, Title: "Certificates expire in", Unit: "s", Width: 8, Runbook: "KeywardCertificateExpiring",
			About:   "Time until the certificates and CAs in the files of each process expire.",
			Queries: []query{ask(`min by (instance, kind) (keyward_certificate_expiry_timestamp_seconds{@} - time())`, "{{instance}} {{kind}}")},
		}, {
			Kind: seriesPanel, Title: "Certificate reloads", Unit: "short", Width: 8, Runbook: "KeywardCertificateNotReloaded",
			About:   "Reloads of changed files in the last hour, by result.",
			Queries: []query{ask(`sum by (instance, result) (increase(keyward_certificate_reloads_total{@}[1h]))`, "{{instance}} {{result}}")},
		}, {
			Kind: seriesPanel, Title: "Lost audit records", Unit: "ops", Width: 8, Runbook: "KeywardAuditLost",
			About:   "Records of rules with audit logs that the sink did not take.",
			Queries: []query{whenWrong(`sum by (instance) (rate(keyward_audit_records_total{@, result="lost"}[~]))`, "{{instance}}")},
		},
	}
}

func running() []panel {
	return []panel{
		{
			Kind: barsPanel, Title: "Versions", Unit: "short", Width: 6, Height: 6, Steps: calm(),
			About:   "Processes by version. Two during an update: versions N and N-1 work together.",
			Queries: []query{ask(`count by (version) (keyward_build_info{@})`, "{{version}}")},
		}, {
			Kind: seriesPanel, Title: "Uptime", Unit: "s", Width: 6, Height: 6,
			About:   "Time since each process started. A sawtooth is a crash loop.",
			Queries: []query{ask(`max by (instance) (time() - process_start_time_seconds{@})`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Goroutines", Unit: "short", Width: 6, Height: 6,
			About:   "By process: about one per connection, and one per waiting request.",
			Queries: []query{ask(`max by (instance) (go_goroutines{@})`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "File descriptors", Unit: "percentunit", Width: 6, Height: 6,
			About:   "Used share of the limit: connections of Envoys and members.",
			Queries: []query{ask(`max by (instance) (process_open_fds{@} / process_max_fds{@})`, "{{instance}}")},
		},
	}
}
