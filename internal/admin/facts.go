package admin

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/owner"
)

// collector tells Prometheus what a node knows of itself.
type collector struct {
	read func() owner.Stats

	keys, bound, causes, open, decisions, admitted, overflowKeys, overflowHits, sketches, refunds, deny *prometheus.Desc

	unreplicated, reach, acks, unconfirmed, transfers, waiting, waitsRefused *prometheus.Desc
	copies, slotsRefused, charges, untold                                    *prometheus.Desc

	leases leaseCollector
}

// NewCollector is a collector of a node's facts; read is called at every scrape.
func NewCollector(read func() owner.Stats) prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("keyward_"+name, help, labels, nil)
	}
	return &collector{
		read:         read,
		leases:       newLeaseCollector(),
		keys:         desc("keys", "Counters in memory, by table: owned, that this member decides by the present ring; replica, of others'; or of answers given for an owner that could not be reached.", "table"),
		bound:        desc("overadmission_bound", "Most hits that this member may have added to one key's present window above its limit, fail_open apart; the cluster's bound is the sum."),
		causes:       desc("overadmission_bound_by_cause", "The parts that keyward_overadmission_bound is the sum of.", "cause"),
		open:         desc("fail_open_admitted", "Most hits that this member has admitted of one key in its present window under fail_open, which the limit does not bound."),
		decisions:    desc("authority_total", "Decisions by the right by which they were made.", "authority"),
		admitted:     desc("degraded_admitted_hits_total", "Hits admitted for owners that could not be reached.", "authority"),
		overflowKeys: desc("overflow_keys_total", "Keys that did not fit in memory and are counted by a sketch that never admits too much."),
		overflowHits: desc("overflow_charges_total", "Charges counted by the sketch."),
		sketches:     desc("overflow_sketches", "Sketches in memory, 64 KiB each."),
		refunds:      desc("refunds_dropped_total", "Refunds that could not be applied."),
		deny:         desc("deny_cache_total", "Questions that the cache of refusals knew or did not know.", "result"),

		unreplicated: desc("unreplicated_hits", "Charges that no other member has a copy of: the most of one key, and of all keys.", "of"),
		reach:        desc("reach", "Members of the ring that confirm this one, itself included; 0 while it is not on the ring."),
		acks:         desc("ring_acks_missing", "Members whose acknowledgement of the ring this one waits for."),
		unconfirmed:  desc("handoff_unconfirmed_members", "Members that have not confirmed that they have what this one owes them."),
		transfers:    desc("handoff_transfers", "Members that counters are being sent to."),
		waiting:      desc("waiting_questions", "Questions that wait for a copy of a charge, or for a key to be handed over."),
		waitsRefused: desc("waits_refused_total", "Questions that would have had to wait and found no room; their rule's degraded policy answers."),
		copies:       desc("copies_total", "Other members' counters that came here, by result.", "result"),
		slotsRefused: desc("slots_refused_total", "Counters, parts of them and messages that no member should have sent."),
		charges:      desc("charges_refused_total", "Charges refused because there was no room to remember them."),
		untold:       desc("share_untold_hits_total", "Hits admitted by a share that the owner will never be told of, for want of room."),
	}
}

// authorities are the names of owner.Authority in metrics, by number.
func authorities() []string {
	return []string{"full", "part", "share", "fail_open", "fail_closed", "overflow", "cached", "shed"}
}

// Describe implements prometheus.Collector.
func (f *collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(f, ch) }

// Collect implements prometheus.Collector.
func (f *collector) Collect(ch chan<- prometheus.Metric) {
	x := f.read()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(f.keys, float64(x.Owned), "owned")
	gauge(f.keys, float64(max(0, x.Keys+x.Replicas-x.Owned)), "replica")
	gauge(f.keys, float64(x.ShareKeys), "share")
	gauge(f.keys, float64(x.OpenKeys), "fail_open")
	gauge(f.keys, float64(x.ClosedKeys), "fail_closed")
	gauge(f.keys, float64(x.DenyKeys), "deny")
	gauge(f.bound, float64(x.Bound()))
	for cause, n := range causes(&x) {
		gauge(f.causes, float64(n), cause)
	}
	gauge(f.open, float64(x.OpenAdmitted))
	for i, name := range authorities() {
		counter(f.decisions, x.Decided[i], name)
		if owner.Authority(i) == owner.Share || owner.Authority(i) == owner.Open || owner.Authority(i) == owner.Closed {
			counter(f.admitted, x.Admitted[i], name)
		}
	}
	counter(f.overflowKeys, x.OverflowKeys)
	counter(f.overflowHits, x.OverflowCharges)
	gauge(f.sketches, float64(x.Sketches))
	counter(f.refunds, x.RefundsDropped)
	counter(f.deny, x.DenyHits, "hit")
	counter(f.deny, x.DenyMisses, "miss")
	f.handoff(&x, gauge, counter)
	f.leases.collect(ch, &x.Lease)
}

// causes are the parts of a bound.
func causes(x *owner.Stats) map[string]uint64 {
	return map[string]uint64{
		"share": x.ShareBound, "fail_closed": x.ClosedBound, "crash": x.CrashBound, "partition": x.PartitionBound, "old_version": x.MovedBound,
	}
}

// handoff is what is told of copies and of counters that move.
func (f *collector) handoff(x *owner.Stats, gauge func(*prometheus.Desc, float64, ...string), counter func(*prometheus.Desc, uint64, ...string)) {
	gauge(f.unreplicated, float64(x.Unreplicated), "key")
	gauge(f.unreplicated, float64(x.UnreplicatedIn), "all")
	gauge(f.reach, float64(x.Confirming))
	gauge(f.acks, float64(x.AcksMissing))
	gauge(f.unconfirmed, float64(x.Unconfirmed))
	gauge(f.transfers, float64(x.Transfers))
	gauge(f.waiting, float64(x.Pending))
	counter(f.waitsRefused, x.PendingRefused)
	counter(f.copies, x.CopiesMerged, "merged")
	counter(f.copies, x.CopiesDropped, "dropped")
	counter(f.slotsRefused, x.SlotsRefused)
	counter(f.charges, x.Refused)
	counter(f.untold, x.ShareUnreported)
}
