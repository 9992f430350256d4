package federation

// homeParts is how many parts the region with the highest weight has in the choice of homes. Weights are rounded up to
// such parts.
const homeParts = 64

// Homes chooses the region that coordinates a key, of a layout whose coordinator is spread: by rendezvous hashing with
// weights (Thaler and Ravishankar, 1998), so that a change of one region moves only keys of that region. It uses whole
// numbers, because regions whose processors round differently have to agree. It is immutable.
type Homes struct {
	regions []uint32 // AuthorityID of their names
	parts   []uint32
}

// NewHomes returns the homes of a layout.
func NewHomes(l *Layout) *Homes {
	h := &Homes{}
	most := uint64(1)
	for i := range l.Regions {
		most = max(most, uint64(l.Regions[i].weight()))
	}
	for i := range l.Regions {
		w := uint64(l.Regions[i].weight())
		h.regions = append(h.regions, AuthorityID(l.Regions[i].Name))
		h.parts = append(h.parts, uint32((w*homeParts+most-1)/most))
	}
	return h
}

// Of returns the AuthorityID of the region that coordinates key.
func (h *Homes) Of(key Key) (region uint32) {
	best := uint64(0)
	for i, id := range h.regions {
		for j := range h.parts[i] {
			if x := mix(key[0] ^ mix(key[1]^mix(uint64(id)<<32|uint64(j)))); x > best {
				region, best = id, x
			}
		}
	}
	return region
}

// mix distributes the bits of h (the finalizer of MurmurHash3, Appleby 2011).
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
