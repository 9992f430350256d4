// Package counter stores a member's counters: the tables of the keys that it owns or keeps replicas of, the small
// tables of degraded decisions, and the sketches for keys that find no room. It hides the memory layout (48 bytes a
// counter, no pointers) and decides nothing.
//
// The counters are divided into Shards, which their owner guards with one lock each. What shards share, the limits on
// the number of counters and records, is atomic; the sketches have locks of their own.
package counter

import (
	"cmp"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
)

// The number of shards. A mask of shards fits into a uint64.
const (
	ShardBits = 6
	Shards    = 1 << ShardBits
)

// Key is the 128-bit digest that identifies a counter: domain, descriptor and kind of window. It does not depend on the
// limit, so a changed limit finds the same counter.
type Key [2]uint64

// Compare orders keys. It returns a negative number if k is before o, 0 if they are equal, and a positive number else.
func (k Key) Compare(o Key) int { return cmp.Or(cmp.Compare(k[0], o[0]), cmp.Compare(k[1], o[1])) }

// SortedKeys returns the keys of m in ascending order.
func SortedKeys[T any](m map[Key]T) []Key {
	if len(m) == 0 {
		return nil
	}
	keys := make([]Key, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, Key.Compare)
	return keys
}

// Table identifies one table of a Shard.
type Table uint8

// The tables.
const (
	TableOwned Table = iota // what members have charged, for this member's keys and for replicas of others
	TableShare              // charges under the local_share policy
	TableOpen               // charges under the fail_open policy
	TableQuota              // what owners said was left, for the fail_closed policy
	TableDeny               // keys that are above their limit
	Tables                  // the number of tables
)

// Config sets the sizes of a Shared and its Shards.
type Config struct {
	BootID      uint64    // the writer of this boot's charges
	Seed        [2]uint64 // places keys in the tables; secret, so that no client can choose keys that collide
	SketchSeed  [2]uint64 // places keys in the sketches; the same on all members
	MaxKeys     int       // the most counters that this member owns
	DomainQuota int       // the most of them in one domain
	MaxDenied   int       // the most keys in TableDeny
	MaxHolds    int       // the most claims that this member makes; it stores as many of others
	Journal     bool      // counters are written to a journal, so that there is room for twice as many Unwritten as MaxKeys
}

// Shared holds what the shards share: the number of counters and records, and the sketches.
type Shared struct {
	Sketches Sketches

	bootID  uint64
	seed    [2]uint64
	ledgers [Tables]ledger
	copies  ledger // entries of TableOwned that are other members'
	domains [domainSlots]atomic.Int64
	records pool
	claims  *claim.Allowance
}

// New returns a Shared without shards.
func New(c Config) *Shared {
	s := &Shared{bootID: c.BootID, seed: c.Seed}
	for t := range s.ledgers {
		s.ledgers[t].max = int64(max(1, c.MaxKeys/2))
	}
	s.ledgers[TableOwned] = ledger{max: int64(c.MaxKeys), quota: int64(c.DomainQuota), domains: &s.domains}
	s.ledgers[TableDeny].max = int64(c.MaxDenied)
	s.copies.max = int64(2 * c.MaxKeys)
	s.records.init(c)
	s.claims = claim.NewAllowance(max(1, c.MaxHolds), c.Seed)
	s.Sketches.seed = c.SketchSeed
	return s
}

// Claims returns how many claims this member has made and stores for others, settled ones among them.
func (s *Shared) Claims() (own, copies int64) { return s.claims.Len() }

// Len returns the number of counters in a table, over all shards. Replicas do not count.
func (s *Shared) Len(t Table) int { return int(s.ledgers[t].keys.Load()) }

// Copies returns the number of counters that take a place among those of other members.
func (s *Shared) Copies() int { return int(s.copies.keys.Load()) }

// HalfFull reports whether counters or copies take at least half of their places.
func (s *Shared) HalfFull() bool {
	owned := &s.ledgers[TableOwned]
	return s.copies.keys.Load() >= s.copies.max/2 || owned.keys.Load() >= owned.max/2
}

// ShardOf returns the shard of a key whose hash is h.
func ShardOf(h uint64) int { return int(h >> (64 - ShardBits)) }

// Hash returns the hash of k in tables with that seed.
func Hash(seed [2]uint64, k Key) uint64 {
	hi, lo := bits.Mul64(k[0]^seed[0], k[1]^seed[1])
	return Mix(hi ^ lo ^ k[0])
}

// Mix spreads the information in h over all of its bits.
func Mix(h uint64) uint64 {
	h ^= h >> 32
	h *= 0x9E3779B97F4A7C15
	return h ^ h>>29
}

// Ref names the counter that an operation is about.
type Ref struct {
	Key     Key
	Hash    uint64 // of Key in the tables
	RingPos uint64
	Domain  uint64 // hash of the domain
	Table   Table
	Now     int64      // Unix nanoseconds
	Rule    limit.Rule // to charge by: its limit may be a part of the configured one
	Full    limit.Rule // as configured
}

// Shard is one part of all tables. Its owner guards it with a lock.
type Shard struct {
	Owned OwnedTable
	Share LocalTable
	Open  LocalTable
	Quota QuotaTable
	Deny  DenyTable
	// Claims are the charges that may be given back. They outlive their counters.
	Claims claim.Records

	store  *Shared
	bootID uint64
	slab   slab
	shapes []shape // by entry.shape
	seq    uint32  // of the latest Unreplicated
}

// Init makes shard, which must not be copied afterwards, an empty part of the store.
func (s *Shared) Init(shard *Shard) {
	shard.store, shard.bootID, shard.slab.pool = s, s.bootID, &s.records
	shard.Claims.Init(s.claims)
	for i := range Tables {
		t := shard.table(i)
		t.seed, t.ledger, t.copies, t.slab = s.seed, &s.ledgers[i], &s.copies, &shard.slab
	}
}

func (s *Shard) table(t Table) *table {
	switch t {
	case TableShare:
		return &s.Share.table
	case TableOpen:
		return &s.Open.table
	case TableQuota:
		return &s.Quota.table
	case TableDeny:
		return &s.Deny.table
	}
	return &s.Owned.table
}

// Find returns the counter of key k in TableOwned, or nil. It stays valid until the table is next changed.
func (s *Shard) Find(k Key) *Owned { return s.Owned.Find(s.Hash(k), k) }

// Hash returns the hash of k in the tables.
func (s *Shard) Hash(k Key) uint64 { return Hash(s.store.seed, k) }

// Empty reports whether the shard owns and copies nothing, and has no records and claims.
func (s *Shard) Empty() bool { return s.slab.live == 0 && s.Owned.n == 0 && s.Claims.Len() == 0 }

// Sweep visits about step slots of each table, drops the expired entries and the surplus among them, and shrinks tables
// that are nearly empty. It forgets epochs of TableOwned and TableDeny that are long before the given one, so that a
// number that is used again after many views cannot be mistaken for the old one. The result has a bit for each table
// with slots left in this round.
func (s *Shard) Sweep(now int64, epoch uint16, step int) (rest uint) {
	for i := range Tables {
		t := s.table(i)
		if !t.sweep(now, epoch, step) {
			rest |= 1 << i
		}
		t.shrink(now)
	}
	return rest
}

// SweepTable visits about step slots of one table. It reports whether it has come to the end.
func (s *Shard) SweepTable(t Table, now int64, epoch uint16, step int) (end bool) {
	return s.table(t).sweep(now, epoch, step)
}

// Slots returns the number of slots of a table.
func (s *Shard) Slots(t Table) int { return s.table(t).slots.size }
