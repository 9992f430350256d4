// Package lending lends parts of limits to other members, and spends what others lend.
//
// A Leases has two sides. For keys that this member owns, it finds hot keys (RecordHit), grants leases (Grant) and
// notifies holders when a limit is nearly exhausted (Update). For keys of other members, it decides from leases
// (Decide) or, for approximate rules, from this member's own copy of the counter, and requests more in time. It also
// holds the readable names of all these keys (Name).
//
// One Leases holds the keys of one shard of the counters; the lock of the owner's shard guards it. A Lender holds what
// all of them share; see there for its locks. The member itself implements Owner. Messages are added to an Outbox. The
// rules of one lease, for its grantor (lease.Book) and its holder (lease.Holding), are in package lease.
package lending
