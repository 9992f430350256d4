package counter

// OwnedTable is TableOwned of one shard.
type OwnedTable struct{ table }

// Find returns the counter of key k, whose hash is h, or nil. It stays valid until the table is next changed.
func (t *OwnedTable) Find(h uint64, k Key) *Owned { return (*Owned)(t.find(h, k)) }

// Adopt moves e from the copies to what this member owns, if its domain's quota allows.
func (t *OwnedTable) Adopt(e *Owned) { t.adopt((*entry)(e)) }

// Disown moves e from what this member owns to the copies, if there is room.
func (t *OwnedTable) Disown(e *Owned) { t.disown((*entry)(e)) }

// SetSurplus sets which counters a sweep may drop before their end; with nil it drops none.
func (t *OwnedTable) SetSurplus(surplus func(*Owned) bool) {
	if t.surplus = nil; surplus != nil {
		t.surplus = func(e *entry) bool { return surplus((*Owned)(e)) }
	}
}

// Each calls f for the counters in n slots from slot at on. It reports whether there are more slots.
func (t *OwnedTable) Each(at, n int, f func(*Owned)) (more bool) {
	visit := func(e *entry) { f((*Owned)(e)) }
	t.slots.each(at, at+n, visit)
	t.old.each(at, at+n, visit)
	return at+n < max(t.slots.size, t.old.size)
}

// Cursor is a position in a scan of an OwnedTable. The zero value is the beginning.
type Cursor struct {
	begun bool
	old   bool   // at is in the table's old array
	at    int    // the next slot
	moves uint32 // of the table, when the scan began
}

// Scan calls f for the counters in the next n slots, or until f returns false. Entries are not swept before hold. Scan
// reports whether it has come to the end. A scan misses no counter that is there from its beginning to its end, and may
// visit one twice.
func (t *OwnedTable) Scan(c *Cursor, n int, hold int64, f func(*Owned) bool) (end bool) {
	// Entries only ever move from the old array to the new one, so reading the old one first misses none; when they have
	// moved otherwise, the scan begins again.
	if !c.begun || c.moves != t.moves {
		*c = Cursor{begun: true, old: true, moves: t.moves}
	}
	t.held = hold
	if c.old && t.old.size == 0 {
		c.old, c.at = false, 0
	}
	slots := &t.slots
	if c.old {
		slots = &t.old
	}
	for last := min(slots.size, c.at+n); c.at < last; {
		e := slots.occupied(c.at)
		c.at++
		if e != nil && !f((*Owned)(e)) {
			break
		}
	}
	switch {
	case c.at < slots.size:
	case c.old:
		c.old, c.at = false, 0
	default:
		t.held = 0
		*c = Cursor{}
		return true
	}
	return false
}

// LocalTable is TableShare or TableOpen of one shard.
type LocalTable struct{ table }

// Find returns the counter of key k, whose hash is h, or nil. It stays valid until the table is next changed.
func (t *LocalTable) Find(h uint64, k Key) *Local { return (*Local)(t.find(h, k)) }

// QuotaTable is TableQuota of one shard.
type QuotaTable struct{ table }

// Find returns the entry of key k, whose hash is h, or nil. It stays valid until the table is next changed.
func (t *QuotaTable) Find(h uint64, k Key) *Quota { return (*Quota)(t.find(h, k)) }

// Insert adds an entry for r's key, which must not be there. It returns nil if there is no room.
func (t *QuotaTable) Insert(r Ref) *Quota { return (*Quota)(t.insert(&r, false)) }

// DenyTable is TableDeny of one shard.
type DenyTable struct{ table }

// Find returns the entry of key k, whose hash is h, or nil. It stays valid until the table is next changed.
func (t *DenyTable) Find(h uint64, k Key) *Denied { return (*Denied)(t.find(h, k)) }

// Insert adds an entry for r's key, which must not be there. It returns nil if there is no room.
func (t *DenyTable) Insert(r Ref) *Denied { return (*Denied)(t.insert(&r, false)) }
