package counter

import "math/bits"

const (
	slotBits  = 8
	pageSlots = 1 << slotBits // 12 KiB, small because a page is allocated under a lock
)

// pages is an array of slots for entries, probed linearly and in a circle. Its pages are allocated when they are first
// needed. The home of a key rises with its hash at any size, so entries move from one size to another in order.
type pages struct {
	size int
	page [][]entry // nil if all its slots are empty
}

func newPages(size int) pages {
	return pages{size, make([][]entry, (size+pageSlots-1)/pageSlots)}
}

// home returns the slot at which the search for a key with hash h begins. It ignores the bits that select the shard.
func (p *pages) home(h uint64) int {
	i, _ := bits.Mul64(h<<ShardBits, uint64(p.size))
	return int(i)
}

func (p *pages) next(i int) int {
	if i++; i == p.size {
		return 0
	}
	return i
}

// at returns slot i, or nil if its page is not allocated.
func (p *pages) at(i int) *entry {
	if page := p.page[i>>slotBits]; page != nil {
		return &page[i&(pageSlots-1)]
	}
	return nil
}

// occupied returns the entry in slot i, or nil if the slot is empty.
func (p *pages) occupied(i int) *entry {
	if e := p.at(i); e != nil && !e.empty() {
		return e
	}
	return nil
}

// probe returns the entry of key k in the chain that begins at slot i, or nil.
func (p *pages) probe(i int, k Key) *entry {
	for {
		page := p.page[i>>slotBits]
		if page == nil {
			return nil
		}
		for j := i & (pageSlots - 1); j < len(page); j++ {
			e := &page[j]
			if e.empty() {
				return nil
			}
			if e.key == k {
				return e
			}
		}
		if i = (i | (pageSlots - 1)) + 1; i >= p.size {
			i = 0
		}
	}
}

// place copies e into the first empty slot from i on. It may use *spare, an empty page, instead of allocating one.
func (p *pages) place(i int, e *entry, spare *[]entry) *entry {
	for p.occupied(i) != nil {
		i = p.next(i)
	}
	to := p.at(i)
	if to == nil {
		p.open(i>>slotBits, spare)
		to = p.at(i)
	}
	*to = *e
	return to
}

// open adds page n.
func (p *pages) open(n int, spare *[]entry) {
	if size := min(pageSlots, p.size-n<<slotBits); size == len(*spare) {
		p.page[n], *spare = *spare, nil
	} else {
		p.page[n] = make([]entry, size)
	}
}

// close removes page n if it is empty, and returns it. Otherwise it returns nil.
func (p *pages) close(n int) []entry {
	page := p.page[n]
	for i := range page {
		if !page[i].empty() {
			return nil
		}
	}
	p.page[n] = nil
	return page
}

// each calls f for the entries in slots at to end-1.
func (p *pages) each(at, end int, f func(*entry)) {
	for ; at < min(end, p.size); at++ {
		if e := p.occupied(at); e != nil {
			f(e)
		}
	}
}
