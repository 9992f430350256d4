package owner

import (
	"math"
	"slices"
	"time"

	"github.com/keyward/keyward/limit"
)

const (
	sketchRows    = 4
	sketchBits    = 12
	sketchColumns = 1 << sketchBits // of one shard; 2^18 over all of them
	maxSketches   = 8
	minSketchAge  = 10 * time.Second
)

// sketch is a conservative count-min of hits in windows of one length, for keys that found no place in a table. An
// estimate is never below the truth, so it never admits too much. Guarded by the shard's mu.
type sketch struct {
	window time.Duration // 0: shared by all lengths that found no sketch of their own
	turn   int8          // of windows whose counts outlast them by one: 1 and 2 in turn; else 0
	end    int64         // when all that it counts has passed
	kinds  uint8         // whose hits it has counted, by kind: it knows nothing of others', however full it is
	cells  []uint32      // rows one after another; saturating
}

// turn is which of its sketches counts window w of rule r, and when they end.
func turn(r limit.Rule, w int64) (n int8, end int64) {
	if r.Algorithm == limit.FixedWindow {
		return 0, r.End(w)
	}
	return int8(1 + w&1), r.End(w + 1)
}

// sketchFor is the sketch that counts window w of rule r, emptied if its own has passed. Without grow it may be nil.
func (s *shard) sketchFor(r limit.Rule, w, now int64, grow bool) *sketch {
	var k *sketch
	window := time.Duration(r.End(0))
	n, end := turn(r, w)
	for i := range s.sketches {
		if x := &s.sketches[i]; x.window == window && x.turn == n || x.window == 0 {
			k = x
			break
		}
	}
	if k == nil {
		if !grow {
			return nil
		}
		if len(s.sketches) == maxSketches-1 {
			window = 0
		}
		s.sketches = append(s.sketches, sketch{window: window, turn: n, end: now, cells: make([]uint32, sketchRows*sketchColumns)})
		k = &s.sketches[len(s.sketches)-1]
	}
	if k.end <= now {
		clear(k.cells)
		k.end, k.kinds = now, 0
	}
	if grow {
		k.end = max(k.end, end)
	}
	return k
}

// estimate is at least the hits of h's key that a sketch has counted and that still weigh.
func (s *shard) estimate(h *hit) uint64 {
	if len(s.sketches) == 0 {
		return 0
	}
	w := h.rule.Index(h.now)
	est := s.sketchFor(h.rule, w, h.now, false).of(h.kind).estimate(sketchHash(h.hash, h.kind, w))
	if h.rule.Algorithm != limit.FixedWindow {
		est = saturatingAdd(est, s.sketchFor(h.rule, w-1, h.now, false).of(h.kind).estimate(sketchHash(h.hash, h.kind, w-1)))
	}
	return est
}

// countInSketch answers h and charges it to the sketch.
func (s *shard) countInSketch(h *hit, d *limit.Decision) {
	est := s.estimate(h)
	s.addToSketch(h, est)
	flat := *h
	flat.rule = h.flat()
	flat.answer(limit.Tally{Window: flat.rule.Index(h.now), Charged: saturatingAdd(est, h.extra)}, d)
}

// addToSketch charges h, whose key has estimate est.
func (s *shard) addToSketch(h *hit, est uint64) {
	w := h.rule.Index(h.now)
	k := s.sketchFor(h.rule, w, h.now, true)
	k.kinds |= 1 << h.kind
	k.add(sketchHash(h.hash, h.kind, w), h.Hits)
	if est == 0 {
		s.counts.overflowKeys++
	}
	s.counts.overflowCharges++
}

// sketchHash tells kinds and windows of one key apart.
func sketchHash(h uint64, k kind, window int64) uint64 {
	return finish(h ^ uint64(k+1)*0xD6E8FEB86659FD93 ^ finish(uint64(window)))
}

func cell(h uint64, row int) int {
	return row*sketchColumns + int((uint32(h)+uint32(row)*uint32(h>>32|1))>>(32-sketchBits))
}

// of is k if it has counted hits of that kind, else nil.
func (k *sketch) of(x kind) *sketch {
	if k == nil || k.kinds>>x&1 == 0 {
		return nil
	}
	return k
}

// estimate is at least the hits counted for h. Cells that are full say nothing but "more".
func (k *sketch) estimate(h uint64) uint64 {
	if k == nil || len(k.cells) == 0 {
		return 0
	}
	least := uint32(math.MaxUint32)
	for row := range sketchRows {
		least = min(least, k.cells[cell(h, row)])
	}
	if least == math.MaxUint32 {
		return math.MaxUint64
	}
	return uint64(least)
}

// add counts hits for h and raises no cell further than h's own estimate needs.
func (k *sketch) add(h, hits uint64) {
	sum := k.estimate(h)
	if sum += hits; sum < hits || sum > math.MaxUint32 {
		sum = math.MaxUint32
	}
	for row := range sketchRows {
		c := &k.cells[cell(h, row)]
		*c = max(*c, uint32(sum))
	}
}

// dropSketches lets go of the sketches that a whole window has not needed.
func (s *shard) dropSketches(now int64) {
	s.sketches = slices.DeleteFunc(s.sketches, func(k sketch) bool {
		return k.end+int64(max(k.window, minSketchAge)) <= now
	})
}
