package lending

import (
	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/policy"
)

// LeaseStats counts what happened to leases and hot keys.
type LeaseStats struct {
	HotKeys    int // keys of this member that are hot now
	Unrelieved int // of these, keys that no other member helps to decide; see unrelieved

	// As a holder.
	Held        int    // keys of which this member has a lease now
	HeldHits    uint64 // unspent hits of all leases
	LocalHits   uint64 // hits admitted from leases
	LocalDenied uint64 // requests refused as a grantor required
	Granted     uint64 // requests that brought hits
	Empty       uint64 // requests that brought none
	Timeouts    uint64 // requests without a reply in time
	GrantedHits uint64 // divided by Granted: the mean size of a grant
	Stranded    uint64 // hits that were unspent when their window ended
	NoRoom      uint64 // keys for which there were too many leases

	// As a grantor.
	LentKeys    int              // keys of which parts are lent now
	Holders     int              // members that hold leases, summed over keys
	Outstanding uint64           // lent hits that may not be spent
	Lent        uint64           // hits lent
	Credited    uint64           // hits returned
	Reclaimed   uint64           // hits reclaimed from silent holders
	Refused     uint64           // requests that were stale, or from members that are not live
	Unreachable int              // holders with hits that have sent nothing for 3 s
	Violations  lease.Violations // prevented violations of the conditions

	// Of approximate rules.
	Reconciled   uint64 // reports that were merged, here or by the owner
	Unsynced     uint64 // hits admitted here that are not reported to their owners
	Approximated uint64 // hits admitted locally
}

// Add adds the fields of c that only increase.
func (f *LeaseStats) Add(c *LeaseStats) {
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

// AddStats adds the statistics of the shard to f.
func (l *Leases) AddStats(now int64, f *LeaseStats) {
	for _, held := range l.held {
		l.takeStats(held)
		if held.mechanism == policy.Approximate {
			f.Unsynced += held.drift.unsynced
			continue
		}
		f.Held++
		f.HeldHits += held.Left(now)
	}
	for _, lent := range l.lent {
		l.stats.Violations.Add(lent.TakeViolations())
		f.LentKeys++
		f.Outstanding += lent.Unspent(now)
		for _, h := range lent.Holders(now) {
			f.Holders++
			if h.Unspent > 0 && now-h.AskedAt > unreachableAfter {
				f.Unreachable++
			}
		}
	}
	l.hot.rates.All(now, func(_ hotkey.Digest, _ float64, hot bool) {
		if hot {
			f.HotKeys++
		}
	})
	f.Unrelieved += l.unrelieved(now)
	f.Add(&l.stats)
}

// takeStats moves the counts of a held lease to those of the shard.
func (l *Leases) takeStats(held *heldLease) {
	x := held.TakeStats()
	l.stats.Timeouts += x.Timeouts
	l.stats.Stranded += x.Stranded
	l.stats.Violations.Add(x.Violations)
}
