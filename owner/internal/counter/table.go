package counter

import (
	"math"
	"unsafe"
)

const (
	minSlots = 16
	// A table that is more than mostFull grows to firstFull, so its slots take at most 64 bytes a key. One that is less
	// than leastFull shrinks to firstFull, at most by half at a time.
	mostFull  = 27.0 / 32
	firstFull = 3.0 / 4
	leastFull = 1.0 / 2
	// migrateStep slots of the old array are emptied with every insertion. The new array has room for more insertions
	// than a tenth of the old one's slots, so the old one is empty long before the new one is full.
	migrateStep = 16
	oldEpochs   = 1 << 14
)

// table is an open-addressing hash table. It grows and shrinks a few slots at a time: while old has slots, entries move
// from it to slots in the order of their homes, beginning after an empty slot. So a key is in slots if the cursor has
// passed its home in old, unless its chain continues at the cursor.
type table struct {
	slots   pages
	old     pages
	base    int     // slot of old that moved first
	moved   int     // slots of old, from base on, that stay empty; may exceed its size
	spare   []entry // an empty page
	swept   int     // next slot of slots to sweep
	n       int     // live entries in both arrays
	seed    [2]uint64
	ledger  *ledger
	copies  *ledger // counts the entries with copyBit
	slab    *slab
	surplus func(*entry) bool // reports whether an entry may be dropped before its end; nil if none may
	moves   uint32            // increases when entries move other than from old to slots
	held    int64             // not swept before that time, because a scan reads it
}

// discard releases the key and the records of e. Its slot stays.
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

// reserve takes room for one key.
func (t *table) reserve(domain uint16, copied bool) bool {
	if copied {
		return t.copies.reserve(0)
	}
	return t.ledger.reserve(domain)
}

// adopt moves e from the copies to the owned keys, if the quota of its domain allows.
func (t *table) adopt(e *entry) {
	if e.copied() && t.ledger.reserve(e.domain()) {
		t.copies.release(0)
		e.word &^= copyBit
	}
}

// disown moves e from the owned keys to the copies, if there is room.
func (t *table) disown(e *entry) {
	if !e.copied() && t.copies.reserve(0) {
		t.ledger.release(e.domain())
		e.word |= copyBit
	}
}

// find returns the entry of key k, whose hash is h, or nil. It stays valid until the table is next changed.
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

// chain returns where the search for an entry with hash h begins now.
func (t *table) chain(h uint64) (p *pages, from int) {
	if t.old.size > 0 {
		if i := t.old.home(h); (i-t.base+t.old.size)%t.old.size >= t.moved {
			return &t.old, i
		}
	}
	return &t.slots, t.slots.home(h)
}

// cursor returns the slot of old that moves next.
func (t *table) cursor() int { return (t.base + t.moved) % t.old.size }

// insert adds an entry for r's key, which must not be there. The entry replaces an expired one of the same chain if
// there is one. insert returns nil if the number of keys or the domain's quota does not allow another.
func (t *table) insert(r *Ref, copied bool) *entry {
	now, h, domain := r.Now, r.Hash, uint16(r.Domain%domainSlots)
	fresh := newEntry(r.Key, domain, copied)
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

// firstExpired returns the first slot of h's chain that holds an expired entry, or nil.
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

// migrate empties up to step slots of the old array. It drops expired entries and moves the others to the new array.
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
				t.slots.place(t.slots.home(Hash(t.seed, e.key)), e, &t.spare)
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

// sweep visits about step slots, drops the expired and the surplus entries among them, and clears epochs that are long
// before the given one; 0 keeps them all. It reports whether it has come to the end of the slots.
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

// clean drops the expired and surplus entries from slot i to the end of its chain, and closes the gaps. It returns the
// number of slots it visited: a chain of a full table has about twenty, and hardly any has more than a thousand.
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

// replace moves e, which may have gaps before it in its chain, to where it belongs.
func (t *table) replace(p *pages, e *entry) *entry {
	x := *e
	*e = entry{}
	h := Hash(t.seed, x.key)
	from := p.home(h)
	if q, _ := t.chain(h); p == &t.old && q != p {
		from = t.cursor()
	}
	return p.place(from, &x, &t.spare)
}

// empty clears slot i and closes the gap in its chain.
func (t *table) empty(p *pages, i int) {
	t.moves++
	*p.at(i) = entry{}
	for i = p.next(i); p.occupied(i) != nil; i = p.next(i) {
		t.replace(p, p.occupied(i))
	}
}

// shrink begins to make a nearly empty table smaller, and frees an empty one.
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

// Remove drops the entry of key k, whose hash is h, if there is one.
func (t *table) Remove(h uint64, k Key) {
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

// Len returns the number of entries.
func (t *table) Len() int { return t.n }

// Bytes returns the memory of the slots.
func (t *table) Bytes() (n int) {
	for _, p := range [][][]entry{t.slots.page, t.old.page, {t.spare}} {
		for _, page := range p {
			n += len(page) * int(unsafe.Sizeof(entry{}))
		}
	}
	return n
}
