package owner

import (
	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/owner/internal/fair"
	"github.com/keyward/keyward/owner/internal/lending"
)

// Stats is a snapshot of a Node's counters.
type Stats struct {
	counts
	Keys       int // counters in the places of this member's own; they are swept after their windows
	ShareKeys  int // counters of local shares
	OpenKeys   int // counters of fail_open
	ClosedKeys int // owners' replies to fail_closed requests
	DenyKeys   int // keys in the deny cache

	Sketches int // sketches in memory, 64 KiB each

	Escrows int // keys of which this member has an escrow
	Pools   int // of which this member lends parts to regions

	FairRows int         // rows of tenants for which there is memory, 24 bytes each
	Fair     fair.Counts // decisions of rules that divide their limits between tenants

	Owned       int // counters whose keys this member owns; counted slot by slot, while they change
	Confirming  int // members of the ring that confirm this one, including itself; 0 if it is not in the ring
	AcksMissing int // members that have not acknowledged the ring to this one, while it is incomplete
	Unconfirmed int // members that have not confirmed what this one has sent them

	Claims     int // claims in the places of this member's own, settled ones among them
	ClaimsHeld int // claims in the places of other members'

	OpenHolds    int    // open holds of the keys that this member owns; counted step by step, while they change
	OpenHoldHits uint64 // their hits

	Replicas       int    // counters in the places of other members': replicas, and released counters
	CopiesDropped  uint64 // counters of other members that found no room; only increases, like the next two
	CopiesMerged   uint64 // counters of other members that were merged
	SlotsRefused   uint64 // counters, slots and messages that are not valid
	Unreplicated   uint64 // hits that no other member has confirmed: the most of one key
	UnreplicatedIn uint64 // hits that no other member has confirmed, of all keys
	Unwritten      uint64 // hits that this member's journal may lack: the most of one key
	UnwrittenIn    uint64 // hits that this member's journal may lack, of all keys
	Pending        int    // requests that wait for ownership, for replicas, or for the journal
	Transfers      int    // members to which counters are being sent

	// MovedBound bounds the hits that this member, as the owner, admits beyond a limit because members without handoff do
	// not send their counters: the highest limit among the keys charged here in a window of which such a member may have
	// owned a part. It falls to 0 when those windows end. These are the windows that began before a change that brought
	// the key here, or less than Options.LegacyGrace after it. A first ring of this member alone is not a change: what an
	// earlier boot of it admitted is not known here.
	MovedBound uint64
	// CrashBound bounds the same for owners that crashed: what they had admitted and not replicated (U), or the limit if
	// the successor crashed, too.
	CrashBound uint64
	// PartitionBound is the part of a limit that members missing from the ring may admit on a ring of their own, while
	// this one admits the complete limit.
	PartitionBound uint64
	// ShareBound bounds the hits admitted here from local shares that are not reported to the key's owner (Phi): the
	// largest sum of one key in its present window.
	ShareBound uint64
	// ClosedBound bounds the same for hits admitted under fail_closed.
	ClosedBound uint64
	// ReclaimBound bounds the hits that holders of leases spent although they were lent again (reclaim: ttl and crash):
	// the hits that this member has reclaimed in the present windows, summed over the keys of one shard.
	ReclaimBound uint64
	// RestartBound bounds the hits that were admitted before all members restarted and that no journal contained.
	RestartBound uint64
	// OutageBound bounds the hits that this member, as the owner, has admitted above its region's floor because the
	// coordinator of its federation is away (outage: regional_only and snapshot).
	OutageBound uint64
	// OpenAdmitted bounds the same for fail_open, which no limit bounds. It is not a part of Bound.
	OpenAdmitted uint64

	Lease lending.LeaseStats
}

// counts is the part of Stats that every shard counts for itself. Its fields only increase.
type counts struct {
	Decided   [Escrow + 1]uint64 // decisions, by Authority
	Admitted  [Escrow + 1]uint64 // hits admitted with Share, Open and Closed, by Authority
	Forwarded uint64             // requests for which another member was named

	OverflowKeys    uint64 // keys that were new to the sketch when they were counted there; an underestimate
	OverflowCharges uint64 // charges counted by sketches
	RefundsDropped  uint64 // refunds that could not be applied: under a degraded policy, or of keys in a sketch

	DenyHits   uint64 // requests decided by the deny cache
	DenyMisses uint64 // requests whose keys it did not contain

	Outages         [4]uint64 // decisions that would have been others if the coordinator were not away, by federation.Outage
	MovedOut        uint64    // hits of escrows that this member has sent to the next owners of their keys
	MovedIn         uint64    // hits of escrows that it has received from former owners
	EscrowsRefused  uint64    // requests for keys without an escrow, because there were too many
	PoolWaits       uint64    // requests that waited for the coordinator, because neither floor nor escrow had room
	PoolsRefused    uint64    // requests of regions for pools that found no room, because there were too many
	PoolLent        uint64    // hits of pools that were lent to regions
	FairRefused     uint64    // hits that a federated limit had room for, left to other tenants. It is a part of Stats.Fair
	Refused         uint64    // charges refused because there was no room for their records
	ShareTakenBack  uint64    // hits admitted from local shares that the owner has charged, too: given back by TakeBack
	ShareUnreported uint64    // hits admitted from local shares that are never reported to the owner, for lack of room
	Holds           holdCounts
	PendingRefused  uint64 // requests that could not wait, because too many did

	BudgetEvents     [len(budgetPercents)]uint64 // by the index of their percentage: 80 and 100
	BudgetEventsLost uint64                      // crossings that were not reported, because there were too many
}

// Bound returns an upper bound of the hits that this member may have added to any one key's window beyond its limit,
// except with fail_open. The bound of a cluster is the sum of its members' bounds.
func (f Stats) Bound() uint64 {
	sum := limit.SaturatingAdd(f.MovedBound, limit.SaturatingAdd(f.ShareBound, f.ClosedBound))
	sum = limit.SaturatingAdd(sum, limit.SaturatingAdd(f.ReclaimBound, f.RestartBound))
	sum = limit.SaturatingAdd(sum, f.OutageBound)
	return limit.SaturatingAdd(sum, limit.SaturatingAdd(f.CrashBound, f.PartitionBound))
}

// Stats returns the Node's counters, summed over all shards.
func (n *Node) Stats(now int64) Stats {
	f := Stats{
		Replicas:   n.counters.Copies(),
		Pending:    int(n.pending.Load()),
		Keys:       n.counters.Len(counter.TableOwned),
		ShareKeys:  n.counters.Len(counter.TableShare),
		OpenKeys:   n.counters.Len(counter.TableOpen),
		ClosedKeys: n.counters.Len(counter.TableQuota),
		DenyKeys:   n.counters.Len(counter.TableDeny),
	}
	own, copies := n.counters.Claims()
	f.Claims, f.ClaimsHeld = int(own), int(copies)
	n.serial.Lock()
	c := n.serial.counts
	f.CopiesDropped, f.CopiesMerged, f.SlotsRefused = c.dropped, c.merged, c.refused
	f.Transfers = len(n.serial.transfers)
	f.Sketches = n.counters.Sketches.Len()
	f.addProgress(n.serial.machine, now)
	n.serial.Unlock()
	f.UnwrittenIn = n.journal.inFlight.Load()
	f.Escrows = int(n.federation.held.Load())
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		most, sum := s.counters.Unconfirmed()
		f.Unreplicated, f.UnreplicatedIn = max(f.Unreplicated, most), limit.SaturatingAdd(f.UnreplicatedIn, sum)
		most, sum = s.counters.Owed()
		f.Unwritten, f.UnwrittenIn = max(f.Unwritten, most), limit.SaturatingAdd(f.UnwrittenIn, sum)
		f.MovedBound = max(f.MovedBound, s.bounds[movedBound].at(now))
		f.CrashBound = max(f.CrashBound, s.bounds[crashBound].at(now))
		f.PartitionBound = max(f.PartitionBound, s.bounds[partitionBound].at(now))
		f.ShareBound = max(f.ShareBound, s.bounds[shareBound].at(now))
		f.ClosedBound = max(f.ClosedBound, s.bounds[closedBound].at(now))
		f.ReclaimBound = max(f.ReclaimBound, s.bounds[reclaimBound].at(now))
		f.RestartBound = max(f.RestartBound, s.bounds[restartBound].at(now))
		f.OutageBound = max(f.OutageBound, s.bounds[outageBound].at(now))
		f.OpenAdmitted = max(f.OpenAdmitted, s.bounds[openAdmitted].at(now))
		s.leases.AddStats(now, &f.Lease)
		f.counts.add(&s.counts)
		f.Pools += len(s.pools.keys)
		f.FairRows += s.fair.Tracked()
		f.Fair.Add(s.fair.Counts())
		f.Fair.Refused += s.counts.FairRefused
		s.mu.Unlock()
		f.Owned += s.countOwned()
		holds, hits := s.countHolds()
		f.OpenHolds, f.OpenHoldHits = f.OpenHolds+holds, limit.SaturatingAdd(f.OpenHoldHits, hits)
	}
	return f
}

// addProgress adds the progress of the last ring change.
func (f *Stats) addProgress(m *handoff.Machine, now int64) {
	p := m.Progress()
	f.Confirming, f.Unconfirmed = m.View().ConfirmedBy(now), p.Unconfirmed
	if !p.Complete() {
		f.AcksMissing = p.MissingAcks
	}
}

// countOwned returns the number of counters whose keys this member owns. It unlocks the shard between steps, so it may
// miss counters that move meanwhile.
func (s *shard) countOwned() (n int) {
	for at, more := 0, true; more; at += lockSlots {
		s.mu.Lock()
		more = s.counters.Owned.Each(at, lockSlots, func(e *counter.Owned) {
			if s.view.Ownership(e.RingPos(), e.Epoch()).State == handoff.OwnedHere {
				n++
			}
		})
		s.mu.Unlock()
	}
	return n
}

// add adds the counts o to c.
func (c *counts) add(o *counts) {
	for i := range c.Decided {
		c.Decided[i] += o.Decided[i]
		c.Admitted[i] += o.Admitted[i]
	}
	c.Forwarded += o.Forwarded
	c.OverflowKeys += o.OverflowKeys
	c.OverflowCharges += o.OverflowCharges
	c.RefundsDropped += o.RefundsDropped
	c.DenyHits += o.DenyHits
	c.DenyMisses += o.DenyMisses
	for i := range c.Outages {
		c.Outages[i] += o.Outages[i]
	}
	c.EscrowsRefused += o.EscrowsRefused
	c.PoolWaits += o.PoolWaits
	c.MovedOut += o.MovedOut
	c.MovedIn += o.MovedIn
	c.PoolsRefused += o.PoolsRefused
	c.PoolLent += o.PoolLent
	c.FairRefused += o.FairRefused
	c.Refused += o.Refused
	c.ShareTakenBack += o.ShareTakenBack
	c.ShareUnreported += o.ShareUnreported
	c.PendingRefused += o.PendingRefused
	c.Holds.add(&o.Holds)
	for i := range c.BudgetEvents {
		c.BudgetEvents[i] += o.BudgetEvents[i]
	}
	c.BudgetEventsLost += o.BudgetEventsLost
}
