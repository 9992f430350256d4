package lending

import (
	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

// Key is the digest that identifies a counter.
type Key = counter.Key

// maxItems is the most items of one message about leases.
const maxItems = 512

// Leases holds the leases of the keys of one shard: those that this member has lent, and those that it holds.
type Leases struct {
	lender   *Lender
	owner    Owner
	counters *counter.Shard
	view     *handoff.OwnershipView
	state    limit.State // scratch

	lent     map[Key]*lentKey   // keys of this member of which parts are lent
	notices  []Key              // lent keys with a notice for their holders
	held     map[Key]*heldLease // leases of other members' keys
	requests []Key              // held leases with a request for their grantors
	names    map[Key]*name
	hot      hotStats
	audits   auditQueue
	stats    LeaseStats // the fields that only increase
}

// Owner is the member whose limits a Leases lends. The shard is locked when its methods are called.
type Owner interface {
	// Charge decides c and, if it has hits, charges it.
	Charge(c *Charge)
	// Refund refunds the hits of c, which were charged in the given window. It reports whether there was room for it.
	Refund(c *Charge, window int64) bool
	// AwaitReplication reports whether the grant for c, which is charged, may be sent now. If the successor has not
	// confirmed the charge, the owner keeps the grant and sends it later, or never.
	AwaitReplication(c *Charge, g *PendingGrant) bool
	// Merge merges what another member has recorded of a counter.
	Merge(now int64, c *protocol.CounterRecord)
	// RecordReclaim records that hits of holders were refunded, which may have spent them in the window that ends at end.
	RecordReclaim(now, end int64, hits uint64)
	// RequestFlush makes the owner call Flush: at once if urgent, or else soon.
	RequestFlush(urgent bool)
}

// Charge is hits of a lease that the owner charges to a key's counter.
type Charge struct {
	counter.Ref
	Partition policy.PartitionChoice
	Audit     bool           // the rule has audit logs
	Hits      uint64         // 0: decide only
	Entry     *counter.Owned // the key's counter; nil if there is none. Charge sets it.
	Overflow  bool           // Charge has used a sketch
	limit.Decision
}

// PendingGrant is a grant for a member.
type PendingGrant struct {
	To    ring.ID
	Grant lease.Grant
}

// Outbox collects what a member has to send and to log about leases.
type Outbox struct {
	Leases []lease.Delivery
	Audits []Audit
	// LostAudits is the number of Audits that found no room before those in Audits.
	LostAudits uint64
}

// Send adds g to o.
func (g *PendingGrant) Send(o *Outbox) {
	m := o.message(g.To, lease.Lend)
	m.Grants = append(m.Grants, g.Grant)
}

// SendNotice adds a notice for a member to o.
func (o *Outbox) SendNotice(to ring.ID, n lease.Notice) {
	m := o.message(to, lease.Notify)
	m.Notices = append(m.Notices, n)
}

// message returns a message of that kind to a member with room for an item. It adds one if there is none.
func (o *Outbox) message(to ring.ID, k lease.BatchKind) *lease.Batch {
	for i := range o.Leases {
		if m := &o.Leases[i].Batch; o.Leases[i].To == to && m.Kind == k && items(m) < maxItems {
			return m
		}
	}
	o.Leases = append(o.Leases, lease.Delivery{To: to, Batch: lease.Batch{Kind: k}})
	return &o.Leases[len(o.Leases)-1].Batch
}

// Acceptable reports whether a message has at most as many items as members send.
func Acceptable(m *lease.Batch) bool { return items(m) <= maxItems }

func items(m *lease.Batch) int { return len(m.Requests) + len(m.Grants) + len(m.Notices) }

// Init makes l the leases of the keys in counters. It is called once, before any other method.
func (l *Leases) Init(lender *Lender, counters *counter.Shard, owner Owner) {
	l.lender, l.counters, l.owner = lender, counters, owner
}

// SetView sets the view that the shard uses.
func (l *Leases) SetView(v *handoff.OwnershipView) { l.view = v }

// Tick does what is due at time now: it reclaims what silent holders have lost the right to spend, queues the requests
// that are due, and drops what is not used any more.
func (l *Leases) Tick(now int64) {
	if len(l.lent)+len(l.held)+len(l.names) > 0 {
		l.tickLent(now)
		l.tickHeld(now)
		l.forgetNames(now)
	}
}

// Flush sends the queued requests for leases and notices to holders.
func (l *Leases) Flush(now int64, out *Outbox) {
	if len(l.requests) > 0 {
		l.sendRequests(now, out)
	}
	if len(l.notices) > 0 {
		l.sendNotices(now, out)
	}
}

// ClockStepped drops what depends on earlier readings of the clock, which has stepped to now.
func (l *Leases) ClockStepped(now int64) {
	clear(l.lent)
	for _, held := range l.held {
		held.Drop(now)
		held.drift.reporting, held.drift.sentAt, held.drift.syncedAt, held.drift.askedAt = false, now, now, now
	}
}

// saturatingSub returns a - b, at least 0.
func saturatingSub(a, b uint64) uint64 { return a - min(a, b) }
