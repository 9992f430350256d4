package owner

import "math/bits"

const (
	slotBits  = 8
	pageSlots = 1 << slotBits // 12 KiB: made under the shard's lock, so that it has to be quick
)

// pages are slots for entries, probed linearly and in a circle. Pages are made when they are first needed. A key's home
// rises with its hash, whatever the size, so that slots move from one size to another in order.
type pages struct {
	size int
	page [][]entry // nil: all its slots are empty
}

func newPages(size int) pages {
	return pages{size, make([][]entry, (size+pageSlots-1)/pageSlots)}
}

// home is where the search for a key with hash h begins. The shard's bits say nothing any more.
func (p *pages) home(h uint64) int {
	i, _ := bits.Mul64(h<<shardBits, uint64(p.size))
	return int(i)
}

func (p *pages) next(i int) int {
	if i++; i == p.size {
		return 0
	}
	return i
}

// at is slot i; nil when its page is not there.
func (p *pages) at(i int) *entry {
	if page := p.page[i>>slotBits]; page != nil {
		return &page[i&(pageSlots-1)]
	}
	return nil
}

// occupied is slot i if it holds an entry, else nil.
func (p *pages) occupied(i int) *entry {
	if e := p.at(i); e != nil && !e.empty() {
		return e
	}
	return nil
}

// probe is the entry of key k in the chain from slot i on; nil if there is none.
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

// place puts e into the first empty slot from i on. spare, if it is not nil, is an empty page that may be used.
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

// open makes page n.
func (p *pages) open(n int, spare *[]entry) {
	if size := min(pageSlots, p.size-n<<slotBits); size == len(*spare) {
		p.page[n], *spare = *spare, nil
	} else {
		p.page[n] = make([]entry, size)
	}
}

// close takes page n away if it holds nothing, else it is nil.
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

// each calls f for the entries in slots from at to end.
func (p *pages) each(at, end int, f func(*entry)) {
	for ; at < min(end, p.size); at++ {
		if e := p.occupied(at); e != nil {
			f(e)
		}
	}
}
