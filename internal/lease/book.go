package lease

import (
	"cmp"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/ring"
)

// maxHolders is how many holders a Book knows; to more nothing is lent, and they ask question by question.
const maxHolders = 256

const (
	recentlyAsked = 3 * time.Second // a busy holder says something every second, so one silent for so long has no demand
	forgetAfter   = 10 * time.Second
	// Slice is how long what was lent of a bucket lives at its holder, by the holder's clock from its request on.
	Slice = 100 * time.Millisecond
	// reclaimMargin is how much later than its holder the grantor takes a silent holder's balance for given up.
	reclaimMargin = time.Second
)

// HolderRecord is what a grantor knows of one holder of a key. It is kept until the holder has been silent for a while.
type HolderRecord struct {
	Holder  ring.ID
	BootID  uint64 // the holder's boot
	Seq     uint64 // of the newest request seen
	Window  int64  // that the amounts are of
	Granted uint64 // what the holder has of Window when the newest grant reaches it
	Unspent uint64 // of these, what may be unspent
	Demand  float64
	Weight  float64
	AskedAt int64 // when the newest request came

	// lent is the part of Granted that this Book had charged, the most that may ever be credited: what a holder says it
	// has from other grantors, or what an old message claims, cannot become a credit.
	lent         uint64
	allowed      uint64        // what Size allowed and Lend has not used
	endsAt       int64         // of Window
	reclaimAfter time.Duration // silent for so long, it has given up; 0: never
	exact        bool          // nothing but this Book's grants can be in Granted
}

// Book is a grantor's account of what it lent of one key. The caller guards it, charges the counter, and drops the Book
// when it stops deciding the key: a Book must have seen every decision since it was new (C4). The zero Book is empty.
type Book struct {
	records    []HolderRecord // in the order of Holder
	window     int64          // the newest
	violations Violations
}

// Receive takes in a request, window being the grantor's present one. What the holder gave back of window, and what was
// granted and lost, is credit: hits to give back to the counter before anything else is decided, counted once. Not ok is
// a request that gets no answer: older than one seen before, against a condition, or of a holder too many.
func (b *Book) Receive(now int64, holder ring.ID, inst uint64, r *GrantRequest, window int64) (credit uint64, ok bool) {
	if window < b.window {
		b.violations[C3]++
		return 0, false
	}
	b.window = window
	l := b.recordOf(now, holder)
	switch {
	case l == nil:
		return 0, false
	case r.Seq <= l.Seq && (l.BootID == inst || now-l.AskedAt < int64(forgetAfter)): // C2; or of the boot before
		return 0, false
	case l.BootID != inst:
		*l = HolderRecord{Holder: holder, BootID: inst, Window: window}
	case l.Window != window:
		*l = HolderRecord{Holder: holder, BootID: inst, Window: window, exact: l.Window != 0}
	}
	l.Seq, l.AskedAt = r.Seq, now
	l.Demand, l.Weight = float64(r.Demand)/1000, float64(max(1, r.Terms.Weight))
	l.reclaimAfter, l.allowed = 0, 0
	if r.Terms.Reclaim {
		l.reclaimAfter = r.Terms.ttl()
	}
	return b.reconcile(now, l, r)
}

// reconcile makes the line what the holder says, and credits the difference (C2, C4).
func (b *Book) reconcile(now int64, l *HolderRecord, r *GrantRequest) (credit uint64, ok bool) {
	have, left := r.Have, r.Left
	switch {
	case r.Window > l.Window: // of another grantor with a faster clock: here is nothing for it yet
		return 0, false
	case r.Left > r.Have:
		b.violations[C2]++
		return 0, false
	case r.Window < l.Window:
		have, left = 0, 0
		if r.Window == 0 { // a holder that has forgotten may have spent all that it was granted
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
	if r.Rule.Algorithm.Bucket() { // the slice before can be spent until this one is there
		l.Unspent, l.endsAt = r.Left, now+2*int64(Slice)
	}
	return credit, true
}

// Grant notes that n hits were charged for the holder's newest request (C1), and returns what it has of window with them,
// for the Grant. A Lend that no Size allowed is refused with 0, which no holder accepts once it has something.
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
	l.allowed = 0 // one grant a request
	l.Granted, l.lent, l.Unspent = limit.SaturatingAdd(l.Granted, n), limit.SaturatingAdd(l.lent, n), limit.SaturatingAdd(l.Unspent, n)
	return l.Granted
}

// Unspent is what holders may have of the present window and have not spent.
func (b *Book) Unspent(now int64) (n uint64) {
	for i := range b.records {
		if l := &b.records[i]; now < l.endsAt {
			n = limit.SaturatingAdd(n, l.Unspent)
		}
	}
	return n
}

// Demand is the hits a second that holders were offered of late, denials included.
func (b *Book) Demand(now int64) (perSecond float64) {
	for i := range b.records {
		if l := &b.records[i]; now-l.AskedAt < int64(recentlyAsked) {
			perSecond += l.Demand
		}
	}
	return perSecond
}

// Holders are those who asked of late or may have something, in the order of their names.
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

// Idle says that nothing is out and nobody has asked for a while: the Book may be dropped.
func (b *Book) Idle(now int64) bool {
	return !slices.ContainsFunc(b.records, func(l HolderRecord) bool { return !l.expired(now) })
}

// expired says that l need not be known any more.
func (l *HolderRecord) expired(now int64) bool {
	return now >= l.endsAt && now-l.AskedAt >= int64(forgetAfter)
}

// Reclaim is what holders of rules with Knobs.Reclaim have given up by being silent for the TTL: hits of window to give
// back to the counter. What such a holder spent after its last request and before it gave up is admitted twice.
func (b *Book) Reclaim(now int64, window int64) (credit uint64) {
	for i := range b.records {
		l := &b.records[i]
		if l.Window != window || l.reclaimAfter == 0 || l.Unspent == 0 || now-l.AskedAt < int64(l.reclaimAfter+reclaimMargin) {
			continue
		}
		n := min(l.Unspent, l.lent)
		l.Granted, l.lent, l.Unspent, l.exact = l.Granted-min(l.Granted, n), l.lent-n, 0, false
		credit = limit.SaturatingAdd(credit, n)
	}
	return credit
}

// TakeViolations is what was refused since the last call, by the condition it was against.
func (b *Book) TakeViolations() Violations {
	v := b.violations
	b.violations = Violations{}
	return v
}

// recordOf is the holder's line, made if there is none; nil if there are too many.
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
	return slices.BinarySearchFunc(b.records, holder, func(l HolderRecord, id ring.ID) int { return cmp.Compare(l.Holder, id) })
}
