package admin

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/keyward/keyward/owner"
)

func TestCollector(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(NewCollector(func() owner.Stats {
		f := owner.Stats{MovedBound: 5, ShareBound: 2, CrashBound: 3, PartitionBound: 11, ClosedBound: 4, OpenAdmitted: 9, RestartBound: 7, OutageBound: 6, UnwrittenIn: 13}
		f.Keys, f.Replicas, f.Owned = 3, 40, 21 // most were transferred from other members and not used since
		f.Unreplicated, f.UnreplicatedIn, f.Confirming, f.AcksMissing, f.Unconfirmed = 2, 6, 3, 1, 2
		f.Decided[owner.Share], f.Admitted[owner.Share] = 4, 8
		l := &f.Lease
		l.LocalHits, l.Granted, l.GrantedHits, l.Empty = 40, 4, 50, 3
		l.Timeouts, l.NoRoom, l.Outstanding, l.Unreachable = 2, 1, 12, 1
		f.Lease.Violations[2] = 7
		return f
	}))
	const want = `
# HELP keyward_overadmission_bound Most hits that this member may have added to one key's current window above its limit, without fail_open. The bound of the cluster is the sum over members.
# TYPE keyward_overadmission_bound gauge
keyward_overadmission_bound 38
# HELP keyward_overadmission_bound_by_cause The parts of keyward_overadmission_bound.
# TYPE keyward_overadmission_bound_by_cause gauge
keyward_overadmission_bound_by_cause{cause="crash"} 3
keyward_overadmission_bound_by_cause{cause="fail_closed"} 4
keyward_overadmission_bound_by_cause{cause="old_version"} 5
keyward_overadmission_bound_by_cause{cause="outage"} 6
keyward_overadmission_bound_by_cause{cause="partition"} 11
keyward_overadmission_bound_by_cause{cause="reclaim"} 0
keyward_overadmission_bound_by_cause{cause="restart"} 7
keyward_overadmission_bound_by_cause{cause="share"} 2
# HELP keyward_handoff_unconfirmed_members Members that have not confirmed all counters that this one must send them.
# TYPE keyward_handoff_unconfirmed_members gauge
keyward_handoff_unconfirmed_members 2
# HELP keyward_journal_owed_hits Hits that only memory has, because the journal (--data) lacks them; 0 without a journal.
# TYPE keyward_journal_owed_hits gauge
keyward_journal_owed_hits 13
# HELP keyward_keys Counters in memory, by table: owned, those that this member decides now; replica, those of other members; or those of decisions made without the owner.
# TYPE keyward_keys gauge
keyward_keys{table="deny"} 0
keyward_keys{table="fail_closed"} 0
keyward_keys{table="fail_open"} 0
keyward_keys{table="owned"} 21
keyward_keys{table="replica"} 22
keyward_keys{table="share"} 0
# HELP keyward_reach Members of the ring that confirm this one, including itself; 0 while it is not on the ring.
# TYPE keyward_reach gauge
keyward_reach 3
# HELP keyward_ring_acks_missing Members whose acknowledgement of the ring this one waits for.
# TYPE keyward_ring_acks_missing gauge
keyward_ring_acks_missing 1
# HELP keyward_unreplicated_hits Charges that the successor has not confirmed: the most of one key, and of all keys.
# TYPE keyward_unreplicated_hits gauge
keyward_unreplicated_hits{of="all"} 6
keyward_unreplicated_hits{of="key"} 2
# HELP keyward_degraded_admitted_hits_total Hits admitted while their owner was unreachable.
# TYPE keyward_degraded_admitted_hits_total counter
keyward_degraded_admitted_hits_total{authority="fail_closed"} 0
keyward_degraded_admitted_hits_total{authority="fail_open"} 0
keyward_degraded_admitted_hits_total{authority="share"} 8
# HELP keyward_lease_failures_total Requests for a grant that were refused or timed out, and keys that found no room.
# TYPE keyward_lease_failures_total counter
keyward_lease_failures_total{reason="no_room"} 1
keyward_lease_failures_total{reason="refused"} 0
keyward_lease_failures_total{reason="timeout"} 2
# HELP keyward_lease_local_hits_total Hits admitted from leases, without the owner.
# TYPE keyward_lease_local_hits_total counter
keyward_lease_local_hits_total 40
# HELP keyward_lease_outstanding Hits that this member has lent and that may not be spent yet.
# TYPE keyward_lease_outstanding gauge
keyward_lease_outstanding 12
# HELP keyward_lease_renewals_total Requests for a grant that the owner answered: with hits, or with none.
# TYPE keyward_lease_renewals_total counter
keyward_lease_renewals_total{result="empty"} 3
keyward_lease_renewals_total{result="granted"} 4
# HELP keyward_lease_size Hits of one grant to this member.
# TYPE keyward_lease_size summary
keyward_lease_size_sum 50
keyward_lease_size_count 4
# HELP keyward_lease_unreachable_holders Holders with unspent hits that have sent nothing for 3 s.
# TYPE keyward_lease_unreachable_holders gauge
keyward_lease_unreachable_holders 1
# HELP keyward_lease_violations_total Violations of the conditions that make leases safe. Each was prevented.
# TYPE keyward_lease_violations_total counter
keyward_lease_violations_total{condition="C1"} 0
keyward_lease_violations_total{condition="C2"} 7
keyward_lease_violations_total{condition="C3"} 0
keyward_lease_violations_total{condition="C4"} 0
keyward_lease_violations_total{condition="C5"} 0
`
	names := []string{
		"keyward_overadmission_bound", "keyward_overadmission_bound_by_cause", "keyward_degraded_admitted_hits_total", "keyward_keys",
		"keyward_unreplicated_hits", "keyward_reach", "keyward_ring_acks_missing", "keyward_journal_owed_hits", "keyward_handoff_unconfirmed_members",
		"keyward_lease_failures_total", "keyward_lease_local_hits_total", "keyward_lease_outstanding", "keyward_lease_renewals_total", "keyward_lease_size",
		"keyward_lease_unreachable_holders", "keyward_lease_violations_total",
	}
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
	if x := (owner.Stats{MovedBound: 1, ShareBound: 2, CrashBound: 4, PartitionBound: 8, ClosedBound: 16, ReclaimBound: 32}); sum(causes(&x)) != x.Bound() {
		t.Errorf("the causes %v do not sum to the bound %d", causes(&x), x.Bound())
	}
	if len(authorities()) != len(owner.Stats{}.Decided) {
		t.Errorf("%d names for %d authorities", len(authorities()), len(owner.Stats{}.Decided))
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

func sum(m map[string]uint64) (n uint64) {
	for _, x := range m {
		n += x
	}
	return n
}
