package lease

import (
	"cmp"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/ring"
)

// maxHolders is the number of holders that a Book records. Further holders get no grants; they forward each request.
const maxHolders = 256

const (
	recentlyAsked = 3 * time.Second // a busy holder sends a request every second; after this long its demand counts as 0
	forgetAfter   = 10 * time.Second
	// Slice is how long hits lent from a bucket remain valid at their holder, by the holder's clock from its request
	// on.
	Slice = 100 * time.Millisecond
	// reclaimMargin is how much longer than its holder the grantor waits before it reclaims a silent holder's balance.
	reclaimMargin = time.Second
)

// Holder identifies one boot of a member that requests grants.
type Holder struct {
	ID     ring.ID
	BootID uint64
}

// HolderRecord is a grantor's record of one holder of a key. It is kept until the holder has been silent for a while.
type HolderRecord struct {
	Holder  ring.ID
	BootID  uint64 // boot ID of the holder
	Seq     uint64 // of the newest request
	Window  int64  // window of the amounts
	Granted uint64 // hits that the holder has of Window once the newest grant arrives
	Unspent uint64 // the part of them that may be unspent
	Demand  float64
	Weight  float64
	AskedAt int64 // when the newest request arrived

	// lent is the part of Granted that this Book has charged. It limits all credits, so that hits granted by another
	// grantor, or claimed by an old message, are never credited.
	lent         uint64
	allowed      uint64        // hits that Size allowed and Grant has not used
	endsAt       int64         // end of Window
	reclaimAfter time.Duration // silence after which the holder gives up its balance; 0: never
	reclaimCrash bool          // Terms.ReclaimCrash
	exact        bool          // Granted contains only grants of this Book
}

// Book is a grantor's record of what it has lent of one key. The caller guards it, charges the counter, and drops the
// Book when it stops deciding the key: a Book must have seen every decision since it was created (C4). The zero Book is
// empty.
type Book struct {
	records    []HolderRecord // sorted by Holder
	window     int64          // the newest window
	violations Violations
}

// Receive processes a request, where window is the grantor's current window. credit is the number of hits to refund
// before any other decision: what the holder returned of window, and grants that were lost. Each is counted once. ok is
// false for a request without a reply: one that is older than a previous one, that violates a condition, or that comes
// from one holder too many.
func (b *Book) Receive(now int64, from Holder, r *GrantRequest, window int64) (credit uint64, ok bool) {
	if window < b.window {
		b.violations[C3]++
		return 0, false
	}
	b.window = window
	l := b.recordOf(now, from.ID)
	switch {
	case l == nil:
		return 0, false
	case r.Seq <= l.Seq && (l.BootID == from.BootID || now-l.AskedAt < int64(forgetAfter)): // C2; or from an earlier boot
		return 0, false
	case l.BootID != from.BootID:
		*l = HolderRecord{Holder: from.ID, BootID: from.BootID, Window: window}
	case l.Window != window:
		*l = HolderRecord{Holder: from.ID, BootID: from.BootID, Window: window, exact: l.Window != 0}
	}
	l.Seq, l.AskedAt = r.Seq, now
	l.Demand, l.Weight = float64(r.Demand)/1000, float64(max(1, r.Terms.Weight))
	l.reclaimAfter, l.allowed, l.reclaimCrash = 0, 0, r.Terms.ReclaimCrash
	if r.Terms.Reclaim {
		l.reclaimAfter = r.Terms.ttl()
	}
	return b.reconcile(now, l, r)
}

// reconcile sets the record to the amounts in the request and credits the difference (C2, C4).
func (b *Book) reconcile(now int64, l *HolderRecord, r *GrantRequest) (credit uint64, ok bool) {
	have, left := r.Have, r.Left
	switch {
	case r.Window > l.Window: // from another grantor with a faster clock; nothing to grant here yet
		return 0, false
	case r.Left > r.Have:
		b.violations[C2]++
		return 0, false
	case r.Window < l.Window:
		have, left = 0, 0
		if r.Window == 0 { // a holder without a record may have spent everything that it was granted
			l.Granted, l.lent, l.exact = 0, 0, false
		}
	}
	if have > l.Granted && l.exact {
		b.violations[C4]++
		return 0, false
	}
	if have < l.Granted {
		credit = min(l.Granted-have, l.lent)
	}
	l.lent -= credit
	l.Granted, l.Unspent = have, left
	l.endsAt = r.Rule.End(l.Window)
	if r.Rule.Algorithm.Bucket() { // the previous slice can be spent until this one arrives
		l.Unspent, l.endsAt = r.Left, now+2*int64(Slice)
	}
	return credit, true
}

// Grant records that n hits were charged for the holder's newest request (C1), and returns the total of window for the
// Grant. It returns 0 if Size did not allow n; no holder accepts a total of 0 once it has hits.
func (b *Book) Grant(now int64, holder ring.ID, window int64, n uint64) (total uint64) {
	i, found := b.find(holder)
	if !found {
		b.violations[C1]++
		return 0
	}
	l := &b.records[i]
	if l.Window != window || n > l.allowed {
		b.violations[C1]++
		return 0
	}
	l.allowed = 0 // one grant for each request
	l.Granted, l.lent = limit.SaturatingAdd(l.Granted, n), limit.SaturatingAdd(l.lent, n)
	l.Unspent = limit.SaturatingAdd(l.Unspent, n)
	return l.Granted
}

// Unspent returns the hits of the current window that holders may not have spent.
func (b *Book) Unspent(now int64) (n uint64) {
	for i := range b.records {
		if l := &b.records[i]; now < l.endsAt {
			n = limit.SaturatingAdd(n, l.Unspent)
		}
	}
	return n
}

// Holders returns the records of holders that sent a request recently or may have unspent hits, sorted by name.
func (b *Book) Holders(now int64) []HolderRecord {
	var ls []HolderRecord
	for _, l := range b.records {
		if now-l.AskedAt >= int64(forgetAfter) && (l.Unspent == 0 || now >= l.endsAt) {
			continue
		}
		if now >= l.endsAt {
			l.Unspent = 0
		}
		ls = append(ls, l)
	}
	return ls
}

// expired reports whether l is no longer needed.
func (l *HolderRecord) expired(now int64) bool {
	return now >= l.endsAt && now-l.AskedAt >= int64(forgetAfter)
}

// Reclaim returns the hits of window to refund, because their holders have been silent for the TTL and their rule has
// Terms.Reclaim. Hits that such a holder spent after its last request and before it gave up are admitted twice.
func (b *Book) Reclaim(now int64, window int64) (credit uint64) {
	for i := range b.records {
		l := &b.records[i]
		if l.Window != window || l.reclaimAfter == 0 || l.Unspent == 0 {
			continue
		}
		if now-l.AskedAt < int64(l.reclaimAfter+reclaimMargin) {
			continue
		}
		credit = limit.SaturatingAdd(credit, l.takeBack())
	}
	return credit
}

// ReclaimFailed returns the hits of window to refund, because their holders are not live and their rule has
// Terms.ReclaimCrash. Hits that such a holder has spent since its last request are admitted twice. So are those that it
// still spends if it is only cut off: at most the hits that ReclaimFailed returns.
func (b *Book) ReclaimFailed(window int64, isLive func(Holder) bool) (credit uint64) {
	for i := range b.records {
		l := &b.records[i]
		if l.Window == window && l.reclaimCrash && l.Unspent > 0 && !isLive(Holder{l.Holder, l.BootID}) {
			credit = limit.SaturatingAdd(credit, l.takeBack())
		}
	}
	return credit
}

// takeBack records that the holder has lost its unspent hits, and returns how many of them are to be refunded.
func (l *HolderRecord) takeBack() uint64 {
	n := min(l.Unspent, l.lent)
	l.Granted, l.lent, l.Unspent, l.exact = l.Granted-min(l.Granted, n), l.lent-n, 0, false
	return n
}

// TakeViolations returns the requests refused since the last call, by condition.
func (b *Book) TakeViolations() Violations {
	v := b.violations
	b.violations = Violations{}
	return v
}

// recordOf returns the record of a holder, which it creates if necessary, or nil if there are too many.
func (b *Book) recordOf(now int64, holder ring.ID) *HolderRecord {
	i, found := b.find(holder)
	if !found {
		if len(b.records) >= maxHolders {
			b.records = slices.DeleteFunc(b.records, func(l HolderRecord) bool { return l.expired(now) })
			if i, _ = b.find(holder); len(b.records) >= maxHolders {
				return nil
			}
		}
		b.records = slices.Insert(b.records, i, HolderRecord{Holder: holder})
	}
	return &b.records[i]
}

func (b *Book) find(holder ring.ID) (int, bool) {
	return slices.BinarySearchFunc(b.records, holder, func(l HolderRecord, id ring.ID) int {
		return cmp.Compare(l.Holder, id)
	})
}
