package owner

import (
	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner/internal/counter"
)

// Stats are what a Node knows of itself. All but the bounds, keys and the state of the ring only rise.
type Stats struct {
	Keys       int // counters that take a place among those this member owns; they are swept after their windows
	ShareKeys  int // counters of degraded answers: local_share
	OpenKeys   int // fail_open
	ClosedKeys int // quota snapshots of fail_closed
	DenyKeys   int // keys remembered as over

	Decided   [Shed + 1]uint64 // answers given, by Authority
	Admitted  [Shed + 1]uint64 // hits admitted under Share, Open and Closed
	Forwarded uint64           // questions for which another member was named

	OverflowKeys    uint64 // keys that were new to the sketch when they were sent there; an underestimate
	OverflowCharges uint64 // charges counted by the sketch
	Sketches        int    // sketches now in memory, 64 KiB each
	RefundsDropped  uint64 // refunds that could not be applied: under a degraded policy, or counted by the sketch

	DenyHits   uint64 // questions answered by the deny cache
	DenyMisses uint64 // questions that it did not know

	Owned       int // counters whose tokens are here, whatever place they take; a count of slots read one after the other
	Confirming  int // members of the ring that confirm this one, itself included; 0: it is not on the ring
	AcksMissing int // members that have not acknowledged the ring to this one, while it is incomplete
	Unconfirmed int // members that have not said that they have what this one owes them

	Replicas        int    // counters that take a place among others': copies, and what was handed over here
	CopiesDropped   uint64 // counters of other members that found no place
	CopiesMerged    uint64 // those taken in
	SlotsRefused    uint64 // counters, slots and messages that no member should have sent
	Refused         uint64 // charges refused because what they need to be remembered found no place
	Unreplicated    uint64 // hits that no other member knows of: the most of one key
	UnreplicatedIn  uint64 // and all of them
	ShareUnreported uint64 // hits admitted under SHARE that will never be told to the owner, for want of room
	Pending         int    // questions that wait for tokens and copies
	PendingRefused  uint64 // those for which there was no room
	Transfers       int    // members to whom counters are being sent

	// MovedBound bounds the hits that this member, as the owner, admits beyond a limit because members of an old version do not
	// hand their counts over: the highest limit among the keys charged here in a window of which such a member may have
	// owned a part. It falls to 0 when those windows end. Seen as such are windows that began before a change that
	// brought the key here, or less than Options.LegacyGrace after it. A first ring of this member alone is not a change:
	// what an earlier life of it admitted is not known here.
	MovedBound uint64
	// CrashBound is the same of owners that crashed: what they had admitted and told nobody (U), or where the heir went with
	// them, the limit.
	CrashBound uint64
	// PartitionBound is the part of a limit that members missing from the ring may admit on a ring of their own, while this one
	// admits the whole.
	PartitionBound uint64
	// ShareBound bounds the hits admitted here under SHARE that the key's owner does not know of (Phi): the largest sum of
	// one key in its present window.
	ShareBound uint64
	// ClosedBound is the same of hits admitted from quota snapshots.
	ClosedBound uint64
	// OpenAdmitted is the same of fail_open, which the limit does not bound at all: it stands outside of Bound.
	OpenAdmitted uint64

	Lease LeaseStats
}

// LeaseStats are what a Node has lent, borrowed and found to be hot.
type LeaseStats struct {
	HotKeys int // keys of this member that are hot now

	// As a holder.
	Held        int    // keys of which this member has a lease now
	HeldHits    uint64 // hits of all of them that are not spent
	LocalHits   uint64 // hits admitted from leases
	LocalDenied uint64 // questions refused by what a grantor had said
	Granted     uint64 // requests answered with hits
	Empty       uint64 // requests answered with none
	Timeouts    uint64 // requests not answered in time
	GrantedHits uint64 // over Granted, the mean size of a grant
	Stranded    uint64 // hits that were held when their window ended
	NoRoom      uint64 // keys that found no place among the leases

	// As a grantor.
	LentKeys    int              // keys of which parts are lent now
	Holders     int              // members that hold leases, summed over keys
	Outstanding uint64           // hits lent now that may not be spent
	Lent        uint64           // hits lent
	Credited    uint64           // hits that came back
	Reclaimed   uint64           // hits taken back of holders that were silent
	Refused     uint64           // requests that were stale, or came from no live member
	Unreachable int              // holders with hits that have not been heard for 3 s
	Violations  lease.Violations // prevented breaches of the conditions

	// Of approximate rules.
	Reconciled   uint64 // reports that were merged, here or by the owner
	Unsynced     uint64 // hits admitted here now that owners do not know of
	Approximated uint64 // hits admitted locally
}

// Bound is the upper bound of what this member may have added to any one key's window beyond its limit, fail_open
// apart. A cluster's bound is the sum of its members'.
func (f Stats) Bound() uint64 {
	sum := limit.SaturatingAdd(f.MovedBound, limit.SaturatingAdd(f.ShareBound, f.ClosedBound))
	return limit.SaturatingAdd(sum, limit.SaturatingAdd(f.CrashBound, f.PartitionBound))
}

// counts are a shard's part of the Facts.
type counts struct {
	decided, admitted                        [Shed + 1]uint64
	forwarded                                uint64
	overflowKeys, overflowCharges            uint64
	refundsDropped                           uint64
	denyHits, denyMisses                     uint64
	refused, shareUnreported, pendingRefused uint64
	lease                                    LeaseStats // what only rises
}

func (c *counts) violate(v lease.Violations) { c.lease.Violations.Add(v) }

func (c *counts) heldStats(x lease.HoldingStats) {
	c.lease.Timeouts += x.Timeouts
	c.lease.Stranded += x.Stranded
	c.violate(x.Violations)
}

// Stats sums up the shards.
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
	n.serial.Lock()
	c := n.serial.counts
	f.CopiesDropped, f.CopiesMerged, f.SlotsRefused = c.dropped, c.merged, c.refused
	f.Transfers = len(n.serial.transfers)
	f.Sketches = n.counters.Sketches.Len()
	f.addProgress(n.serial.machine, now)
	n.serial.Unlock()
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		f.add(&s.counts)
		most, sum := s.counters.Unconfirmed()
		f.Unreplicated, f.UnreplicatedIn = max(f.Unreplicated, most), limit.SaturatingAdd(f.UnreplicatedIn, sum)
		f.MovedBound = max(f.MovedBound, s.bounds[movedBound].at(now))
		f.CrashBound = max(f.CrashBound, s.bounds[crashBound].at(now))
		f.PartitionBound = max(f.PartitionBound, s.bounds[partitionBound].at(now))
		f.ShareBound = max(f.ShareBound, s.bounds[shareBound].at(now))
		f.ClosedBound = max(f.ClosedBound, s.bounds[closedBound].at(now))
		f.OpenAdmitted = max(f.OpenAdmitted, s.bounds[openAdmitted].at(now))
		s.leaseFacts(now, &f.Lease)
		s.mu.Unlock()
		f.Owned += s.countOwned()
	}
	return f
}

// leaseFacts adds what a shard knows of leases.
func (s *shard) leaseFacts(now int64, f *LeaseStats) {
	for _, held := range s.held {
		s.counts.heldStats(held.TakeStats())
		if held.by == policy.Approximate {
			f.Unsynced += held.drift.unsynced
			continue
		}
		f.Held++
		f.HeldHits += held.Left(now)
	}
	for _, lent := range s.lent {
		s.counts.violate(lent.TakeViolations())
		f.LentKeys++
		f.Outstanding += lent.Unspent(now)
		for _, l := range lent.Holders(now) {
			f.Holders++
			if l.Unspent > 0 && now-l.AskedAt > unreachableAfter {
				f.Unreachable++
			}
		}
	}
	s.hot.rates.All(now, func(_ hotkey.Digest, _ float64, hot bool) {
		if hot {
			f.HotKeys++
		}
	})
	f.add(&s.counts.lease)
}

// add adds what only rises.
func (f *LeaseStats) add(c *LeaseStats) {
	f.LocalHits += c.LocalHits
	f.LocalDenied += c.LocalDenied
	f.Granted += c.Granted
	f.Empty += c.Empty
	f.Timeouts += c.Timeouts
	f.GrantedHits += c.GrantedHits
	f.Stranded += c.Stranded
	f.NoRoom += c.NoRoom
	f.Lent += c.Lent
	f.Credited += c.Credited
	f.Reclaimed += c.Reclaimed
	f.Refused += c.Refused
	f.Violations.Add(c.Violations)
	f.Reconciled += c.Reconciled
	f.Approximated += c.Approximated
}

// addProgress is how far the last change of the ring has come.
func (f *Stats) addProgress(m *handoff.Machine, now int64) {
	p := m.Progress()
	f.Confirming, f.Unconfirmed = m.View().ConfirmedBy(now), p.Unconfirmed
	if !p.Complete {
		f.AcksMissing = p.MissingAcks
	}
}

// countOwned counts the counters whose tokens are here. Decisions come in between, so it may miss some that move meanwhile.
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

func (f *Stats) add(c *counts) {
	for i := range c.decided {
		f.Decided[i] += c.decided[i]
		f.Admitted[i] += c.admitted[i]
	}
	f.Forwarded += c.forwarded
	f.OverflowKeys += c.overflowKeys
	f.OverflowCharges += c.overflowCharges
	f.RefundsDropped += c.refundsDropped
	f.DenyHits += c.denyHits
	f.DenyMisses += c.denyMisses
	f.Refused += c.refused
	f.ShareUnreported += c.shareUnreported
	f.PendingRefused += c.pendingRefused
}

// The bounds that are tracked.
const (
	movedBound = iota
	crashBound
	partitionBound
	shareBound
	closedBound
	openAdmitted
	boundKinds
)

func boundOf(k counter.Table) int {
	if k == counter.TableOpen {
		return openAdmitted
	}
	return shareBound
}

// expiringMax is the maximum of amounts that each lapse at a time of their own. It keeps the few that none outlives and
// outweighs; when there are too many, two are joined and the result is above both.
type expiringMax [8]struct {
	end int64
	n   uint64
}

// push adds n until end.
func (p *expiringMax) push(now, end int64, n uint64) {
	least := 0
	for i := range p {
		x := &p[i]
		if x.end <= now || x.end <= end && x.n <= n {
			x.end, x.n = 0, 0
		}
		if x.n >= n && x.end >= end {
			return
		}
		if x.n < p[least].n {
			least = i
		}
	}
	x := &p[least]
	x.end, x.n = max(x.end, end), max(x.n, n)
}

// at is the maximum at time now.
func (p *expiringMax) at(now int64) uint64 {
	n := uint64(0)
	for _, x := range p {
		if x.end > now {
			n = max(n, x.n)
		}
	}
	return n
}
