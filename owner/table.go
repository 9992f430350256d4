package owner

import (
	"math"
	"math/bits"
	"sync/atomic"
)

const (
	minSlots = 16
	// A table that is mostFull grows to firstFull, so that its slots take at most 64 bytes a key. One that is less than
	// leastFull shrinks to firstFull, at most by half at a time.
	mostFull  = 27.0 / 32
	firstFull = 3.0 / 4
	leastFull = 1.0 / 2
	// migrateStep slots leave the old array with every insertion. The new one has room for more insertions than a tenth of the
	// old one's slots, so the old one is empty long before.
	migrateStep = 16
	oldEpochs   = 1 << 14
)

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

// table is one shard's open-addressing table of one kind of counters. It grows and shrinks a few slots at a time: while
// old has slots, entries move from it to slots in the order of their homes, beginning after an empty slot. So a key is in
// slots if the cursor has passed its home in old, unless its chain goes on at the cursor. Guarded by the shard's mu.
type table struct {
	slots   pages
	old     pages
	base    int     // first slot of old that moved
	moved   int     // slots of old, from base on, that are empty for good; may exceed its size
	spare   []entry // an empty page
	swept   int     // next slot of slots to sweep
	n       int     // live entries in both arrays
	seed    [2]uint64
	ledger  *ledger
	copies  *ledger // of entries with copyBit
	slab    *slab
	surplus func(*entry) bool // says of an entry that it may be dropped before its end; nil: none may
	moves   uint32            // rises when entries move other than from old to slots
	held    int64             // not swept before then: a transfer is reading it
}

// discard gives back what e holds elsewhere. Its slot stays.
func (t *table) discard(e *entry) {
	if e.copied() {
		t.copies.release(0)
	} else {
		t.ledger.release(e.domain())
	}
	if e.more != 0 {
		t.slab.drop(e.more, e.domain())
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
	if e.copied() && t.ledger.reserve(e.domain()) {
		t.copies.release(0)
		e.word &^= copyBit
	}
}

// disown does the opposite.
func (t *table) disown(e *entry) {
	if !e.copied() && t.copies.reserve(0) {
		t.ledger.release(e.domain())
		e.word |= copyBit
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
	if t.old.size == 0 {
		return t.slots.probe(t.slots.home(h), k)
	}
	p, i := t.chain(h)
	if e := p.probe(i, k); e != nil || p == &t.old {
		return e
	}
	return t.old.probe(t.cursor(), k)
}

// chain is where an entry with hash h belongs now.
func (t *table) chain(h uint64) (p *pages, from int) {
	if t.old.size > 0 {
		if i := t.old.home(h); (i-t.base+t.old.size)%t.old.size >= t.moved {
			return &t.old, i
		}
	}
	return &t.slots, t.slots.home(h)
}

// cursor is the next slot of old to move.
func (t *table) cursor() int { return (t.base + t.moved) % t.old.size }

// insert makes an entry for key k, which must not be there. It takes the place of an expired entry of the same chain
// if there is one, else a new one if cap and quota allow; otherwise it is nil.
func (t *table) insert(now int64, h uint64, k Key, domain uint16, copied bool) *entry {
	fresh := newEntry(k, domain, copied)
	if p, i := t.firstExpired(now, h); p != nil {
		e := p.at(i)
		t.discard(e)
		if !t.reserve(domain, copied) {
			t.empty(p, i)
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
	p, i := t.chain(h)
	return p.place(i, &fresh, &t.spare)
}

// firstExpired is the first slot of h's chain whose entry's window has passed; nil if there is none.
func (t *table) firstExpired(now int64, h uint64) (*pages, int) {
	if t.slots.size == 0 {
		return nil, 0
	}
	p, i := t.chain(h)
	for e := p.occupied(i); e != nil; e = p.occupied(i) {
		if e.expired(now) {
			return p, i
		}
		i = p.next(i)
	}
	return nil, 0
}

func (t *table) grow() {
	switch size := t.slots.size; {
	case size == 0:
		t.slots = newPages(minSlots)
	case t.old.size == 0 && float64(t.n) >= mostFull*float64(size):
		t.resize(size + max(minSlots, size/8))
	}
}

func (t *table) resize(size int) {
	t.moves++
	t.old, t.slots = t.slots, newPages(size)
	t.base, t.moved, t.swept = 0, 0, 0
	for t.old.occupied(t.base) != nil {
		t.base++
	}
}

// migrate moves up to step slots out of the old array, leaving expired entries behind.
func (t *table) migrate(now int64, step int) {
	for ; t.old.size > 0 && step > 0; step-- {
		i := t.cursor()
		e := t.old.occupied(i)
		if e == nil && t.moved >= t.old.size {
			t.old, t.spare = pages{}, nil
			return
		}
		if e != nil {
			if e.expired(now) {
				t.discard(e)
			} else {
				t.slots.place(t.slots.home(hash(t.seed, e.key)), e, &t.spare)
			}
			*e = entry{}
		}
		if t.moved++; (i+1)&(pageSlots-1) == 0 {
			if page := t.old.close(i >> slotBits); page != nil {
				t.spare = page
			}
		}
	}
}

// sweep visits about step slots, drops the expired and the surplus entries among them, and forgets epochs long before the given one (0
// keeps them), so that a number used again after many views cannot be mistaken for the old one. It says whether it has
// come to the end of the slots.
func (t *table) sweep(now int64, epoch uint16, step int) (end bool) {
	t.migrate(now, step)
	if now < t.held {
		return true
	}
	for step > 0 && t.swept < t.slots.size {
		n := max(1, t.clean(&t.slots, t.swept, now, epoch))
		step -= n
		t.swept += n
	}
	if end = t.swept >= t.slots.size; end {
		t.swept = 0
	}
	return end
}

// clean drops the expired entries from slot i to the end of its chain, and closes the gaps. It returns how many slots
// it visited: a chain of a full table has about twenty, and one of a million has hardly ever more than a thousand.
func (t *table) clean(p *pages, i int, now int64, epoch uint16) (visited int) {
	gaps := false
	for e := p.occupied(i); e != nil && visited < p.size; e = p.occupied(i) {
		switch {
		case e.expired(now) || t.surplus != nil && t.surplus(e):
			t.discard(e)
			*e = entry{}
			gaps = true
		case gaps:
			e = t.replace(p, e)
		}
		if epoch != 0 && epoch-e.epoch > oldEpochs {
			e.epoch = 0
		}
		visited++
		i = p.next(i)
	}
	if gaps {
		t.moves++
	}
	return visited
}

// replace puts e, in whose chain before it there may be gaps, where it belongs.
func (t *table) replace(p *pages, e *entry) *entry {
	x := *e
	*e = entry{}
	h := hash(t.seed, x.key)
	from := p.home(h)
	if q, _ := t.chain(h); p == &t.old && q != p {
		from = t.cursor()
	}
	return p.place(from, &x, &t.spare)
}

// empty empties slot i and closes the gap in its chain.
func (t *table) empty(p *pages, i int) {
	t.moves++
	*p.at(i) = entry{}
	for i = p.next(i); p.occupied(i) != nil; i = p.next(i) {
		t.replace(p, p.occupied(i))
	}
}

// shrink starts to make a table smaller that is nearly empty, and lets an empty one go.
func (t *table) shrink(now int64) {
	switch size := t.slots.size; {
	case now < t.held:
	case t.n == 0:
		t.slots, t.old, t.spare, t.swept = pages{}, pages{}, nil, 0
		t.moves++
	case t.old.size == 0 && size > 4*minSlots && float64(t.n) < leastFull*float64(size):
		t.resize(max(size/2, int(math.Ceil(float64(t.n)/firstFull))))
	}
}

// remove forgets key k.
func (t *table) remove(h uint64, k Key) {
	e := t.find(h, k)
	if e == nil {
		return
	}
	t.discard(e)
	p, i := t.chain(h)
	if p.probe(i, k) != e {
		p, i = &t.old, t.cursor()
	}
	for p.at(i) != e {
		i = p.next(i)
	}
	t.empty(p, i)
}
