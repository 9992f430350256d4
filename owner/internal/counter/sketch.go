package counter

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

const (
	sketchRows    = 4
	sketchBits    = 12
	sketchColumns = 1 << sketchBits // of one shard; 2^18 over all of them
	maxSketches   = 12              // of one part

	// MaxSketches is the most sketches in all parts.
	MaxSketches  = Shards * maxSketches
	minSketchAge = 10 * time.Second
)

// Sketches count the hits of keys that found no room in a table. They belong to the Shared, not to its shards: the seed
// is the same on all members, so that a member that releases keys can send what it has counted of them. A client that
// knew the seed could choose keys that share cells, but only with keys of its own domain: a sketch contributes nothing
// to domains whose hits it has not counted. Sketches are safe for concurrent use.
type Sketches struct {
	seed  [2]uint64
	count atomic.Int64 // sketches in all parts
	parts [Shards]sketchPart
}

// sketchPart holds the sketches of one part of the keys, by their hash. Its mutex is taken under a shard's, and no
// lock is taken under it.
type sketchPart struct {
	mu   sync.Mutex
	list []sketch // guarded by mu
}

// sketch is a conservative count-min sketch of hits in windows of one length. It never underestimates, so it never
// admits too much.
type sketch struct {
	window  time.Duration            // 0: shared by all lengths that found no sketch of their own
	phase   int8                     // 1 or 2, alternating from window to window
	end     int64                    // when all that it counts has no effect any more
	tables  uint8                    // a bit for each table whose hits it has counted
	domains [domainSlots / 64]uint64 // a bit for each domain whose hits it has counted
	cells   []uint32                 // rows one after another; saturating
}

// Live reports whether there are any sketches.
func (k *Sketches) Live() bool { return k.count.Load() > 0 }

// Len returns the number of sketches in memory, which take 64 KiB each.
func (k *Sketches) Len() int { return int(k.count.Load()) }

// part returns where key is counted, and its hash there.
func (k *Sketches) part(key Key) (*sketchPart, uint64) {
	h := Hash(k.seed, key)
	return &k.parts[ShardOf(h)], h
}

// phase returns which sketch counts window w of rule r, and when that sketch ends. Windows alternate between two, so
// that the counts of one window are still there for members whose clocks are behind when this one begins the next.
func phase(r limit.Rule, w int64) (n int8, end int64) {
	if r.Algorithm != limit.FixedWindow {
		w++ // the counts outlast their window by one
	}
	return int8(1 + w&1), r.End(w)
}

// at returns the sketch of that phase for windows of that length. It adds one if there is none, and clears one that has
// ended. p is locked.
func (p *sketchPart) at(window time.Duration, n int8, now int64) *sketch {
	i := slices.IndexFunc(p.list, func(x sketch) bool { return x.window == window && x.phase == n || x.window == 0 })
	if i < 0 {
		if len(p.list) == maxSketches-1 {
			window = 0
		}
		i = len(p.list)
		p.list = append(p.list, sketch{window: window, phase: n, end: now, cells: make([]uint32, sketchRows*sketchColumns)})
	}
	k := &p.list[i]
	if k.end <= now {
		clear(k.cells)
		k.end, k.tables, k.domains = now, 0, [domainSlots / 64]uint64{}
	}
	return k
}

// estimate returns an upper bound of the hits counted in window w of r's key, whose hash in the part is x.
func (p *sketchPart) estimate(r *Ref, x uint64, w int64) (most uint64) {
	window := time.Duration(r.Rule.End(0))
	n, _ := phase(r.Rule, w)
	for i := range p.list {
		k := &p.list[i]
		if k.end+ahead > r.Now && (k.window == window && k.phase == n || k.window == 0) && k.counts(r) {
			most = max(most, k.estimate(sketchHash(x, r.Table, w)))
		}
	}
	return most
}

// Estimate returns an upper bound of the hits of r's key, in r's table, that sketches have counted and that still have
// an effect.
func (k *Sketches) Estimate(r Ref) uint64 {
	if !k.Live() {
		return 0
	}
	p, x := k.part(r.Key)
	p.mu.Lock()
	defer p.mu.Unlock()
	w := r.Rule.Index(r.Now)
	est := p.estimate(&r, x, w)
	if r.Rule.Algorithm != limit.FixedWindow {
		est = limit.SaturatingAdd(est, p.estimate(&r, x, w-1))
	}
	return est
}

// estimateAt returns an upper bound of the hits of r's key that sketches have counted in window w.
func (k *Sketches) estimateAt(r *Ref, w int64) uint64 {
	p, x := k.part(r.Key)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.estimate(r, x, w)
}

// Add charges hits to r's key.
func (k *Sketches) Add(r Ref, hits uint64) {
	k.raise(&r, r.Rule.Index(r.Now), func(sum uint64) uint64 { return limit.SaturatingAdd(sum, hits) })
}

// Keep makes the sketches count at least what st holds of r's key.
func (k *Sketches) Keep(r Ref, st *limit.State) {
	current := r.Rule.Index(r.Now)
	if r.Rule.Algorithm != limit.FixedWindow {
		if used := r.Rule.Used(st, r.Now); used > 0 {
			k.raise(&r, current, func(uint64) uint64 { return used })
		}
		return
	}
	for _, f := range st.Slots {
		if f.At < current {
			continue
		}
		if used := r.Rule.Used(st, max(r.Now, r.Rule.End(f.At-1))); used > 0 { // another clock may be ahead
			k.raise(&r, f.At, func(uint64) uint64 { return used })
		}
	}
}

// raise makes the estimate of r's key in window w at least what to returns for the present one.
func (k *Sketches) raise(r *Ref, w int64, to func(uint64) uint64) {
	p, x := k.part(r.Key)
	p.mu.Lock()
	defer p.mu.Unlock()
	sum := to(p.estimate(r, x, w))
	n, end := phase(r.Rule, w)
	s := k.counted(p, time.Duration(r.Rule.End(0)), n, r.Now)
	s.end = max(s.end, end)
	s.tables |= 1 << r.Table
	s.domains[r.Domain%domainSlots/64] |= 1 << (r.Domain % 64)
	s.raise(sketchHash(x, r.Table, w), sum)
}

// counted is p.at with an added sketch counted.
func (k *Sketches) counted(p *sketchPart, window time.Duration, n int8, now int64) *sketch {
	before := len(p.list)
	s := p.at(window, n, now)
	k.count.Add(int64(len(p.list) - before))
	return s
}

// Drop frees the sketches of part i that were not needed for a complete window.
func (k *Sketches) Drop(i int, now int64) {
	if !k.Live() {
		return
	}
	p := &k.parts[i]
	p.mu.Lock()
	defer p.mu.Unlock()
	before := len(p.list)
	p.list = slices.DeleteFunc(p.list, func(s sketch) bool { return s.end+int64(max(s.window, minSketchAge)) <= now })
	k.count.Add(int64(len(p.list) - before))
}

// sketchHash gives the tables and windows of one key different hashes.
func sketchHash(h uint64, t Table, window int64) uint64 {
	return Mix(h ^ uint64(t+1)*0xD6E8FEB86659FD93 ^ Mix(uint64(window)))
}

func cell(h uint64, row int) int {
	return row*sketchColumns + int((uint32(h)+uint32(row)*uint32(h>>32|1))>>(32-sketchBits))
}

// counts reports whether k has counted hits of r's table and domain.
func (k *sketch) counts(r *Ref) bool {
	return k.tables>>r.Table&1 != 0 && k.domains[r.Domain%domainSlots/64]>>(r.Domain%64)&1 != 0
}

// estimate returns an upper bound of the hits counted for h. A full cell has no upper bound.
func (k *sketch) estimate(h uint64) uint64 {
	least := uint32(math.MaxUint32)
	for row := range sketchRows {
		least = min(least, k.cells[cell(h, row)])
	}
	if least == math.MaxUint32 {
		return math.MaxUint64
	}
	return uint64(least)
}

// raise makes the estimate of h at least hits.
func (k *sketch) raise(h, hits uint64) {
	hits = min(hits, math.MaxUint32)
	for row := range sketchRows {
		c := &k.cells[cell(h, row)]
		*c = max(*c, uint32(hits))
	}
}
