package owner

import (
	"math/bits"
	"sync/atomic"
)

// entry is one counter. It holds no pointers, so the collector never looks into a table.
type entry struct {
	key     Key
	note    uint64 // by table: owned, the ring position; shared and opened, the admitted part; quoted, when it was said
	end     int64  // when it has no effect any more, Unix nanoseconds
	charged uint64 // see load
	limit   uint32
	more    uint32 // first of its records; 0 is none
	shape   uint16 // the rule it counts by, apart from the limit
	epoch   uint16 // a view in which this member decided the key; 0 is none
	heat    uint16 // how often its key is asked for, see hot.go
	mark    uint16 // 0 is an empty slot, moved one that has left an old array, else the domain's slot + 1, and copyBit
}

const (
	moved       = 0xFFFF
	copyBit     = 1 << 14 // the key is another member's, as far as the ledgers are concerned
	domainSlots = 1024
	minSlots    = 16
	// migrateStep slots leave the old array with every insertion. The new array takes at least half of its old size in
	// insertions before it is full, so the old one is empty long before.
	migrateStep = 16
	oldEpochs   = 1 << 14
)

// over says that e has no effect any more, also on members whose clocks are behind.
func (e *entry) over(now int64) bool { return e.end+int64(ahead) <= now }

// domain is the slot of e's domain.
func (e *entry) domain() uint16 { return e.mark&^copyBit - 1 }

// ledger counts the keys of all shards' tables of one kind against their cap, and each domain's against its quota.
type ledger struct {
	keys    atomic.Int64
	max     int64
	quota   int64
	domains *[domainSlots]atomic.Int64 // nil without quotas
}

func (l *ledger) reserve(domain uint16) bool {
	if l.keys.Add(1) > l.max {
		l.keys.Add(-1)
		return false
	}
	if l.domains != nil && l.domains[domain].Add(1) > l.quota {
		l.domains[domain].Add(-1)
		l.keys.Add(-1)
		return false
	}
	return true
}

func (l *ledger) release(domain uint16) {
	l.keys.Add(-1)
	if l.domains != nil {
		l.domains[domain].Add(-1)
	}
}

// table is one shard's open-addressing table of one kind of counters: linear probing, at most three quarters full. It
// grows and shrinks a few slots at a time: while old is set, entries move from it to slots. Guarded by the shard's mu.
type table struct {
	slots  []entry
	old    []entry
	cursor int // next slot of old to move
	swept  int // next slot of slots to sweep
	n      int // live entries in both arrays
	seed   [2]uint64
	ledger *ledger
	copies *ledger // of entries with copyBit
	slab   *slab
	turn   uint32 // rises when entries move other than from old to slots
	held   int64  // not swept before then: a transfer is reading it
}

// forget gives back what e holds elsewhere. Its slot stays.
func (t *table) forget(e *entry) {
	if e.mark&copyBit != 0 {
		t.copies.release(0)
	} else {
		t.ledger.release(e.domain())
	}
	if e.more != 0 {
		t.slab.drop(e.more)
		e.more = 0
	}
	t.n--
}

// reserve makes room for one key.
func (t *table) reserve(domain uint16, copied bool) bool {
	if copied {
		return t.copies.reserve(0)
	}
	return t.ledger.reserve(domain)
}

// adopt moves e from the copies to what this member owns, if its quota allows.
func (t *table) adopt(e *entry) {
	if d := e.domain(); e.mark&copyBit != 0 && t.ledger.reserve(d) {
		t.copies.release(0)
		e.mark = d + 1
	}
}

// disown does the opposite.
func (t *table) disown(e *entry) {
	if d := e.domain(); e.mark&copyBit == 0 && t.copies.reserve(0) {
		t.ledger.release(d)
		e.mark |= copyBit
	}
}

// hash places key; the seed is secret, so nobody can aim at one chain or shard.
func hash(seed [2]uint64, k Key) uint64 {
	hi, lo := bits.Mul64(k[0]^seed[0], k[1]^seed[1])
	return finish(hi ^ lo ^ k[0])
}

func finish(h uint64) uint64 {
	h ^= h >> 32
	h *= 0x9E3779B97F4A7C15
	return h ^ h>>29
}

// find is the entry of key k, whose hash is h; nil if there is none. It stays valid until the table is next changed.
func (t *table) find(h uint64, k Key) *entry {
	if t.n == 0 {
		return nil
	}
	if e := probe(t.slots, h, k); e != nil {
		return e
	}
	if t.old == nil {
		return nil
	}
	e := probe(t.old, h, k)
	if e == nil {
		return nil
	}
	to := t.place(h, e)
	e.mark = moved
	return to
}

func probe(slots []entry, h uint64, k Key) *entry {
	mask := uint64(len(slots) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		e := &slots[i]
		if e.mark == 0 {
			return nil
		}
		if e.key == k && e.mark != moved {
			return e
		}
	}
}

// place copies e into the first empty slot of its chain.
func (t *table) place(h uint64, e *entry) *entry {
	mask := uint64(len(t.slots) - 1)
	i := h & mask
	for t.slots[i].mark != 0 {
		i = (i + 1) & mask
	}
	t.slots[i] = *e
	return &t.slots[i]
}

// insert makes an entry for key k, which must not be there. It takes the place of an expired entry of the same chain
// if there is one, else a new one if cap and quota allow; otherwise it is nil.
func (t *table) insert(now int64, h uint64, k Key, domain uint16, copied bool) *entry {
	fresh := entry{key: k, mark: domain + 1}
	if copied {
		fresh.mark |= copyBit
	}
	if e := t.expired(now, h); e != nil {
		t.forget(e)
		if !t.reserve(domain, copied) {
			t.drop(e)
			return nil
		}
		t.n++
		*e = fresh
		return e
	}
	if !t.reserve(domain, copied) {
		if t.sweep(now, 0, migrateStep/2); !t.reserve(domain, copied) {
			return nil
		}
	}
	t.grow()
	t.migrate(now, migrateStep)
	t.n++
	return t.place(h, &fresh)
}

// expired is the first entry of h's chain whose window has passed.
func (t *table) expired(now int64, h uint64) *entry {
	if len(t.slots) == 0 {
		return nil
	}
	mask := uint64(len(t.slots) - 1)
	for i := h & mask; t.slots[i].mark != 0; i = (i + 1) & mask {
		if t.slots[i].over(now) {
			return &t.slots[i]
		}
	}
	return nil
}

func (t *table) grow() {
	switch {
	case len(t.slots) == 0:
		t.slots = make([]entry, minSlots)
	case t.old == nil && t.n >= len(t.slots)/4*3:
		t.resize(2 * len(t.slots))
	}
}

func (t *table) resize(size int) {
	t.turn++
	t.old, t.slots = t.slots, make([]entry, size)
	t.cursor, t.swept = 0, 0
}

// migrate moves up to step slots out of the old array, leaving expired entries behind.
func (t *table) migrate(now int64, step int) {
	for ; t.old != nil && step > 0; step-- {
		if t.cursor == len(t.old) {
			t.old = nil
			return
		}
		e := &t.old[t.cursor]
		t.cursor++
		if e.mark == 0 || e.mark == moved {
			continue
		}
		if e.over(now) {
			t.forget(e)
		} else {
			t.place(hash(t.seed, e.key), e)
		}
		e.mark = moved // an emptied slot would cut the chains through it
	}
}

// sweep visits up to step slots, drops the expired entries among them, and forgets epochs long before the given one (0
// keeps them), so that a number used again after many views cannot be mistaken for the old one.
func (t *table) sweep(now int64, epoch uint16, step int) {
	t.migrate(now, step)
	if now < t.held {
		return
	}
	for ; step > 0 && len(t.slots) > 0; step-- {
		if t.swept >= len(t.slots) {
			t.swept = 0
			return
		}
		e := &t.slots[t.swept]
		if e.mark != 0 && e.over(now) {
			t.forget(e)
			t.drop(e)
			continue // what moved up is looked at next
		}
		if epoch != 0 && epoch-e.epoch > oldEpochs {
			e.epoch = 0
		}
		t.swept++
	}
}

// shrink starts to halve a table that is nearly empty, and lets an empty one go.
func (t *table) shrink(now int64) {
	switch {
	case now < t.held:
	case t.n == 0:
		t.slots, t.old, t.cursor, t.swept = nil, nil, 0, 0
		t.turn++
	case t.old == nil && len(t.slots) > 4*minSlots && t.n < len(t.slots)/8:
		t.resize(len(t.slots) / 2)
	}
}

// drop empties e's slot and closes the gap in its chain.
func (t *table) drop(e *entry) {
	t.turn++
	mask := uint64(len(t.slots) - 1)
	gap := hash(t.seed, e.key) & mask
	for &t.slots[gap] != e {
		gap = (gap + 1) & mask
	}
	for i := (gap + 1) & mask; t.slots[i].mark != 0; i = (i + 1) & mask {
		home := hash(t.seed, t.slots[i].key) & mask
		if (i-home)&mask >= (i-gap)&mask {
			t.slots[gap] = t.slots[i]
			gap = i
		}
	}
	t.slots[gap] = entry{}
}

// remove forgets key k.
func (t *table) remove(h uint64, k Key) {
	if e := t.find(h, k); e != nil {
		t.forget(e)
		t.drop(e)
	}
}
