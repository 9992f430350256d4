package federation

import (
	"cmp"
	"slices"
	"time"
)

const (
	// lateBoot is how long after the newest request of a region one with a lower Seq, of another boot, is an old message
	// and not that of an owner whose clock is behind.
	lateBoot = 10 * time.Second
	// maxRegions is the most regions with requests for one key.
	maxRegions = 256
)

// PoolLines records what each region has of one window of a pool, without the count of the pool itself. The zero value
// has no regions. The caller guards it.
type PoolLines struct {
	lines []line // sorted by region
}

// line contains what a region has of a window.
type line struct {
	region  string
	boot    uint64
	seq     uint64 // of the newest request
	have    uint64 // hits that boot has
	left    uint64 // the part of them that may be unspent
	askedAt int64
	reclaim int64 // nanoseconds of silence after which left is credited; 0: never
	note    []byte
}

// PoolChange is how a request changes the count of a pool before anything is lent.
type PoolChange struct {
	Charge uint64 // hits that the region has, and its line lacks
	Credit uint64 // hits that the region has returned, or never got
	First  bool   // the region had no line
}

// Receive records what r, a request of that region at now, says of window w. It returns false, and changes nothing, if r
// is older than a previous request, or of one region too many.
func (b *PoolLines) Receive(now int64, region string, r *PoolRequest, w int64) (c PoolChange, ok bool) {
	l, first := b.line(region)
	if l == nil || r.Seq <= l.seq && (r.Boot == l.boot || now-l.askedAt < int64(lateBoot)) {
		return c, false
	}
	have, left, was := r.Have, r.Left, l.have
	if r.Window != w {
		have, left = 0, 0
	}
	if l.boot != r.Boot {
		was = 0 // what the earlier boot had stays charged
		if l.reclaim > 0 {
			c.Credit = l.left // apart from this: a life ends before the next one begins
		}
	}
	c.First = first
	if have > was { // the record of a grant was lost
		c.Charge = have - was
	} else {
		c.Credit += was - have
	}
	*l = line{
		region: region, boot: r.Boot, seq: r.Seq, have: have, left: left, askedAt: now, reclaim: int64(r.Reclaim), note: slices.Clone(r.Note),
	}
	return c, true
}

// Reclaim takes the unspent hits of holders that have been silent for too long, apart from that holder's own. It returns
// the hits to credit. The hits that they have spent after their newest report are among them, so these can be admitted
// above the limit.
func (b *PoolLines) Reclaim(now int64, holder string) (credit uint64) {
	for i := range b.lines {
		l := &b.lines[i]
		if l.region == holder || l.reclaim <= 0 || l.left == 0 || now-l.askedAt < l.reclaim+int64(reclaimMargin) {
			continue
		}
		credit += l.left
		l.have -= l.left
		l.left = 0
	}
	return credit
}

// Settle records that region has spent only r.Past of window w, which is that of b and has ended. It returns the hits to
// credit.
func (b *PoolLines) Settle(region string, w int64, r *PoolRequest) (credit uint64) {
	if r.Past.Window != w {
		return 0
	}
	i, found := b.find(region)
	if !found || b.lines[i].boot != r.Boot || r.Past.Have >= b.lines[i].have {
		return 0
	}
	l := &b.lines[i]
	credit = l.have - r.Past.Have
	l.have = r.Past.Have
	return credit
}

// Lend adds hits to what region, which has a line, has. It returns what the region has then.
func (b *PoolLines) Lend(region string, hits uint64) (total uint64) {
	l, _ := b.line(region)
	l.have += hits
	l.left += hits
	return l.have
}

// line returns the line of region, which it adds if necessary, or nil if there are too many.
func (b *PoolLines) line(region string) (l *line, added bool) {
	i, found := b.find(region)
	if !found {
		if len(b.lines) >= maxRegions {
			return nil, false
		}
		b.lines = slices.Insert(b.lines, i, line{region: region})
	}
	return &b.lines[i], !found
}

func (b *PoolLines) find(region string) (int, bool) {
	return slices.BinarySearchFunc(b.lines, region, func(l line, region string) int { return cmp.Compare(l.region, region) })
}

// Others returns the lines of the regions other than region.
func (b *PoolLines) Others(now int64, region string) (ls []RegionLine) {
	for i := range b.lines {
		if l := &b.lines[i]; l.region != region {
			ls = append(ls, RegionLine{l.region, l.have, l.left, time.Duration(max(0, now-l.askedAt)), l.note})
		}
	}
	return ls
}
