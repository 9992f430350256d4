package dashboards

func capacity() Board {
	return Board{
		UID: "keyward-capacity", Title: "Keyward / Capacity", Of: "keyward_build_info", Who: "Process",
		About: "How much of each member's processor, memory, tables and streams is used, and when it will not be enough; who is turned away, and when certificates end.",
		Rows: []Row{
			{"At a glance", capacityGlance()},
			{"Processor", processor()},
			{"Memory and counters", memory()},
			{"Between members", streams()},
			{"Ports and certificates", ports()},
			{"What is running", running()},
		},
	}
}

func capacityGlance() []Panel {
	return []Panel{
		{
			Kind: Stat, Title: "Headroom", Unit: "percentunit", Width: 4, Steps: good(0.2, 0.5),
			About:   "Of what the busiest member could decide, the part that is not used.",
			Queries: []Query{ask(`1 - max(keyward_load_questions{@} / keyward_capacity_questions{@})`, "")},
		}, {
			Kind: Stat, Title: "Could decide", Unit: "reqps", Width: 4, Steps: calm(),
			About:   "Questions a second that all members together could decide, by the processor time that they take now.",
			Queries: []Query{ask(`sum(keyward_capacity_questions{@})`, "")},
		}, {
			Kind: Stat, Title: "Fullest table", Unit: "percentunit", Width: 4, Steps: bad(0.6, 0.8), Runbook: "KeywardTableNearlyFull",
			About:   "Counters of the member that owns most, as part of --max-keys. One domain may fill half, unless --domain-quota says otherwise.",
			Queries: []Query{ask(`max(keyward_keys{@,table="owned"} / on (cluster, job, instance) keyward_keys_max{@,of="member"})`, "")},
		}, {
			Kind: Stat, Title: "Full in", Unit: "s", Width: 4, Steps: good(3600, 86400), Runbook: "KeywardTableNearlyFull",
			About:   "When the first member will have --max-keys counters if they grow as in the last half hour; 30 days at most, and while they do not grow.",
			Queries: []Query{ask(`clamp_min(min((keyward_keys_max{@,of="member"} - on (cluster, job, instance) keyward_keys{@,table="owned"}) / on (cluster, job, instance) clamp_min(deriv(keyward_keys{@,table="owned"}[30m]), 1e-9) < 2592000) or vector(2592000), 0)`, "")},
		}, {
			Kind: Stat, Title: "Memory", Unit: "bytes", Width: 4, Steps: calm(),
			About:   "Resident memory of the largest process.",
			Queries: []Query{ask(`max(process_resident_memory_bytes{@})`, "")},
		}, {
			Kind: Stat, Title: "CPU per decision", Unit: "s", Width: 4, Steps: calm(),
			About:   "Processor time of all processes over all decisions, all work included; means something under load.",
			Queries: []Query{ask(`sum(rate(process_cpu_seconds_total{@}[~])) / sum(rate(keyward_decisions_total{@}[~]))`, "")},
		},
	}
}

func processor() []Panel {
	return []Panel{
		{
			Kind: Series, Title: "Load", Unit: "percentunit", Width: 6,
			About:   "What each member's processor time is worth in questions, as part of what it could decide.",
			Queries: []Query{ask(`max by (instance) (keyward_load_questions{@}) / max by (instance) (keyward_capacity_questions{@})`, "{{instance}}")},
		}, {
			Kind: Series, Title: "Processor time", Unit: "percentunit", Width: 6,
			About:   "Of one processor, by process.",
			Queries: []Query{ask(`sum by (instance) (rate(process_cpu_seconds_total{@}[~]))`, "{{instance}}")},
		}, {
			Kind: Series, Title: "CPU per decision", Unit: "s", Width: 6,
			About:   "Process CPU time over decisions asked of the member, all its work included. It falls with load: gossip and heartbeats cost the same for few questions.",
			Queries: []Query{ask(`sum by (instance) (rate(process_cpu_seconds_total{@}[~])) / (sum by (instance) (rate(keyward_decisions_total{@}[~])) > 0)`, "{{instance}}")},
		}, {
			Kind: Series, Title: "Time to decide", Unit: "s", Width: 6,
			About:   "99 of 100 questions, by the member that was asked: it climbs first where a member is short of processor time.",
			Queries: []Query{ask(`histogram_quantile(0.99, sum by (le, instance) (rate(keyward_decision_duration_seconds_bucket{@}[~])))`, "{{instance}}")},
		},
	}
}

func memory() []Panel {
	return []Panel{
		{
			Kind: Series, Title: "Resident memory", Unit: "bytes", Width: 6,
			About:   "By process. Set GOMEMLIMIT a little below the container's limit.",
			Queries: []Query{ask(`max by (instance) (process_resident_memory_bytes{@})`, "{{instance}}")},
		}, {
			Kind: Series, Title: "Go heap", Unit: "bytes", Width: 6,
			About: "Objects in use, the most of one process, and the size at which the next collection begins.",
			Queries: []Query{
				ask(`max by (instance) (go_memstats_heap_alloc_bytes{@})`, "{{instance}}"),
				ask(`max(go_memstats_next_gc_bytes{@})`, "next collection, at most"),
			},
		}, {
			Kind: Series, Title: "Counters by table", Unit: "short", Width: 6, Stacked: true,
			About:   "All members' counters: owned, copies of others' (replica), and answers given without the owner (share, fail_open, fail_closed, deny).",
			Queries: []Query{ask(`sum by (table) (keyward_keys{@})`, "{{table}}")},
		}, {
			Kind: Series, Title: "Table used", Unit: "percentunit", Width: 6, Runbook: "KeywardTableNearlyFull",
			About:   "Counters that each member owns, as part of --max-keys. At 100 %, and for one domain at its quota, new keys go to the sketch.",
			Queries: []Query{ask(`max by (instance) (keyward_keys{@,table="owned"}) / max by (instance) (keyward_keys_max{@,of="member"})`, "{{instance}}")},
		}, {
			Kind: Series, Title: "Overflow", Unit: "ops", Width: 6, Runbook: "KeywardOverflow",
			About: "New keys that found no room, and charges that the sketch counts in their place; it refuses too early rather than too late.",
			Queries: []Query{
				ask(`sum(rate(keyward_overflow_keys_total{@}[~]))`, "keys"),
				ask(`sum(rate(keyward_overflow_charges_total{@}[~]))`, "charges"),
			},
		}, {
			Kind: Series, Title: "Refused for want of room", Unit: "ops", Width: 6, Runbook: "KeywardOverflow",
			About: "Charges, waiting questions and copies that found no room, and requests beyond a bound.",
			Queries: []Query{
				ask(`sum(rate(keyward_charges_refused_total{@}[~]))`, "charges"),
				ask(`sum(rate(keyward_waits_refused_total{@}[~]))`, "waiting questions"),
				ask(`sum(rate(keyward_copies_total{@,result="dropped"}[~]))`, "copies"),
				ask(`sum(rate(keyward_oversize_total{@}[~]))`, "oversize requests"),
			},
		}, {
			Kind: Series, Title: "Refusals remembered", Unit: "reqps", Width: 6,
			About:   "Questions that the memory of refusals answered (hit) or did not know (miss).",
			Queries: []Query{ask(`sum by (result) (rate(keyward_deny_cache_total{@}[~]))`, "{{result}}")},
		}, {
			Kind: Series, Title: "Series of ratelimit_*", Unit: "short", Width: 6,
			About: "Statistics whose names came with requests, by member, and times that one had to be shared because the budget was spent.",
			Queries: []Query{
				ask(`max by (instance) (keyward_stats_series{@})`, "{{instance}}"),
				ask(`sum(increase(keyward_stats_overflow_total{@}[5m]))`, "shared"),
			},
		},
	}
}

func streams() []Panel {
	return []Panel{
		{
			Kind: Series, Title: "Time to an answer", Unit: "s", Width: 6, Runbook: "KeywardDegraded",
			About:   "From queueing questions for another member to its answer.",
			Queries: quantiles(`keyward_peer_rpc_duration_seconds_bucket{@}`, "$__rate_interval", "0.5", "0.99", "0.999"),
		}, {
			Kind: Series, Title: "Questions to other members", Unit: "reqps", Width: 6, Runbook: "KeywardDegraded",
			About:   "By result. unreachable and broken are the network or a dead owner, timeout a silent one, late a slow one, shed and queue_full an overloaded one.",
			Queries: []Query{ask(`sum by (result) (rate(keyward_peer_questions_total{@}[~]))`, "{{result}}")},
		}, {
			Kind: Series, Title: "Batch", Unit: "short", Width: 6,
			About:   "Questions in one write to another member; it grows with load, and with a queue that waits.",
			Queries: quantiles(`keyward_peer_batch_size_bucket{@}`, "$__rate_interval", "0.5", "0.99"),
		}, {
			Kind: Series, Title: "Streams", Unit: "short", Width: 6, Runbook: "KeywardPeersUnreachable",
			About: "Other members that should be connected, those that are, and connections turned away in the last five minutes.",
			Queries: []Query{
				ask(`sum(keyward_peer_members{@})`, "wanted"),
				ask(`sum(keyward_peer_connected{@})`, "connected"),
				whenWrong(`sum by (reason) (increase(keyward_peer_inbound_refused_total{@}[5m]))`, "refused {{reason}}"),
			},
		},
	}
}

func ports() []Panel {
	return []Panel{
		{
			Kind: Series, Title: "Connections", Unit: "short", Width: 8,
			About:   "Open connections of each port for Envoys, HTTP and metrics. Each port has room for --max-connections.",
			Queries: []Query{ask(`sum by (instance, surface) (keyward_connections{@})`, "{{instance}} {{surface}}")},
		}, {
			Kind: Series, Title: "Turned away", Unit: "ops", Width: 8, Runbook: "KeywardRefused",
			About:   "Connections, calls and packets that were refused before a question was read from them, by port and reason; docs/security.md explains them.",
			Queries: []Query{whenWrong(`sum by (surface, reason) (rate(keyward_refused_total{@}[~]))`, "{{surface}} {{reason}}")},
		}, {
			Kind: Series, Title: "Waiting for their turn", Unit: "short", Width: 8, Runbook: "KeywardConnectionsWait",
			About:   "Connections that send much and ask little, or that are new, and wait to be read: the mean number at one moment. Next to 0, unless somebody floods a port.",
			Queries: []Query{ask(`sum by (instance, surface) (rate(keyward_connection_wait_seconds_total{@}[~]))`, "{{instance}} {{surface}}")},
		}, {
			Kind: Series, Title: "Certificates end in", Unit: "s", Width: 12, Runbook: "KeywardCertificateExpiring",
			About:   "Time that is left of the certificates in each process's files, and of the CAs beside them.",
			Queries: []Query{ask(`min by (instance, kind) (keyward_certificate_expiry_timestamp_seconds{@} - time())`, "{{instance}} {{kind}}")},
		}, {
			Kind: Series, Title: "New certificates", Unit: "short", Width: 12, Runbook: "KeywardCertificateNotReloaded",
			About:   "Times in the last hour that changed files were taken into use (success), or could not be (failure).",
			Queries: []Query{ask(`sum by (instance, result) (increase(keyward_certificate_reloads_total{@}[1h]))`, "{{instance}} {{result}}")},
		},
	}
}

func running() []Panel {
	return []Panel{
		{
			Kind: Bars, Title: "Versions", Unit: "short", Width: 6, Height: 6, Steps: calm(),
			About:   "Processes by version. Two during an update; versions N and N-1 work together.",
			Queries: []Query{ask(`count by (version) (keyward_build_info{@})`, "{{version}}")},
		}, {
			Kind: Series, Title: "Up for", Unit: "s", Width: 6, Height: 6,
			About:   "Since each process started; a saw tooth is a crash loop.",
			Queries: []Query{ask(`max by (instance) (time() - process_start_time_seconds{@})`, "{{instance}}")},
		}, {
			Kind: Series, Title: "Goroutines", Unit: "short", Width: 6, Height: 6,
			About:   "By process: about one for each connection, and one for each question that waits.",
			Queries: []Query{ask(`max by (instance) (go_goroutines{@})`, "{{instance}}")},
		}, {
			Kind: Series, Title: "File descriptors", Unit: "percentunit", Width: 6, Height: 6,
			About:   "In use, as part of the limit: connections of Envoys and members.",
			Queries: []Query{ask(`max by (instance) (process_open_fds{@} / process_max_fds{@})`, "{{instance}}")},
		},
	}
}
