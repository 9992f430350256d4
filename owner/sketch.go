package owner

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
	minSketchAge  = 10 * time.Second
)

// sketches count the hits of keys that found no place in a table. They are of the whole Node, not of its shards: the seed is the same on all
// members, so that a member that gives keys away can give what it has counted along. Whoever knows the seed can aim at the cells of a key, but
// only among keys of its own domain: a sketch says nothing of domains whose hits it has not counted.
type sketches struct {
	seed  [2]uint64
	live  atomic.Int64 // sketches in all parts
	parts [shards]sketchPart
}

// sketchPart is a part of the sketches, by the key's hash. Its mutex is taken under a shard's, and nothing under it.
type sketchPart struct {
	mu   sync.Mutex
	list []sketch // guarded by mu
}

// sketch is a conservative count-min of hits in windows of one length. An estimate is never below the truth, so it never admits too much.
type sketch struct {
	window  time.Duration            // 0: shared by all lengths that found no sketch of their own
	turn    int8                     // 1 and 2, of windows in turn
	end     int64                    // when all that it counts has passed
	kinds   uint8                    // whose hits it has counted, by kind: it knows nothing of others', however full it is
	domains [domainSlots / 64]uint64 // the same, by domain
	cells   []uint32                 // rows one after another; saturating
}

// part is where the key of h is counted, and its hash there.
func (k *sketches) part(key Key) (*sketchPart, uint64) {
	h := hash(k.seed, key)
	return &k.parts[h>>(64-shardBits)], h
}

// turn is which of its sketches counts window w of rule r, and when they end. Windows take turns, so that what is counted of one window is not
// lost to members whose clocks are behind when this one begins the next.
func turn(r limit.Rule, w int64) (n int8, end int64) {
	if r.Algorithm != limit.FixedWindow {
		w++ // the counts outlast their window by one
	}
	return int8(1 + w&1), r.End(w)
}

// at is the sketch for windows of that length and turn, made if there is none, and emptied if what it counted has passed. The part is locked.
func (p *sketchPart) at(window time.Duration, n int8, now int64) *sketch {
	i := slices.IndexFunc(p.list, func(x sketch) bool { return x.window == window && x.turn == n || x.window == 0 })
	if i < 0 {
		if len(p.list) == maxSketches-1 {
			window = 0
		}
		i = len(p.list)
		p.list = append(p.list, sketch{window: window, turn: n, end: now, cells: make([]uint32, sketchRows*sketchColumns)})
	}
	k := &p.list[i]
	if k.end <= now {
		clear(k.cells)
		k.end, k.kinds, k.domains = now, 0, [domainSlots / 64]uint64{}
	}
	return k
}

// estimate is at least the hits that were counted in window w for h, whose key has hash x.
func (p *sketchPart) estimate(h *shardOp, x uint64, w int64) (most uint64) {
	window := time.Duration(h.rule.End(0))
	n, _ := turn(h.rule, w)
	for i := range p.list {
		if k := &p.list[i]; k.end+int64(ahead) > h.now && (k.window == window && k.turn == n || k.window == 0) && k.knows(h) {
			most = max(most, k.estimate(sketchHash(x, h.table, w)))
		}
	}
	return most
}

// estimate is at least the hits of h's key that a sketch has counted and that still weigh.
func (k *sketches) estimate(h *shardOp) uint64 {
	if k.live.Load() == 0 {
		return 0
	}
	p, x := k.part(h.Key)
	p.mu.Lock()
	defer p.mu.Unlock()
	w := h.rule.Index(h.now)
	est := p.estimate(h, x, w)
	if h.rule.Algorithm != limit.FixedWindow {
		est = saturatingAdd(est, p.estimate(h, x, w-1))
	}
	return est
}

// estimateAt is at least the hits of h's key that a sketch has counted in window w.
func (k *sketches) estimateAt(h *shardOp, w int64) uint64 {
	p, x := k.part(h.Key)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.estimate(h, x, w)
}

// add charges h.
func (k *sketches) add(h *shardOp) {
	w := h.rule.Index(h.now)
	k.raise(h, w, func(sum uint64) uint64 { return saturatingAdd(sum, h.Hits) })
}

// raise makes the estimate of h's key in window w what to makes of it, unless it is more already.
func (k *sketches) raise(h *shardOp, w int64, to func(uint64) uint64) {
	p, x := k.part(h.Key)
	p.mu.Lock()
	defer p.mu.Unlock()
	sum := to(p.estimate(h, x, w))
	n, end := turn(h.rule, w)
	s := k.grow(p, time.Duration(h.rule.End(0)), n, h.now)
	s.end = max(s.end, end)
	s.kinds |= 1 << h.table
	s.domains[h.Domain%domainSlots/64] |= 1 << (h.Domain % 64)
	s.raise(sketchHash(x, h.table, w), sum)
}

// grow is at, counted.
func (k *sketches) grow(p *sketchPart, window time.Duration, n int8, now int64) *sketch {
	before := len(p.list)
	s := p.at(window, n, now)
	k.live.Add(int64(len(p.list) - before))
	return s
}

// countInSketch answers h and charges it to the sketch, unless a part of the limit has no room for it.
func (s *shard) countInSketch(h *shardOp, d *limit.Decision) {
	est := s.sketches.estimate(h)
	flat := *h
	flat.rule = h.flatRule()
	flat.answer(limit.Tally{Window: flat.rule.Index(h.now), Charged: saturatingAdd(est, h.elsewhere)}, d)
	if d.Over && h.partial {
		h.uncharged = true // see spares
		return
	}
	s.addToSketch(h, est)
}

// addToSketch charges h, whose key has estimate est.
func (s *shard) addToSketch(h *shardOp, est uint64) {
	s.sketches.add(h)
	if est == 0 {
		s.counts.overflowKeys++
	}
	s.counts.overflowCharges++
}

// moveToSketch has the sketch count what is known of a key that finds no place in the table: it may be refused too early, and is not forgotten.
func (s *shard) moveToSketch(h *shardOp, st *limit.State) {
	s.counts.overflowKeys++
	if h.rule.Algorithm != limit.FixedWindow {
		if used := h.rule.Used(st, h.now); used > 0 {
			s.sketches.raise(h, h.rule.Index(h.now), func(uint64) uint64 { return used })
		}
		return
	}
	current := h.rule.Index(h.now)
	for _, f := range st.Slots {
		if f.At < current {
			continue
		}
		if used := h.rule.Used(st, max(h.now, h.rule.End(f.At-1))); used > 0 { // another clock may be ahead
			s.sketches.raise(h, f.At, func(uint64) uint64 { return used })
		}
	}
}

// sketchHash tells kinds and windows of one key apart.
func sketchHash(h uint64, k tableKind, window int64) uint64 {
	return finish(h ^ uint64(k+1)*0xD6E8FEB86659FD93 ^ finish(uint64(window)))
}

func cell(h uint64, row int) int {
	return row*sketchColumns + int((uint32(h)+uint32(row)*uint32(h>>32|1))>>(32-sketchBits))
}

// knows reports whether k has counted hits of h's kind and domain.
func (k *sketch) knows(h *shardOp) bool {
	return k.kinds>>h.table&1 != 0 && k.domains[h.Domain%domainSlots/64]>>(h.Domain%64)&1 != 0
}

// estimate is at least the hits counted for h. Cells that are full say nothing but "more".
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

// raise makes h's estimate hits at least.
func (k *sketch) raise(h, hits uint64) {
	hits = min(hits, math.MaxUint32)
	for row := range sketchRows {
		c := &k.cells[cell(h, row)]
		*c = max(*c, uint32(hits))
	}
}

// drop lets go of the sketches of part i that a whole window has not needed.
func (k *sketches) drop(i int, now int64) {
	if k.live.Load() == 0 {
		return
	}
	p := &k.parts[i]
	p.mu.Lock()
	defer p.mu.Unlock()
	before := len(p.list)
	p.list = slices.DeleteFunc(p.list, func(s sketch) bool { return s.end+int64(max(s.window, minSketchAge)) <= now })
	k.live.Add(int64(len(p.list) - before))
}
