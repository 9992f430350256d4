package peer

// sentGroup is where the answer to a group belongs.
type sentGroup struct {
	call  *call
	gen   uint64
	group int
	sent  int64 // by the monotonic clock
	ahead int   // groups that were out when it was sent
}

// sentGroups numbers the groups that are out on one stream. A number is used once: it holds the slot's generation, so a
// late answer never meets the slot's next group. The zero value is empty.
type sentGroups struct {
	slots []sentSlot
	free  []uint32
}

type sentSlot struct {
	sentGroup
	gen uint32
}

func (t *sentGroups) len() int { return len(t.slots) - len(t.free) }

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

// drain takes all of them.
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
