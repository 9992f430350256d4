package owner

import (
	"math"
	"testing"
	"time"

	"github.com/keyward/keyward/limit"
)

func TestSketchNeverUnderestimates(t *testing.T) {
	rnd := random(1)
	s := &shard{}
	r := limit.Rule{Window: time.Minute, Limit: 10}
	k := s.sketchFor(r, r.Index(t0), t0, true)
	truth := map[uint64]uint64{}
	for range 100_000 {
		h := finish(rnd.Uint64N(30_000))
		n := rnd.Uint64N(4)
		k.add(h, n)
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
	k.add(1, math.MaxUint32-1)
	if e := k.estimate(1); e != math.MaxUint32-1 {
		t.Errorf("estimate %d", e)
	}
	if k.add(2, 1<<40); k.estimate(2) != math.MaxUint64 {
		t.Errorf("estimate %d of 2^40", k.estimate(2))
	}
	for _, n := range []uint64{1, math.MaxUint64, 1 << 63} {
		if k.add(1, n); k.estimate(1) != math.MaxUint64 {
			t.Errorf("estimate %d of a full cell", k.estimate(1))
		}
	}
}

func TestSketchesEndWithTheirWindow(t *testing.T) {
	s := &shard{}
	r := limit.Rule{Window: time.Minute}
	s.sketchFor(r, r.Index(t0), t0, true).add(5, 3)
	if e := s.sketchFor(r, r.Index(t0+59*second), t0+59*second, false).estimate(5); e != 3 {
		t.Errorf("estimate %d within the window", e)
	}
	if e := s.sketchFor(r, r.Index(t0+60*second), t0+60*second, false).estimate(5); e != 0 {
		t.Errorf("estimate %d after the window", e)
	}
	if s.dropSketches(t0 + 60*second); len(s.sketches) != 1 {
		t.Error("dropped at once")
	}
	if s.dropSketches(t0 + 200*second); len(s.sketches) != 0 {
		t.Error("never dropped")
	}
}

// However many lengths of windows there are, memory is bounded, and no length loses its count early.
func TestManyWindowsShareASketch(t *testing.T) {
	s := &shard{}
	const lengths = 40
	for i := range lengths {
		if i >= maxSketches-1 {
			i = lengths + maxSketches - 2 - i // the longest first
		}
		r := limit.Rule{Window: time.Duration(i+1) * time.Minute}
		s.sketchFor(r, r.Index(t0), t0, true).add(sketchHash(uint64(i), owned, r.Index(t0)), 2)
	}
	if len(s.sketches) != maxSketches {
		t.Fatalf("%d sketches", len(s.sketches))
	}
	for i := range lengths {
		r := limit.Rule{Window: time.Duration(i+1) * time.Minute}
		last := r.End(r.Index(t0)) - 1
		if e := s.sketchFor(r, r.Index(last), last, false).estimate(sketchHash(uint64(i), owned, r.Index(last))); e < 2 {
			t.Errorf("%v: estimate %d at the window's last instant", r.Window, e)
		}
	}
}
