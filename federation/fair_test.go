package federation

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

// Over 1,000 random matrices of demand, each tenant gets in each region what a flat weighted max-min division of the limit
// would give it, within one lot of each region and the largest request; nearly always, within a single lot. Nothing is
// wasted, and the limit holds.
func TestFairOverRegions(t *testing.T) {
	single, worst := 0, 0.0
	var admitted, could float64
	for seed, n := uint64(0), 0; n < 1000; seed++ {
		w := fairMatrix(seed)
		w.run()
		p, lots, got := w.furthest()
		if !w.attainable() {
			continue
		}
		n++
		if got > uint64(w.rule.Limit) {
			t.Fatalf("seed %d: %d of %d admitted", seed, got, w.rule.Limit)
		}
		if lots > float64(len(w.escrows)) {
			t.Errorf("seed %d: %d regions, limit %d: %+v is %.1f lots from its ideal", seed, len(w.escrows), w.rule.Limit, *p, lots)
		}
		if lots <= 1 {
			single++
		}
		worst = max(worst, lots)
		for _, p := range w.pairs {
			could += p.ideal
		}
		admitted += float64(got)
	}
	if single < 990 {
		t.Errorf("only %d of 1000 within a single lot", single)
	}
	if admitted < 0.99*could {
		t.Errorf("%.0f of %.0f hits admitted", admitted, could)
	}
	t.Logf("%d of 1000 within one lot, the worst within %.2f; %.2f %% used", single, worst, 100*admitted/could)
}

// alterNotes changes the notes that regions receive.
func (w *fairWorld) alterNotes(change func(*note)) {
	w.alter = func(_ int, g *PoolGrant) {
		for i := range g.Others {
			if n, ok := decodeNote(g.Others[i].Note); ok {
				change(&n)
				g.Others[i].Note = n.encode()
			}
		}
	}
}

// twoRegions returns a world without floors, in which each region has the given tenants.
func twoRegions(tenants ...demandPair) *fairWorld {
	w := newFairWorld(rand.New(rand.NewPCG(1, 1)), limit.Rule{Window: 10 * time.Second, Limit: 1000}, 2, 0)
	for i := range tenants {
		p := &tenants[i]
		p.from, p.hits, p.weight = w.now+p.from, 1, max(1, p.weight)
		w.pairs = append(w.pairs, p)
	}
	return w
}

// A tenant that comes first and asks for more than the limit gets half of it, like the one that comes later. It would get
// more if regions did not tell what their tenants got.
func TestEarlyHog(t *testing.T) {
	for _, sabotaged := range []bool{false, true} {
		w := twoRegions(demandPair{tenant: 1, rate: 200}, demandPair{region: 1, tenant: 2, rate: 65, from: int64(2 * time.Second)})
		if sabotaged {
			w.alterNotes(func(n *note) {
				for i := range n.tenants {
					n.tenants[i].got = 0
				}
			})
		}
		w.run()
		p, lots, _ := w.furthest()
		if sabotaged != (lots > 2) {
			t.Errorf("sabotaged %v: %.1f lots from the ideal: %+v", sabotaged, lots, *p)
		}
		t.Logf("sabotaged %v: the first one got %d of 1000", sabotaged, w.pairs[0].got)
	}
}

// A region weighs as much as its tenants that are not satisfied. If it weighed as much as all of them, its hungry tenant
// would get what the heavy one does not want, so that two levels would not be as fair as one.
func TestRegionWeighsWhatItsHungryTenantsDo(t *testing.T) {
	for _, sabotaged := range []bool{false, true} {
		w := twoRegions(demandPair{tenant: 1, weight: 9, rate: 10}, demandPair{tenant: 2, rate: 200}, demandPair{region: 1, tenant: 3, rate: 200})
		if sabotaged {
			w.alterNotes(func(n *note) {
				sum := noteTenant{tenant: 99}
				for _, x := range n.tenants {
					sum.weight, sum.rate, sum.got = sum.weight+x.weight, sum.rate+x.rate, sum.got+x.got
				}
				n.tenants = []noteTenant{sum}
			})
		}
		w.run()
		p, lots, _ := w.furthest()
		if sabotaged != (lots > 2) {
			t.Errorf("sabotaged %v: %.1f lots from the ideal: %+v", sabotaged, lots, *p)
		}
		t.Logf("sabotaged %v: the hungry tenants got %d and %d", sabotaged, w.pairs[1].got, w.pairs[2].got)
	}
}

// A region that asks for more than it needs gets at most its weighted share of one window, and the others get theirs. In
// the next window that it is honest, all have again what they had before.
func TestInflatedDemand(t *testing.T) {
	w := twoRegions(demandPair{tenant: 1, rate: 15}, demandPair{region: 1, tenant: 2, rate: 200}, demandPair{region: 1, tenant: 3, weight: 2, rate: 200})
	const lot = 1000.0 / shares
	var got [3][3]float64
	for window := range got {
		w.pairs[0].rate = []float64{15, 300, 15}[window]
		w.run()
		for i, p := range w.pairs {
			got[window][i] = float64(p.got)
		}
	}
	if gain := got[1][0] - got[0][0]; gain < 50 || gain > 250-got[0][0]+2*lot {
		t.Errorf("%.0f hits gained by %.0f: a quarter of the limit is 250", gain, got[1][0])
	}
	if got[1][1] < 250-2*lot || got[1][2] < 500-2*lot {
		t.Errorf("the others got %.0f and %.0f", got[1][1], got[1][2])
	}
	for i := range got[2] {
		if math.Abs(got[2][i]-got[0][i]) > 2*lot {
			t.Errorf("tenant %d got %.0f before, and %.0f afterwards", i, got[0][i], got[2][i])
		}
	}
	t.Logf("got %v", got)
}

// What a region claims cannot keep others from what it neither has nor asks for.
func TestHostileNote(t *testing.T) {
	w := twoRegions(demandPair{tenant: 1, rate: 200}, demandPair{region: 1, tenant: 2, rate: 1})
	w.alterNotes(func(n *note) {
		n.floor = math.MaxUint32
		for i := range n.tenants {
			n.tenants[i].got = maxNoteHits
		}
	})
	w.run()
	if w.pairs[0].got < 900 {
		t.Errorf("%d of 1000 admitted next to a region that claims to have everything", w.pairs[0].got)
	}
}

// More tenants than have rows of their own share one.
func TestManyTenants(t *testing.T) {
	w := twoRegions()
	for i := range 100 {
		p := &demandPair{region: 0, tenant: uint64(i+1) * 0x9e3779b97f4a7c15, weight: 1, rate: 0.9, hits: 1, from: w.now}
		if i == 99 {
			p.region, p.rate, p.weight = 1, 200, 100
		}
		w.pairs = append(w.pairs, p)
	}
	w.run()
	sum := uint64(0)
	for _, p := range w.pairs[:99] {
		sum += p.got
	}
	// 32 have rows, and the digests of the other 67 have about 42 different beginnings, of which each weighs 1.
	if hog := w.pairs[99].got; hog < 500 || hog > 630 || sum < 370 {
		t.Errorf("99 tenants got %d, and the one that weighs as much %d", sum, hog)
	}
	if n := len(w.escrows[0].tenants.rows); n != noteTenants+1 {
		t.Errorf("%d rows", n)
	}
}

// A tenant that asks so seldom that the note of its region is often older than 3 s gets its share, too. Once it has gone,
// what it would have had is given out.
func TestSeldomTenant(t *testing.T) {
	w := newFairWorld(rand.New(rand.NewPCG(1, 1)), limit.Rule{Window: 2 * time.Minute, Limit: 100}, 2, 0)
	hog := &demandPair{tenant: 1, weight: 1, rate: 5, hits: 1, from: w.now + int64(10*time.Second)}
	seldom := &demandPair{region: 1, tenant: 2, weight: 1, rate: 0.25, hits: 1, from: w.now}
	w.pairs = []*demandPair{hog, seldom}
	w.run()
	if seldom.got+3 < seldom.offered {
		t.Errorf("%d of %d hits admitted", seldom.got, seldom.offered)
	}
	end := w.rule.End(w.rule.Index(w.now))
	hog.from, hog.got, seldom.got = 0, 0, 0
	w.runUntil(end - int64(time.Minute))
	seldom.next = math.MaxInt64
	before := hog.got
	w.runUntil(end - int64(10*time.Second))
	if hog.got+seldom.got < 95 {
		t.Errorf("%d, then %d and %d of 100 admitted", before, hog.got, seldom.got)
	}
}
