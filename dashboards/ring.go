package dashboards

func ringAndHotKeys() board {
	return board{
		UID: "keyward-ring", Title: "Keyward / Ring and hot keys", Of: "keyward_ring_members", Who: "Member",
		About: "Members on and off the ring, how counters move when it changes, their journals on disk, and how hot " +
			"keys are handled.",
		Rows: []row{
			{"At a glance", ringGlance()},
			{"Members", members()},
			{"Handoff and replicas", handoffs()},
			{"Journals on disk", journals()},
			{"Hot keys", hotKeys()},
			{"Leases", leases()},
			{"Approximate rules", approximate()},
		},
	}
}

func ringGlance() []panel {
	return []panel{
		{
			Kind: statPanel, Title: "On the ring", Unit: "short", Width: 4, Steps: calm(),
			About:   "Members on the ring, in the view of the member with the fewest.",
			Queries: []query{ask(`min(keyward_ring_members{@})`, "")},
		}, {
			Kind: statPanel, Title: "Rings in use", Unit: "short", Width: 4, Steps: bad(2, 3), Runbook: "KeywardRingDisagreement",
			About:   "Different rings in use. More than 1 for more than a moment is a fault.",
			Queries: []query{ask(`count(count_values("fingerprint", keyward_ring_fingerprint{@}))`, "")},
		}, {
			Kind: statPanel, Title: "Lowest reach", Unit: "percentunit", Width: 4, Steps: good(0.5, 1), Runbook: "KeywardTokensVoid",
			About: "Share of the ring's members that confirm the member with the fewest confirmations. A member " +
				"that none confirms decides none of its keys with the full limit.",
			Queries: []query{ask(`min(keyward_reach{@} / keyward_ring_members{@})`, "")},
		}, {
			Kind: statPanel, Title: "Busiest member / mean", Unit: "none", Width: 4, Steps: bad(1.5, 2.5),
			About: "Counters of the member that owns the most, divided by the mean. It shows how even the ring " +
				"is; 1.2 is usual.",
			Queries: []query{ask(`max(keyward_keys{@,table="owned"}) / avg(keyward_keys{@,table="owned"})`, "")},
		}, {
			Kind: statPanel, Title: "Hot keys", Unit: "short", Width: 4, Steps: calm(),
			About:   "Keys that are hot now. `keyward top` and /v1/hotkeys list them.",
			Queries: []query{ask(`sum(keyward_hot_keys{@})`, "")},
		}, {
			Kind: statPanel, Title: "Decided from leases", Unit: "percentunit", Width: 4, Steps: calm(),
			About:   "Share of all requests that the receiving member decided from hits lent by the owner.",
			Queries: []query{ask(`sum(rate(keyward_decisions_total{@,path="lease"}[~])) / sum(rate(keyward_decisions_total{@}[~]))`, "")},
		},
	}
}

func members() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "On the ring", Unit: "short", Width: 6,
			About:   "Members on the ring, in the view of each member.",
			Queries: []query{ask(`max by (instance) (keyward_ring_members{@})`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Disagreement", Unit: "short", Width: 6, Runbook: "KeywardRingDisagreement",
			About: "Members that advertise another ring than the reporting member, and members that have not taken " +
				"over all their keys yet.",
			Queries: []query{
				ask(`max by (instance) (keyward_ring_disagreement{@})`, "{{instance}} disagrees"),
				ask(`max(keyward_ring_incomplete{@})`, "incomplete"),
			},
		}, {
			Kind: seriesPanel, Title: "Members by state", Unit: "short", Width: 6, Runbook: "KeywardMemberMissing",
			About: "From gossip, without xDS servers; the number by which limits are divided without their owners " +
				"(n_ref); addresses that should be members and do not answer (missing).",
			Queries: []query{
				ask(`max by (state) (keyward_cluster_members{@})`, "{{state}}"),
				ask(`max(keyward_n_ref{@})`, "n_ref"),
				ask(`max(keyward_cluster_missing{@})`, "missing"),
			},
		}, {
			Kind: seriesPanel, Title: "Events", Unit: "short", Width: 6, Runbook: "KeywardJoinFailures",
			About: "Ring changes, members that failed without leaving, failed lookups and joins, and name " +
				"collisions in the last five minutes.",
			Queries: []query{
				ask(`sum(increase(keyward_ring_changes_total{@}[5m]))`, "ring changes"),
				ask(`sum(increase(keyward_cluster_deaths_total{@}[5m]))`, "failed members"),
				ask(`sum by (reason) (increase(keyward_join_failures_total{@}[5m]))`, "failed {{reason}}"),
				ask(`sum(increase(keyward_cluster_collisions_total{@}[5m]))`, "name collisions"),
			},
		}, {
			Kind: barsPanel, Title: "Counters by owner", Unit: "locale", Width: 6, Steps: calm(),
			About:   "Counters that each member owns now: its part of the ring, weighted by the traffic.",
			Queries: []query{ask(`max by (instance) (keyward_keys{@,table="owned"})`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Reach", Unit: "short", Width: 6, Runbook: "KeywardTokensVoid",
			About: "Members of the ring that confirm each member, itself included; 0 off the ring. A member with " +
				"1 decides from shares.",
			Queries: []query{ask(`max by (instance) (keyward_reach{@})`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Clocks", Unit: "s", Width: 6, Runbook: "KeywardSkew",
			About:   "The largest difference of each member's clock from another's.",
			Queries: []query{ask(`max by (instance) (abs(keyward_peer_skew_seconds{@}))`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Gossip", Unit: "short", Width: 6, Runbook: "KeywardNotJoined",
			About: "Memberlist's health score, 0 is healthy; announcements that were rejected.",
			Queries: []query{
				ask(`max by (instance) (keyward_gossip_health_score{@})`, "{{instance}}"),
				ask(`sum(keyward_gossip_refused{@})`, "refused"),
			},
		}, {
			Kind: seriesPanel, Title: "Kept off the ring", Unit: "short", Width: 12, Runbook: "KeywardOffRing",
			About: "Members that stay off the ring and are not ready, by cause: lookup, gossip, streams, rival, " +
				"full; flaps ends by itself. Processes that have not met their cluster, xDS servers included, show " +
				"1.",
			Queries: []query{
				whenWrong(`max by (instance, cause) (keyward_off_ring{@}) > 0`, "{{instance}} {{cause}}"),
				ask(`max by (instance) (1 - keyward_cluster_joined{@})`, "{{instance}} has not joined"),
			},
		}, {
			Kind: seriesPanel, Title: "Diverged clocks", Unit: "short", Width: 12, Runbook: "KeywardClockFence",
			About: "Times in the last five minutes that members gave up ownership for a moment because a clock was " +
				"set (step), their machine was suspended (suspend), or all of their clocks stopped (peers); and " +
				"jumps of members' clocks to the wall clock.",
			Queries: []query{
				ask(`sum by (instance, reason) (increase(keyward_clock_fences_total{@}[5m]))`, "{{instance}} {{reason}}"),
				ask(`sum(increase(keyward_clock_steps_total{@}[5m]))`, "jumps"),
			},
		},
	}
}

func handoffs() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "Counters moved", Unit: "count:keys/min", Width: 6,
			About:   "Counters sent and received in handoffs, without replicas.",
			Queries: []query{ask(`sum by (instance, direction) (increase(keyward_handoff_keys_total{@}[1m]))`, "{{instance}} {{direction}}")},
		}, {
			Kind: seriesPanel, Title: "Duration of a transfer", Unit: "s", Width: 6,
			About:   "From connecting to a member to sending its last counter, over the last five minutes.",
			Queries: quantiles(`keyward_handoff_seconds_bucket{@}`, "5m", "0.5", "0.99"),
		}, {
			Kind: seriesPanel, Title: "Unfinished", Unit: "short", Width: 6, Runbook: "KeywardHandoffIncomplete",
			About: "Missing acknowledgements of the ring, members that have not confirmed counters, and waiting " +
				"requests: above 0 only for moments after a change. Transfers that broke off, and members that left " +
				"before others had all of their counters.",
			Queries: []query{
				ask(`sum(keyward_ring_acks_missing{@})`, "acks missing"),
				ask(`sum(keyward_handoff_unconfirmed_members{@})`, "unconfirmed"),
				ask(`sum(keyward_waiting_questions{@})`, "requests waiting"),
				ask(`sum(increase(keyward_handoff_incomplete_total{@}[5m]))`, "broke off"),
				ask(`sum(max_over_time(keyward_drains_incomplete_total{@}[5m]))`, "left unfinished"),
			},
		}, {
			Kind: seriesPanel, Title: "Delayed replies", Unit: "reqps", Width: 6, Runbook: "KeywardAcksMissing",
			About: "Requests that waited for a replica or for a handoff of their key, by outcome, and requests that " +
				"found no room to wait.",
			Queries: []query{
				ask(`sum by (result) (rate(keyward_answers_waited_total{@}[~]))`, "{{result}}"),
				ask(`sum(rate(keyward_waits_refused_total{@}[~]))`, "no room"),
			},
		}, {
			Kind: seriesPanel, Title: "Unreplicated charges", Unit: "count:hits", Width: 12,
			About: "Hits that no second member has: the most of one key, and of all keys of a member. They are lost " +
				"if it crashes now.",
			Queries: []query{
				ask(`max by (instance) (keyward_unreplicated_hits{@,of="key"})`, "{{instance}} one key"),
				ask(`sum by (instance) (keyward_unreplicated_hits{@,of="all"})`, "{{instance}} all"),
			},
		}, {
			Kind: seriesPanel, Title: "Replicas for successors", Unit: "ops", Width: 12, Runbook: "KeywardOverflow",
			About: "Batches of replicas by result; counters of other members that found no room; hits admitted from " +
				"shares that will not be reported to the owner, or were given back because the owner has charged them, too.",
			Queries: []query{
				ask(`sum by (result) (rate(keyward_replica_batches_total{@}[~]))`, "{{result}}"),
				ask(`sum(rate(keyward_copies_total{@,result="dropped"}[~]))`, "replicas dropped"),
				ask(`sum(rate(keyward_share_untold_hits_total{@}[~]))`, "unreported hits"),
				ask(`sum(rate(keyward_share_taken_back_hits_total{@}[~]))`, "hits given back"),
			},
		},
	}
}

// journals shows the members' journals. Its panels are empty without --data.
func journals() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "Journals written", Unit: "short", Width: 6, Runbook: "KeywardJournalDown",
			About: "Members that can write their journals, or have nothing to write yet, and members that cannot: their " +
				"counters are only in memory.",
			Queries: []query{
				ask(`sum(keyward_journal_up{@})`, "up"),
				ask(`sum(1 - keyward_journal_up{@})`, "down"),
			},
		}, {
			Kind: seriesPanel, Title: "Hits not on disk", Unit: "count:hits", Width: 6,
			About: "Hits of each member that only memory contains yet, of rules in the journal. Those that neither " +
				"the owner nor the successor has written are lost if all members fail now.",
			Queries: []query{ask(`sum by (instance) (keyward_journal_owed_hits{@})`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Time of the disk", Unit: "s", Width: 6, Runbook: "KeywardJournalSlow",
			About:   "How long the disk takes to make records durable. Only rules with durability: strict wait for it.",
			Queries: quantiles(`keyward_journal_sync_seconds_bucket{@}`, "$__rate_interval", "0.5", "0.99"),
		}, {
			Kind: seriesPanel, Title: "Records written", Unit: "ops", Width: 6,
			About: "Counters written by each member, as an owner and as a successor, and writes of the disk. New " +
				"generations, which write all counters again, are included.",
			Queries: []query{
				ask(`sum by (instance) (rate(keyward_journal_records_total{@}[~]))`, "{{instance}}"),
				ask(`sum(rate(keyward_journal_sync_seconds_count{@}[~]))`, "writes of the disk"),
			},
		}, {
			Kind: seriesPanel, Title: "Size", Unit: "bytes", Width: 6, Runbook: "KeywardJournalFull",
			About: "Files of each member's journal, and the smallest --data-size.",
			Queries: []query{
				ask(`max by (instance) (keyward_journal_bytes{@})`, "{{instance}}"),
				ask(`min(keyward_journal_max_bytes{@})`, "--data-size"),
			},
		}, {
			Kind: seriesPanel, Title: "Journals that no member has loaded", Unit: "short", Width: 6, Runbook: "KeywardJournalMissing",
			About: "Journals of the last ring before all members restarted that no member has loaded, so that limits " +
				"may be exceeded by what only they contain. 0 in normal operation.",
			Queries: []query{ask(`max(keyward_journal_missing{@})`, "missing")},
		}, {
			Kind: seriesPanel, Title: "Counters loaded", Unit: "short", Width: 6,
			About:   "Counters that each member has loaded from journals since it started.",
			Queries: []query{ask(`max by (instance) (keyward_journal_loaded_counters{@})`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Damaged blocks", Unit: "short", Width: 6, Runbook: "KeywardJournalCorrupt",
			About:   "Blocks of journals that were damaged or missing when each member loaded them.",
			Queries: []query{ask(`max by (instance) (keyward_journal_bad_blocks_total{@})`, "{{instance}}")},
		},
	}
}

func hotKeys() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "Hot keys", Unit: "short", Width: 8, Runbook: "KeywardHotKeyUnrelieved",
			About: "Hot keys by their owner; those that no other member helps to decide; and hot keys with a route " +
				"of their own in Envoys.",
			Queries: []query{
				ask(`sum by (instance) (keyward_hot_keys{@})`, "{{instance}}"),
				ask(`sum by (instance) (keyward_hot_keys_unrelieved{@})`, "{{instance}} without relief"),
				ask(`max(keyward_hot_routes{@})`, "routes"),
			},
		}, {
			Kind: seriesPanel, Title: "Requests at owners", Unit: "reqps", Width: 8,
			About: "Requests that other members sent to each owner, and requests that were decided from leases " +
				"instead.",
			Queries: []query{
				ask(`sum by (instance) (rate(keyward_owner_requests_total{@}[~]))`, "{{instance}} received"),
				ask(`sum(rate(keyward_decisions_total{@,path="lease"}[~]))`, "from leases"),
			},
		}, {
			Kind: seriesPanel, Title: "Load", Unit: "percentunit", Width: 8,
			About: "CPU time of each member, expressed in requests, as part of what it could decide. Above 80 %, " +
				"keys count as hot at half the rate.",
			Queries: []query{ask(`max by (instance) (keyward_load_questions{@}) / max by (instance) (keyward_capacity_questions{@})`, "{{instance}}")},
		},
	}
}

func leases() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "Hits lent", Unit: "count:hits", Width: 6,
			About: "Hits that members have lent and that may be unspent, and hits that holders have not spent.",
			Queries: []query{
				ask(`sum by (instance) (keyward_lease_outstanding{@})`, "{{instance}} lent"),
				ask(`sum(keyward_lease_held_hits{@})`, "held"),
			},
		}, {
			Kind: seriesPanel, Title: "Use of lent hits", Unit: "count:hits/s", Width: 6,
			About: "Hits lent, returned, and reclaimed from silent holders; admitted by holders; unused when their " +
				"window ended (stranded: charged, but never admitted).",
			Queries: []query{
				ask(`sum by (event) (rate(keyward_lease_hits_total{@}[~]))`, "{{event}}"),
				ask(`sum(rate(keyward_lease_local_hits_total{@}[~]))`, "admitted"),
				ask(`sum(rate(keyward_lease_stranded_tokens_total{@}[~]))`, "stranded"),
			},
		}, {
			Kind: seriesPanel, Title: "Holders", Unit: "short", Width: 6, Runbook: "KeywardLeaseHoldersUnreachable",
			About: "Members that hold leases, summed over keys, and those that have been silent for 3 s. Their hits " +
				"stay charged until the window ends.",
			Queries: []query{
				ask(`sum(keyward_lease_holders{@})`, "holders"),
				ask(`sum(keyward_lease_unreachable_holders{@})`, "silent"),
			},
		}, {
			Kind: seriesPanel, Title: "Prevented violations", Unit: "short", Width: 6, Runbook: "KeywardLeaseViolation",
			About: "Prevented violations of the conditions C1 to C5 that make leases safe, in the last five " +
				"minutes: always 0.",
			Queries: []query{ask(`sum by (condition) (increase(keyward_lease_violations_total{@}[5m]))`, "{{condition}}")},
		}, {
			Kind: seriesPanel, Title: "Renewals", Unit: "reqps", Width: 12, Runbook: "KeywardLeaseFailures",
			About: "Lease requests that owners answered with hits (granted) or without (empty), and lease requests " +
				"that failed. Each failure costs one more request to the owner.",
			Queries: []query{
				ask(`sum by (result) (rate(keyward_lease_renewals_total{@}[~]))`, "{{result}}"),
				ask(`sum by (reason) (rate(keyward_lease_failures_total{@}[~]))`, "{{reason}}"),
			},
		}, {
			Kind: seriesPanel, Title: "Size of a grant", Unit: "count:hits", Width: 12,
			About: "Hits of one grant, by the member that received it: its demand during the TTL of the lease, " +
				"within its share of 5 % of the limit.",
			Queries: []query{ask(`sum by (instance) (rate(keyward_lease_size_sum{@}[1m])) / sum by (instance) (rate(keyward_lease_size_count{@}[1m]))`, "{{instance}}")},
		},
	}
}

func approximate() []panel {
	return []panel{
		{
			Kind: seriesPanel, Title: "Admitted before counted by the owner", Unit: "count:hits/s", Width: 8,
			About:   "Hits of approximate rules that members admitted on their own.",
			Queries: []query{ask(`sum(rate(keyward_approximate_hits_total{@}[~]))`, "hits")},
		}, {
			Kind: seriesPanel, Title: "Not counted by the owner yet", Unit: "count:hits", Width: 8,
			About: "Of these, hits that were not reported to the owners yet: at most epsilon of the limit, or " +
				"half of what remained at the last reply of the owner.",
			Queries: []query{ask(`sum by (instance) (keyward_approximate_unsynced_hits{@})`, "{{instance}}")},
		}, {
			Kind: seriesPanel, Title: "Reports", Unit: "ops", Width: 8,
			About:   "Reports of hits to owners, counted at both ends.",
			Queries: []query{ask(`sum(rate(keyward_approximate_reconciliations_total{@}[~]))`, "reports")},
		},
	}
}
