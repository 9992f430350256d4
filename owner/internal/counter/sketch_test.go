package counter

import (
	"math"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

// addHits counts hits for h and raises no cell further than the estimate of h needs.
func addHits(k *sketch, h, hits uint64) { k.raise(h, limit.SaturatingAdd(k.estimate(h), hits)) }

// sketchOf returns the sketch that counts window w of rule r.
func sketchOf(p *sketchPart, r limit.Rule, w, now int64) *sketch {
	n, end := phase(r, w)
	k := p.at(time.Duration(r.End(0)), n, now)
	k.end = max(k.end, end)
	return k
}

func TestSketchNeverUnderestimates(t *testing.T) {
	rnd := random(1)
	s := &sketchPart{}
	r := limit.Rule{Window: time.Minute, Limit: 10}
	k := sketchOf(s, r, r.Index(t0), t0)
	truth := map[uint64]uint64{}
	for range 100_000 {
		h := Mix(rnd.Uint64N(30_000))
		n := rnd.Uint64N(4)
		addHits(k, h, n)
		truth[h] += n
	}
	excess := uint64(0)
	for h, n := range truth {
		e := k.estimate(h)
		if e < n {
			t.Fatalf("estimate %d of %d", e, n)
		}
		excess += e - n
	}
	if mean := float64(excess) / float64(len(truth)); mean > 100 {
		t.Errorf("mean excess %v", mean)
	}
}

func TestSketchSaturates(t *testing.T) {
	k := &sketch{cells: make([]uint32, sketchRows*sketchColumns)}
	addHits(k, 1, math.MaxUint32-1)
	if e := k.estimate(1); e != math.MaxUint32-1 {
		t.Errorf("estimate %d", e)
	}
	if addHits(k, 2, 1<<40); k.estimate(2) != math.MaxUint64 {
		t.Errorf("estimate %d of 2^40", k.estimate(2))
	}
	for _, n := range []uint64{1, math.MaxUint64, 1 << 63} {
		if addHits(k, 1, n); k.estimate(1) != math.MaxUint64 {
			t.Errorf("estimate %d of a full cell", k.estimate(1))
		}
	}
}

func TestSketchesEndWithTheirWindow(t *testing.T) {
	s := &sketchPart{}
	r := limit.Rule{Window: time.Minute}
	addHits(sketchOf(s, r, r.Index(t0), t0), 5, 3)
	if e := sketchOf(s, r, r.Index(t0+59*second), t0+59*second).estimate(5); e != 3 {
		t.Errorf("estimate %d within the window", e)
	}
	if e := sketchOf(s, r, r.Index(t0+60*second), t0+60*second).estimate(5); e != 0 {
		t.Errorf("estimate %d after the window", e)
	}
	k := &Sketches{}
	k.parts[7].list = s.list
	k.count.Store(int64(len(s.list)))
	if k.Drop(7, t0+60*second); k.count.Load() != 2 {
		t.Error("dropped at once")
	}
	if k.Drop(7, t0+200*second); k.count.Load() != 0 || len(k.parts[7].list) != 0 {
		t.Error("never dropped")
	}
}

// TestManyWindowsShareASketch requires that memory is bounded for any number of window lengths, and that no length
// loses its count early.
func TestManyWindowsShareASketch(t *testing.T) {
	s := &sketchPart{}
	const lengths = 40
	for i := range lengths {
		if i >= maxSketches-1 {
			i = lengths + maxSketches - 2 - i // the longest first
		}
		r := limit.Rule{Window: time.Duration(i+1) * time.Minute}
		addHits(sketchOf(s, r, r.Index(t0), t0), sketchHash(uint64(i), TableOwned, r.Index(t0)), 2)
	}
	if len(s.list) != maxSketches {
		t.Fatalf("%d sketches", len(s.list))
	}
	for i := range lengths {
		r := limit.Rule{Window: time.Duration(i+1) * time.Minute}
		last := r.End(r.Index(t0)) - 1
		if e := sketchOf(s, r, r.Index(last), last).estimate(sketchHash(uint64(i), TableOwned, r.Index(last))); e < 2 {
			t.Errorf("%v: estimate %d at the window's last instant", r.Window, e)
		}
	}
}
