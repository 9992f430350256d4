package peer

// sentGroup identifies the group of a call that waits for a reply.
type sentGroup struct {
	call  *call
	gen   uint64
	group int
	sent  int64 // by the monotonic clock
	ahead int   // groups without a reply when it was sent
}

// sentGroups assigns IDs to the groups of one stream that wait for a reply. IDs are not reused: they contain the
// generation of their slot, so a late reply never matches the slot's next group. The zero value is empty.
type sentGroups struct {
	slots []sentSlot
	free  []uint32
}

type sentSlot struct {
	sentGroup
	gen uint32
}

func (t *sentGroups) len() int { return len(t.slots) - len(t.free) }

// put adds a group and returns its ID.
func (t *sentGroups) put(k sentGroup) (id uint64) {
	var i uint32
	if n := len(t.free); n > 0 {
		i, t.free = t.free[n-1], t.free[:n-1]
	} else {
		i = uint32(len(t.slots))
		t.slots = append(t.slots, sentSlot{})
	}
	s := &t.slots[i]
	s.gen++
	s.sentGroup = k
	return uint64(s.gen)<<32 | uint64(i)
}

// take removes and returns a group, if it is there.
func (t *sentGroups) take(id uint64) (sentGroup, bool) {
	i := uint32(id)
	if uint64(i) >= uint64(len(t.slots)) {
		return sentGroup{}, false
	}
	s := &t.slots[i]
	if s.call == nil || s.gen != uint32(id>>32) {
		return sentGroup{}, false
	}
	k := s.sentGroup
	s.sentGroup = sentGroup{}
	t.free = append(t.free, i)
	return k, true
}

// drain removes and returns all groups.
func (t *sentGroups) drain() []sentGroup {
	var out []sentGroup
	for i := range t.slots {
		if s := &t.slots[i]; s.call != nil {
			out = append(out, s.sentGroup)
			s.sentGroup = sentGroup{}
			t.free = append(t.free, uint32(i))
		}
	}
	return out
}
