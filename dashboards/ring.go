package dashboards

func ringAndHotKeys() Board {
	return Board{
		UID: "keyward-ring", Title: "Keyward / Ring and hot keys", Of: "keyward_ring_members", Who: "Member",
		About: "Who is on the ring and who is kept off it, how counters move when it changes, and what is done about keys that take most hits.",
		Rows: []Row{
			{"At a glance", ringGlance()},
			{"Members", members()},
			{"Hand-over and copies", handOver()},
			{"Hot keys", hotKeys()},
			{"Leases", leases()},
			{"Approximate rules", approximate()},
		},
	}
}

func ringGlance() []Panel {
	return []Panel{
		{
			Kind: Stat, Title: "On the ring", Unit: "short", Width: 4, Steps: calm(),
			About:   "Members on the ring, as the member that sees fewest sees it.",
			Queries: []Query{ask(`min(keyward_ring_members{@})`, "")},
		}, {
			Kind: Stat, Title: "Rings in use", Unit: "short", Width: 4, Steps: bad(2, 3), Runbook: "KeywardRingDisagreement",
			About:   "Different rings that members go by; more than 1 for more than a moment is a fault.",
			Queries: []Query{ask(`count(count_values("fingerprint", keyward_ring_fingerprint{@}))`, "")},
		}, {
			Kind: Stat, Title: "Least reach", Unit: "percentunit", Width: 4, Steps: good(0.5, 1), Runbook: "KeywardTokensVoid",
			About:   "Of the ring's members, the share that confirms the member that fewest confirm. Alone, it decides nothing of its own.",
			Queries: []Query{ask(`min(keyward_reach{@} / keyward_ring_members{@})`, "")},
		}, {
			Kind: Stat, Title: "Busiest member / mean", Unit: "none", Width: 4, Steps: bad(1.5, 2.5),
			About:   "Counters of the member that owns most, over the mean: how even the ring is. 1.2 is usual.",
			Queries: []Query{ask(`max(keyward_keys{@,table="owned"}) / avg(keyward_keys{@,table="owned"})`, "")},
		}, {
			Kind: Stat, Title: "Hot keys", Unit: "short", Width: 4, Steps: calm(),
			About:   "Keys that are hot now; `keyward top` and /v1/hotkeys name them.",
			Queries: []Query{ask(`sum(keyward_hot_keys{@})`, "")},
		}, {
			Kind: Stat, Title: "Decided from leases", Unit: "percentunit", Width: 4, Steps: calm(),
			About:   "Share of all questions that were decided where they were asked, from hits lent by the owner.",
			Queries: []Query{ask(`sum(rate(keyward_decisions_total{@,path="lease"}[~])) / sum(rate(keyward_decisions_total{@}[~]))`, "")},
		},
	}
}

func members() []Panel {
	return []Panel{
		{
			Kind: Series, Title: "On the ring", Unit: "short", Width: 6,
			About:   "Members on the ring, as each member sees it.",
			Queries: []Query{ask(`max by (instance) (keyward_ring_members{@})`, "{{instance}}")},
		}, {
			Kind: Series, Title: "Disagreement", Unit: "short", Width: 6, Runbook: "KeywardRingDisagreement",
			About: "Members that announce another ring than this one, and members that have not yet taken over all that is theirs on it.",
			Queries: []Query{
				ask(`max by (instance) (keyward_ring_disagreement{@})`, "{{instance}} disagrees"),
				ask(`max(keyward_ring_incomplete{@})`, "incomplete"),
			},
		}, {
			Kind: Series, Title: "Members by state", Unit: "short", Width: 6, Runbook: "KeywardMemberMissing",
			About: "As gossip knows them, xDS servers apart; what limits are divided by without their owners (n_ref); addresses that should be members and do not answer (missing).",
			Queries: []Query{
				ask(`max by (state) (keyward_cluster_members{@})`, "{{state}}"),
				ask(`max(keyward_n_ref{@})`, "n_ref"),
				ask(`max(keyward_cluster_missing{@})`, "missing"),
			},
		}, {
			Kind: Series, Title: "Events", Unit: "short", Width: 6, Runbook: "KeywardJoinFailures",
			About: "Changes of the ring, members lost without a farewell, look-ups and joins that failed, name collisions, in the last five minutes.",
			Queries: []Query{
				ask(`sum(increase(keyward_ring_changes_total{@}[5m]))`, "ring changes"),
				ask(`sum(increase(keyward_cluster_deaths_total{@}[5m]))`, "deaths"),
				ask(`sum by (reason) (increase(keyward_join_failures_total{@}[5m]))`, "failed {{reason}}"),
				ask(`sum(increase(keyward_cluster_collisions_total{@}[5m]))`, "name collisions"),
			},
		}, {
			Kind: Bars, Title: "Counters by owner", Unit: "locale", Width: 6, Steps: calm(),
			About:   "Counters that each member decides now: its part of the ring, weighted by what callers ask.",
			Queries: []Query{ask(`max by (instance) (keyward_keys{@,table="owned"})`, "{{instance}}")},
		}, {
			Kind: Series, Title: "Reach", Unit: "short", Width: 6, Runbook: "KeywardTokensVoid",
			About:   "Members of the ring that confirm each member, itself included; 0 off the ring. A member that is alone in this answers from shares.",
			Queries: []Query{ask(`max by (instance) (keyward_reach{@})`, "{{instance}}")},
		}, {
			Kind: Series, Title: "Clocks", Unit: "s", Width: 6, Runbook: "KeywardSkew",
			About:   "The largest difference of each member's clock from another's.",
			Queries: []Query{ask(`max by (instance) (abs(keyward_peer_skew_seconds{@}))`, "{{instance}}")},
		}, {
			Kind: Series, Title: "Gossip", Unit: "short", Width: 6, Runbook: "KeywardNotJoined",
			About: "Health by memberlist's own score, 0 is healthy; announcements that were not let in.",
			Queries: []Query{
				ask(`max by (instance) (keyward_gossip_health_score{@})`, "{{instance}}"),
				ask(`sum(keyward_gossip_refused{@})`, "refused"),
			},
		}, {
			Kind: Series, Title: "Kept off the ring", Unit: "short", Width: 12, Runbook: "KeywardOffRing",
			About: "Members that stay off the ring and are not ready, by cause: lookup, gossip, streams, rival, full; flaps ends by itself. Processes that have not met their cluster, xDS servers included: 1 for each.",
			Queries: []Query{
				whenWrong(`max by (instance, cause) (keyward_off_ring{@}) > 0`, "{{instance}} {{cause}}"),
				ask(`max by (instance) (1 - keyward_cluster_joined{@})`, "{{instance}} has not joined"),
			},
		}, {
			Kind: Series, Title: "Clocks that parted", Unit: "short", Width: 12, Runbook: "KeywardClockFence",
			About: "Times that members gave up their keys for a moment in the last five minutes, because a clock was set (step), their machine was suspended, or all of their clocks stood still (peers); and jumps of members' clocks to the wall clock.",
			Queries: []Query{
				ask(`sum by (instance, reason) (increase(keyward_clock_fences_total{@}[5m]))`, "{{instance}} {{reason}}"),
				ask(`sum(increase(keyward_clock_steps_total{@}[5m]))`, "jumps"),
			},
		},
	}
}

func handOver() []Panel {
	return []Panel{
		{
			Kind: Series, Title: "Counters that moved", Unit: "count:keys/min", Width: 6,
			About:   "Counters handed over and received, copies apart.",
			Queries: []Query{ask(`sum by (instance, direction) (increase(keyward_handoff_keys_total{@}[1m]))`, "{{instance}} {{direction}}")},
		}, {
			Kind: Series, Title: "Time of a hand-over", Unit: "s", Width: 6,
			About:   "From connecting to a member to its last counter being sent, over the last five minutes.",
			Queries: quantiles(`keyward_handoff_seconds_bucket{@}`, "5m", "0.5", "0.99"),
		}, {
			Kind: Series, Title: "Unfinished", Unit: "short", Width: 6, Runbook: "KeywardHandoffIncomplete",
			About: "Acknowledgements of the ring that members miss, members that have not confirmed what is owed to them, questions that wait: above 0 for moments after a change only. Transfers that broke off, members that left before others had all.",
			Queries: []Query{
				ask(`sum(keyward_ring_acks_missing{@})`, "acks missing"),
				ask(`sum(keyward_handoff_unconfirmed_members{@})`, "unconfirmed"),
				ask(`sum(keyward_waiting_questions{@})`, "questions waiting"),
				ask(`sum(increase(keyward_handoff_incomplete_total{@}[5m]))`, "broke off"),
				ask(`sum(max_over_time(keyward_drains_incomplete_total{@}[5m]))`, "left unfinished"),
			},
		}, {
			Kind: Series, Title: "Answers that waited", Unit: "reqps", Width: 6, Runbook: "KeywardAcksMissing",
			About: "Questions that waited for a copy or for their key to be handed over, by how that ended, and those for which there was no room.",
			Queries: []Query{
				ask(`sum by (result) (rate(keyward_answers_waited_total{@}[~]))`, "{{result}}"),
				ask(`sum(rate(keyward_waits_refused_total{@}[~]))`, "no room"),
			},
		}, {
			Kind: Series, Title: "Charges without a copy", Unit: "count:hits", Width: 12,
			About: "Hits that no second member knows of, the most of one key and of all keys of a member: lost if it crashes now.",
			Queries: []Query{
				ask(`max by (instance) (keyward_unreplicated_hits{@,of="key"})`, "{{instance}} one key"),
				ask(`sum by (instance) (keyward_unreplicated_hits{@,of="all"})`, "{{instance}} all"),
			},
		}, {
			Kind: Series, Title: "Copies for heirs", Unit: "ops", Width: 12, Runbook: "KeywardOverflow",
			About: "Batches of copies by result; counters of others that found no room here; hits admitted by shares that their owner will not be told of.",
			Queries: []Query{
				ask(`sum by (result) (rate(keyward_replica_batches_total{@}[~]))`, "{{result}}"),
				ask(`sum(rate(keyward_copies_total{@,result="dropped"}[~]))`, "copies dropped"),
				ask(`sum(rate(keyward_share_untold_hits_total{@}[~]))`, "untold hits"),
			},
		},
	}
}

func hotKeys() []Panel {
	return []Panel{
		{
			Kind: Series, Title: "Hot keys", Unit: "short", Width: 8,
			About: "Keys that are hot, by the member that counts them, and those for which Envoys have a route of their own.",
			Queries: []Query{
				ask(`sum by (instance) (keyward_hot_keys{@})`, "{{instance}}"),
				ask(`max(keyward_hot_routes{@})`, "routes"),
			},
		}, {
			Kind: Series, Title: "Questions that reach owners", Unit: "reqps", Width: 8,
			About: "What other members asked as the keys' owners, and what was decided from leases instead, without asking.",
			Queries: []Query{
				ask(`sum by (instance) (rate(keyward_owner_requests_total{@}[~]))`, "{{instance}} asked"),
				ask(`sum(rate(keyward_decisions_total{@,path="lease"}[~]))`, "from leases"),
			},
		}, {
			Kind: Series, Title: "Load", Unit: "percentunit", Width: 8,
			About:   "What each member's processor time is worth in questions, as part of what it could decide: above 80 % keys count as hot at half the rate.",
			Queries: []Query{ask(`max by (instance) (keyward_load_questions{@}) / max by (instance) (keyward_capacity_questions{@})`, "{{instance}}")},
		},
	}
}

func leases() []Panel {
	return []Panel{
		{
			Kind: Series, Title: "Hits lent", Unit: "count:hits", Width: 6,
			About: "Hits that members have lent and that may not be spent yet, and hits that holders have and have not spent.",
			Queries: []Query{
				ask(`sum by (instance) (keyward_lease_outstanding{@})`, "{{instance}} lent"),
				ask(`sum(keyward_lease_held_hits{@})`, "held"),
			},
		}, {
			Kind: Series, Title: "What became of them", Unit: "count:hits/s", Width: 6,
			About: "Hits lent, given back and reclaimed of silent holders; admitted by holders; left over when their window ended (stranded: charged, admitted to nobody).",
			Queries: []Query{
				ask(`sum by (event) (rate(keyward_lease_hits_total{@}[~]))`, "{{event}}"),
				ask(`sum(rate(keyward_lease_local_hits_total{@}[~]))`, "admitted"),
				ask(`sum(rate(keyward_lease_stranded_tokens_total{@}[~]))`, "stranded"),
			},
		}, {
			Kind: Series, Title: "Holders", Unit: "short", Width: 6, Runbook: "KeywardLeaseHoldersUnreachable",
			About: "Members that hold leases, summed over keys, and those of them that have not been heard for 3 s: what they hold stays charged until its window ends.",
			Queries: []Query{
				ask(`sum(keyward_lease_holders{@})`, "holders"),
				ask(`sum(keyward_lease_unreachable_holders{@})`, "not heard"),
			},
		}, {
			Kind: Series, Title: "Broken conditions", Unit: "short", Width: 6, Runbook: "KeywardLeaseViolation",
			About:   "Breaches of the conditions C1 to C5 that leases are safe by, each prevented, in the last five minutes: always 0.",
			Queries: []Query{ask(`sum by (condition) (increase(keyward_lease_violations_total{@}[5m]))`, "{{condition}}")},
		}, {
			Kind: Series, Title: "Renewals", Unit: "reqps", Width: 12,
			About: "Requests for hits that owners answered, with hits (granted) or with none (empty), and those that failed. Every failure is a question more for the owner.",
			Queries: []Query{
				ask(`sum by (result) (rate(keyward_lease_renewals_total{@}[~]))`, "{{result}}"),
				ask(`sum by (reason) (rate(keyward_lease_failures_total{@}[~]))`, "{{reason}}"),
			},
		}, {
			Kind: Series, Title: "Size of a grant", Unit: "count:hits", Width: 12,
			About:   "Hits of one grant, by the member that got it: what it is asked for in the lease's TTL, within its share of 5 % of the limit.",
			Queries: []Query{ask(`sum by (instance) (rate(keyward_lease_size_sum{@}[1m])) / sum by (instance) (rate(keyward_lease_size_count{@}[1m]))`, "{{instance}}")},
		},
	}
}

func approximate() []Panel {
	return []Panel{
		{
			Kind: Series, Title: "Admitted before the owner knew", Unit: "count:hits/s", Width: 8,
			About:   "Hits of approximate rules that members admitted by themselves.",
			Queries: []Query{ask(`sum(rate(keyward_approximate_hits_total{@}[~]))`, "hits")},
		}, {
			Kind: Series, Title: "Not known to the owner yet", Unit: "count:hits", Width: 8,
			About:   "Of these, hits that the owners have not been told of: at most epsilon of the limit, or half of what was left when the owner last said.",
			Queries: []Query{ask(`sum by (instance) (keyward_approximate_unsynced_hits{@})`, "{{instance}}")},
		}, {
			Kind: Series, Title: "Reports", Unit: "ops", Width: 8,
			About:   "Reports that told owners, counted at both ends.",
			Queries: []Query{ask(`sum(rate(keyward_approximate_reconciliations_total{@}[~]))`, "reports")},
		},
	}
}
