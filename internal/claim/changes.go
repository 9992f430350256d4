package claim

// changes lists the claims of one key whose latest changes no other member has confirmed. A message to another member
// contains all of them, so a confirmation also confirms what an earlier message, which was lost, contained.
type changes struct{ list []change }

// change is a change of record at. Its seq, which is not 0, follows that of the change before it, whatever its
// key: a late confirmation must not be taken for that of a change after it.
type change struct{ at, seq uint32 }

// until reports whether the change was made no later than the one with number seq.
func (c change) until(seq uint32) bool { return int32(c.seq-seq) <= 0 }

// Change records that c has changed, so that Unconfirmed returns it.
func (t *Records) Change(c *Claim) {
	x := t.changes[c.Key]
	if x == nil {
		if t.changes == nil {
			t.changes = map[[2]uint64]*changes{}
		}
		x = &changes{}
		t.changes[c.Key] = x
	}
	c.word |= changedBit | trackedBit
	t.seq = max(1, t.seq+1)
	x.list = append(x.list, change{t.number(c), t.seq})
}

// number returns the number of c's record.
func (t *Records) number(c *Claim) uint32 {
	i := *t.idSlot(c.ID)
	for t.at(i) != c {
		i = t.at(i).nextID
	}
	return i
}

// HasChanges reports whether a change of a claim of key is not confirmed.
func (t *Records) HasChanges(key [2]uint64) bool { return t.changes[key] != nil }

// Unconfirmed calls f with each claim of key that has changed, the earliest changes first and at most most of them. It
// returns the number to pass to Confirm when another member has these; 0 if there are none. A claim that has changed
// twice may come twice.
func (t *Records) Unconfirmed(key [2]uint64, most int, f func(*Claim)) (seq uint32) {
	x := t.changes[key]
	if x == nil {
		return 0
	}
	for _, i := range x.list[:min(len(x.list), most)] {
		f(t.at(i.at))
		seq = i.seq
	}
	return seq
}

// Confirm records that another member has the changes that Unconfirmed returned with seq, and calls f with each claim
// that is Settling and has not changed since. f must not add or remove claims.
func (t *Records) Confirm(key [2]uint64, seq uint32, f func(*Claim)) {
	x := t.changes[key]
	if x == nil {
		return
	}
	done, kept := t.split(x, seq)
	if len(kept) == 0 {
		delete(t.changes, key)
	}
	x.list = kept
	for _, i := range done {
		if c := t.at(i.at); c.Tracked() && !c.Changed() && c.State() == Settling {
			f(c)
		}
	}
}

// split divides x's list into what was confirmed with seq, and what was not, and sets the bits of the claims.
func (t *Records) split(x *changes, seq uint32) (done, kept []change) {
	for _, i := range x.list {
		if i.until(seq) {
			done = append(done, i)
			t.at(i.at).word &^= changedBit
		} else {
			kept = append(kept, i)
		}
	}
	for _, i := range kept {
		t.at(i.at).word |= changedBit
	}
	return done, kept
}

// forget drops record at, which is removed, from the changes of key.
func (t *Records) forget(key [2]uint64, at uint32) {
	x := t.changes[key]
	if x == nil {
		return
	}
	kept := x.list[:0]
	for _, i := range x.list {
		if i.at != at {
			kept = append(kept, i)
		}
	}
	if x.list = kept; len(kept) == 0 {
		delete(t.changes, key)
	}
}
