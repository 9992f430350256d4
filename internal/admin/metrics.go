package admin

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/owner"
)

// metric is one metric of a node. Its values have one label, or none.
type metric struct {
	name, help string
	label      string // empty: values has one entry, for ""
	gauge      bool   // else a counter
	values     func(s *owner.Stats) map[string]uint64
}

// integer is a number in owner.Stats.
type integer interface{ ~int | ~int64 | ~uint64 }

func number[T integer](read func(s *owner.Stats) T) func(*owner.Stats) map[string]uint64 {
	return func(s *owner.Stats) map[string]uint64 { return map[string]uint64{"": uint64(read(s))} }
}

func gauge[T integer](name, help string, read func(s *owner.Stats) T) metric {
	return metric{name: name, help: help, gauge: true, values: number(read)}
}

func counter[T integer](name, help string, read func(s *owner.Stats) T) metric {
	return metric{name: name, help: help, values: number(read)}
}

// decisionMetrics are about decisions and the memory for counters.
func decisionMetrics() []metric {
	return []metric{
		{"keys", "Counters in memory, by table: owned, those that this member decides now; replica, those of other members; or those of decisions made without the owner.", "table", true, tables},
		gauge("overadmission_bound", "Most hits that this member may have added to one key's current window above its limit, without fail_open. The bound of the cluster is the sum over members.", (*owner.Stats).Bound),
		{"overadmission_bound_by_cause", "The parts of keyward_overadmission_bound.", "cause", true, causes},
		gauge("fail_open_admitted", "Most hits that this member has admitted for one key in its current window under fail_open, which no limit bounds.", func(s *owner.Stats) uint64 { return s.OpenAdmitted }),
		{"authority_total", "Decisions, by the authority for them.", "authority", false, decisions},
		{"degraded_admitted_hits_total", "Hits admitted while their owner was unreachable.", "authority", false, degradedHits},
		counter("overflow_keys_total", "Keys that found no room in the table and are counted by a sketch that never admits too much.", func(s *owner.Stats) uint64 { return s.OverflowKeys }),
		counter("overflow_charges_total", "Charges counted by the sketch.", func(s *owner.Stats) uint64 { return s.OverflowCharges }),
		gauge("overflow_sketches", "Sketches in memory, 64 KiB each.", func(s *owner.Stats) int { return s.Sketches }),
		counter("refunds_dropped_total", "Refunds that could not be applied.", func(s *owner.Stats) uint64 { return s.RefundsDropped }),
		{"deny_cache_total", "Requests that the deny cache answered (hit) or not (miss).", "result", false, func(s *owner.Stats) map[string]uint64 {
			return map[string]uint64{"hit": s.DenyHits, "miss": s.DenyMisses}
		}},
		counter("charges_refused_total", "Charges refused for lack of room to track them.", func(s *owner.Stats) uint64 { return s.Refused }),
		gauge("fair_rows", "Rows of tenants for which this member has memory, 24 bytes each.", func(s *owner.Stats) int { return s.FairRows }),
		counter("fair_refused_hits_total", "Hits that a limit had room for, refused to leave them to other tenants.", func(s *owner.Stats) uint64 { return s.Fair.Refused }),
		{"fair_requests_total", "Requests of fair rules whose tenant shares a row with others, or has none: then the limit alone decides.", "result", false, func(s *owner.Stats) map[string]uint64 {
			return map[string]uint64{"shared": s.Fair.Shared, "untracked": s.Fair.Untracked}
		}},
		counter("share_taken_back_hits_total", "Hits admitted from a local share and given back, because the owner, which was silent, has charged the same requests.", func(s *owner.Stats) uint64 { return s.ShareTakenBack }),
		counter("share_untold_hits_total", "Hits admitted from a local share that are never reported to the owner, for lack of room.", func(s *owner.Stats) uint64 { return s.ShareUnreported }),
	}
}

// handoffMetrics are about replicas and the transfer of counters.
func handoffMetrics() []metric {
	return []metric{
		{"unreplicated_hits", "Charges that the successor has not confirmed: the most of one key, and of all keys.", "of", true, func(s *owner.Stats) map[string]uint64 {
			return map[string]uint64{"key": s.Unreplicated, "all": s.UnreplicatedIn}
		}},
		gauge("journal_owed_hits", "Hits that only memory has, because the journal (--data) lacks them; 0 without a journal.", func(s *owner.Stats) uint64 { return s.UnwrittenIn }),
		gauge("reach", "Members of the ring that confirm this one, including itself; 0 while it is not on the ring.", func(s *owner.Stats) int { return s.Confirming }),
		gauge("ring_acks_missing", "Members whose acknowledgement of the ring this one waits for.", func(s *owner.Stats) int { return s.AcksMissing }),
		gauge("handoff_unconfirmed_members", "Members that have not confirmed all counters that this one must send them.", func(s *owner.Stats) int { return s.Unconfirmed }),
		gauge("handoff_transfers", "Members to which counters are being sent.", func(s *owner.Stats) int { return s.Transfers }),
		gauge("waiting_questions", "Requests that wait for the replica of a charge, or for the handoff of a key.", func(s *owner.Stats) int { return s.Pending }),
		gauge("federation_escrows", "Keys of which this member has an escrow of a federation's pool.", func(s *owner.Stats) int { return s.Escrows }),
		counter("federation_moved_out_hits_total", "Hits of escrows that this member has sent to the next owners of their keys.", func(s *owner.Stats) uint64 { return s.MovedOut }),
		counter("federation_moved_in_hits_total", "Hits of escrows that this member has taken over from former owners of their keys.", func(s *owner.Stats) uint64 { return s.MovedIn }),
		counter("federation_escrows_refused_total", "Requests for keys without an escrow, because there were too many; only their floors are spent.", func(s *owner.Stats) uint64 { return s.EscrowsRefused }),
		counter("federation_waits_total", "Requests that waited for the coordinator, because neither the region's floor nor its escrow had room.", func(s *owner.Stats) uint64 { return s.PoolWaits }),
		gauge("federation_pools", "Pools of which this member, as the coordinator, lends parts to regions.", func(s *owner.Stats) int { return s.Pools }),
		counter("federation_pool_lent_hits_total", "Hits of pools that this member, as the coordinator, has lent to regions.", func(s *owner.Stats) uint64 { return s.PoolLent }),
		counter("federation_pools_refused_total", "Requests of regions that this member, as the coordinator, had no room for.", func(s *owner.Stats) uint64 { return s.PoolsRefused }),
		{"federation_outage_decisions_total", "Decisions by a rule's outage policy, because the coordinator was away.", "outage", false, outages},
		counter("waits_refused_total", "Requests that had to wait and found no room. Their rule's degraded policy decides.", func(s *owner.Stats) uint64 { return s.PendingRefused }),
		{"copies_total", "Replicas and counters received from other members, by result.", "result", false, func(s *owner.Stats) map[string]uint64 {
			return map[string]uint64{"merged": s.CopiesMerged, "dropped": s.CopiesDropped}
		}},
		counter("slots_refused_total", "Counters, parts of them and messages that a correct member does not send.", func(s *owner.Stats) uint64 { return s.SlotsRefused }),
	}
}

// holdMetrics are about holds (package claim) of keys that this member decides.
func holdMetrics() []metric {
	return []metric{
		gauge("holds_open", "Open holds of the keys that this member owns, requests in flight among them.", func(s *owner.Stats) int { return s.OpenHolds }),
		gauge("holds_open_hits", "Hits of the open holds of the keys that this member owns. They are charged and may be given back.", func(s *owner.Stats) uint64 { return s.OpenHoldHits }),
		{"holds_records", "Records of holds in memory, settled ones among them: own, which --max-holds bounds, and as many copies of other members'.", "of", true, func(s *owner.Stats) map[string]uint64 {
			return map[string]uint64{"own": uint64(s.Claims), "copies": uint64(s.ClaimsHeld)}
		}},
		counter("holds_reserved_total", "Holds that were made.", func(s *owner.Stats) uint64 { return s.Holds.Reserved }),
		counter("holds_refused_total", "Requests refused because the key, its domain or this member has no room for a hold.", func(s *owner.Stats) uint64 { return s.Holds.Refused }),
		counter("holds_repeated_requests_total", "Requests with the id and the hits of a hold that was just made. They were not charged again.", func(s *owner.Stats) uint64 { return s.Holds.Repeats }),
		counter("holds_collisions_total", "Requests refused because their id is that of an open hold of other hits, or of an older one.", func(s *owner.Stats) uint64 { return s.Holds.Collisions }),
		counter("holds_given_back_hits_total", "Hits that settlements and lapses gave back.", func(s *owner.Stats) uint64 { return s.Holds.GivenBack }),
		counter("holds_excess_hits_total", "Hits that commits charged in addition to what was reserved.", func(s *owner.Stats) uint64 { return s.Holds.Excess }),
		{"holds_unmatched_total", "Settlements of holds that are not known: commits, which are charged completely, and others, which have no effect.", "settlement", false, func(s *owner.Stats) map[string]uint64 {
			return map[string]uint64{"commit": s.Holds.Unknown, "other": s.Holds.Unmatched - min(s.Holds.Unmatched, s.Holds.Unknown)}
		}},
		counter("holds_lapsed_total", "Holds that were not settled within their hold_ttl.", func(s *owner.Stats) uint64 { return s.Holds.Lapsed }),
		counter("holds_copies_dropped_total", "Copies of other members' holds that found no room.", func(s *owner.Stats) uint64 { return s.Holds.Dropped }),
		counter("holds_lost_hits_total", "Hits that may not have been given back: their owner was lost while it gave them back, or there was no room for the counter's record.", func(s *owner.Stats) uint64 { return s.Holds.Lost }),
		counter("holds_callers_dead_total", "Holds of requests in flight that were released because their caller is dead.", func(s *owner.Stats) uint64 { return s.Holds.CallersDead }),
		counter("holds_sets_unclaimed_total", "Charges of sets (all_or_nothing) that found no room for a hold. They stay charged even if the set is refused.", func(s *owner.Stats) uint64 { return s.Holds.SetsUnclaimed }),
		{"budget_events_total", "Charges of keys with holds that reached 80 or 100 % of the limit, about once for each key and window.", "level", false, func(s *owner.Stats) map[string]uint64 {
			return map[string]uint64{"80": s.BudgetEvents[0], "100": s.BudgetEvents[1]}
		}},
		counter("budget_events_lost_total", "Charges that reached 80 or 100 % of a limit and were not reported, because there were too many.", func(s *owner.Stats) uint64 { return s.BudgetEventsLost }),
	}
}

// holderMetrics are about leases that this member holds.
func holderMetrics() []metric {
	return []metric{
		gauge("lease_held", "Keys on which this member holds a lease.", func(s *owner.Stats) int { return s.Lease.Held }),
		gauge("lease_held_hits", "Hits that this member holds by leases and has not spent.", func(s *owner.Stats) uint64 { return s.Lease.HeldHits }),
		counter("lease_local_hits_total", "Hits admitted from leases, without the owner.", func(s *owner.Stats) uint64 { return s.Lease.LocalHits }),
		counter("lease_local_denials_total", "Requests denied because of an owner's notice, without the owner.", func(s *owner.Stats) uint64 { return s.Lease.LocalDenied }),
		{"lease_renewals_total", "Requests for a grant that the owner answered: with hits, or with none.", "result", false, func(s *owner.Stats) map[string]uint64 {
			return map[string]uint64{"granted": s.Lease.Granted, "empty": s.Lease.Empty}
		}},
		{"lease_failures_total", "Requests for a grant that were refused or timed out, and keys that found no room.", "reason", false, func(s *owner.Stats) map[string]uint64 {
			return map[string]uint64{"timeout": s.Lease.Timeouts, "refused": s.Lease.Refused, "no_room": s.Lease.NoRoom}
		}},
		counter("lease_stranded_tokens_total", "Hits that this member held unspent when their window ended. They were charged and admitted nothing.", func(s *owner.Stats) uint64 { return s.Lease.Stranded }),
		counter("approximate_hits_total", "Hits of approximate rules admitted before they were reported to their owner.", func(s *owner.Stats) uint64 { return s.Lease.Approximated }),
		counter("approximate_reconciliations_total", "Reports of approximate rules that were merged, here or by their owner.", func(s *owner.Stats) uint64 { return s.Lease.Reconciled }),
		gauge("approximate_unsynced_hits", "Hits of approximate rules admitted here and not yet reported to their owner.", func(s *owner.Stats) uint64 { return s.Lease.Unsynced }),
	}
}

// grantorMetrics are about leases that this member has granted.
func grantorMetrics() []metric {
	return []metric{
		gauge("hot_keys", "Hot keys that this member owns.", func(s *owner.Stats) int { return s.Lease.HotKeys }),
		gauge("hot_keys_unrelieved", "Hot keys without relief: no other member decides a quarter of their requests or more.", func(s *owner.Stats) int { return s.Lease.Unrelieved }),
		gauge("lease_keys", "Keys on which this member has granted leases.", func(s *owner.Stats) int { return s.Lease.LentKeys }),
		gauge("lease_holders", "Holders of leases that this member has granted, summed over keys.", func(s *owner.Stats) int { return s.Lease.Holders }),
		gauge("lease_unreachable_holders", "Holders with unspent hits that have sent nothing for 3 s.", func(s *owner.Stats) int { return s.Lease.Unreachable }),
		gauge("lease_outstanding", "Hits that this member has lent and that may not be spent yet.", func(s *owner.Stats) uint64 { return s.Lease.Outstanding }),
		{"lease_hits_total", "Hits lent, returned by holders, and reclaimed from silent or failed holders.", "event", false, func(s *owner.Stats) map[string]uint64 {
			return map[string]uint64{"lent": s.Lease.Lent, "credited": s.Lease.Credited, "reclaimed": s.Lease.Reclaimed}
		}},
		{"lease_violations_total", "Violations of the conditions that make leases safe. Each was prevented.", "condition", false, violations},
	}
}

func tables(s *owner.Stats) map[string]uint64 {
	return map[string]uint64{
		"owned": uint64(s.Owned), "replica": uint64(max(0, s.Keys+s.Replicas-s.Owned)), "share": uint64(s.ShareKeys),
		"fail_open": uint64(s.OpenKeys), "fail_closed": uint64(s.ClosedKeys), "deny": uint64(s.DenyKeys),
	}
}

// causes returns the parts of s.Bound().
func causes(s *owner.Stats) map[string]uint64 {
	return map[string]uint64{
		"share": s.ShareBound, "fail_closed": s.ClosedBound, "crash": s.CrashBound, "partition": s.PartitionBound, "old_version": s.MovedBound,
		"reclaim": s.ReclaimBound, "restart": s.RestartBound, "outage": s.OutageBound,
	}
}

// outages returns the decisions by outage policies.
func outages(s *owner.Stats) map[string]uint64 {
	v := map[string]uint64{}
	for i, n := range s.Outages {
		v[federation.Outage(i).String()] = n
	}
	return v
}

// authorities returns the names of owner.Authority, by number.
func authorities() []string {
	return []string{"full", "part", "share", "fail_open", "fail_closed", "overflow", "cached", "shed", "static", "escrow"}
}

func decisions(s *owner.Stats) map[string]uint64 {
	v := map[string]uint64{}
	for i, name := range authorities() {
		v[name] = s.Decided[i]
	}
	return v
}

func degradedHits(s *owner.Stats) map[string]uint64 {
	v := map[string]uint64{}
	for _, a := range []owner.Authority{owner.Share, owner.Open, owner.Closed} {
		v[AuthorityName(a)] = s.Admitted[a]
	}
	return v
}

func violations(s *owner.Stats) map[string]uint64 {
	v := map[string]uint64{}
	for c, n := range s.Lease.Violations {
		if c > 0 { // conditions are numbered from 1
			v[fmt.Sprintf("C%d", c)] = n
		}
	}
	return v
}

// collector exports a node's statistics to Prometheus.
type collector struct {
	read    func() owner.Stats
	metrics []metric
	descs   []*prometheus.Desc // of metrics
	grant   *prometheus.Desc
}

// NewCollector returns a collector of a node's statistics. It calls read for each scrape.
func NewCollector(read func() owner.Stats) prometheus.Collector {
	c := &collector{read: read, grant: prometheus.NewDesc("keyward_lease_size", "Hits of one grant to this member.", nil, nil)}
	for _, part := range [][]metric{decisionMetrics(), handoffMetrics(), holdMetrics(), holderMetrics(), grantorMetrics()} {
		c.metrics = append(c.metrics, part...)
	}
	for _, m := range c.metrics {
		c.descs = append(c.descs, prometheus.NewDesc("keyward_"+m.name, m.help, m.labels(m.label), nil))
	}
	return c
}

// labels returns s, or nil for a metric without a label.
func (m *metric) labels(s string) []string {
	if m.label == "" {
		return nil
	}
	return []string{s}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := c.read()
	for i, m := range c.metrics {
		kind := prometheus.CounterValue
		if m.gauge {
			kind = prometheus.GaugeValue
		}
		for label, v := range m.values(&s) {
			ch <- prometheus.MustNewConstMetric(c.descs[i], kind, float64(v), m.labels(label)...)
		}
	}
	ch <- prometheus.MustNewConstSummary(c.grant, s.Lease.Granted, float64(s.Lease.GrantedHits), nil)
}
