package sublease

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
)

// spread gives the world n keys, whose requests have a Zipf distribution with the exponent 1.
func (w *world) spread(n int, l Limit) {
	w.keys, w.byName = nil, map[string]*modelKey{}
	sums, sum := make([]float64, n), 0.0
	for i := range n {
		k := newKey(fmt.Sprint("key ", i), Print{uint64(i), 1}, l)
		w.keys, w.byName[k.name] = append(w.keys, k), k
		sum += 1 / float64(i+1)
		sums[i] = sum
	}
	w.modelKey = w.keys[0]
	w.pick = func() *modelKey {
		i, _ := slices.BinarySearch(sums, w.rng.Float64()*sum)
		return w.keys[i]
	}
}

// TestManyKeys has Envoys with many keys, most of which have few requests. It checks how many hits need no call, how many
// lots that takes, and how much of them is given back.
func TestManyKeys(t *testing.T) {
	for _, c := range []struct {
		keys, envoys  int
		limit         Limit
		without, lots float64 // part of the hits without a call, at least, and lots for each of them, at most
	}{
		{100, 1, Limit{100_000, time.Minute}, 0.98, 0.14},
		{1000, 1, Limit{100_000, time.Minute}, 0.84, 0.16},
		{10_000, 1, Limit{100_000, time.Minute}, 0.61, 0.17},
		{100, 3, Limit{100_000, time.Minute}, 0.97, 0.17},
		{1000, 3, Limit{100_000, time.Minute}, 0.7, 0.19},
		{10_000, 3, Limit{100_000, time.Minute}, 0.47, 0.21},
		{1000, 1, Limit{100_000, 10 * time.Second}, 0.81, 0.16},
		{1000, 1, Limit{600, time.Minute}, 0.48, 0.2},
	} {
		t.Run(fmt.Sprintf("%d keys, %d Envoys, %d in %v", c.keys, c.envoys, c.limit.Hits, c.limit.Window), func(t *testing.T) {
			t.Parallel()
			rates := make([]float64, c.envoys)
			for i := range rates {
				rates[i] = 2000 / float64(c.envoys)
			}
			w := newWorld(3, c.limit, c.envoys, rates...)
			w.spread(c.keys, c.limit)
			w.run(20 * time.Second) // until the leases are there
			without, asks, messages, before := w.without, w.asks, w.messages, w.totals()
			w.run(100 * time.Second)
			if faults := w.check(); len(faults) > 0 {
				t.Error(faults[:min(3, len(faults))])
			}
			after, hits := w.totals(), 2000*100.0
			without, asks, messages = w.without-without, w.asks-asks, w.messages-messages
			granted, returned := after.Granted-before.Granted, after.Returned-before.Returned
			part, lots := float64(without)/hits, float64(asks)/math.Max(1, float64(without))
			t.Logf("%.3f of the hits without a call, %.3f lots and %.3f messages for each of them, %.3f of %d hits in lots given back, %d keys with leases",
				part, lots, float64(messages)/float64(without), float64(returned)/float64(granted), granted, after.Keys)
			if part < c.without || lots > c.lots {
				t.Errorf("want at least %.3f and at most %.3f", c.without, c.lots)
			}
			if returned*7 > granted {
				t.Errorf("%d hits of %d are given back", returned, granted)
			}
		})
	}
}

// totals returns the sums of all books.
func (w *world) totals() (t BookTotals) {
	for _, s := range w.sidecars {
		x := s.book.Totals()
		t.Granted, t.Returned, t.Spent, t.Keys = t.Granted+x.Granted, t.Returned+x.Returned, t.Spent+x.Spent, t.Keys+x.Keys
	}
	return t
}

// TestSlowKey checks that a key with 2 requests a second spends its lots, and that what is left comes back while its hold
// lives.
func TestSlowKey(t *testing.T) {
	d := newDesk(t, Limit{10_000, time.Minute})
	d.now += 2 * second
	called, spent := 0, uint64(0)
	request := func() {
		if d.tokens() > 0 {
			d.spend(1)
			spent++
		} else if called++; d.Interest(d.now, 1, print, 1) {
			d.Lease(d.now, 1, print, key, d.limit)
		}
		d.tick(500 * time.Millisecond)
	}
	for range 60 {
		request()
	}
	if called > 8 || d.lots > 12 {
		t.Errorf("%d calls, and %d lots for %d hits", called, d.lots, spent)
	}
	if d.returned > 0 {
		t.Errorf("%d hits were given back while it was used", d.returned)
	}
	last := d.now
	for len(d.memory.leases) > 0 {
		d.tick(TickInterval)
	}
	if idle := time.Duration(d.now - last); idle > 3*time.Second || d.left+spent != 10_000 {
		t.Errorf("%d are left after %d hits and %v", d.left, spent, idle)
	}
}

// TestSlowTurn checks that no lot is asked for that will not be spent in its window.
func TestSlowTurn(t *testing.T) {
	d := newDesk(t, Limit{10_000, 2 * time.Second})
	for range 60 {
		if d.Interest(d.now, 1, print, 1) {
			d.Lease(d.now, 1, print, key, d.limit)
		}
		d.tick(700 * time.Millisecond)
	}
	if d.lots > 0 {
		t.Errorf("%d lots for a key with 3 requests in a window", d.lots)
	}
}

// TestSlowNearLimit checks that no lot stays in an Envoy with few requests if others will have spent the limit soon.
func TestSlowNearLimit(t *testing.T) {
	for used, want := range map[uint64]bool{0: true, 3000: true, 9000: false} {
		d := newDesk(t, Limit{10_000, time.Minute})
		d.now += 30 * second
		d.left -= used
		leased := false
		for range 20 {
			if d.tokens() > 0 {
				leased = true
				d.spend(1)
			} else if d.Interest(d.now, 1, print, 1) {
				d.Lease(d.now, 1, print, key, d.limit)
				d.touch(d.accounts[key])
				d.accounts[key].window = d.limit.rule().Index(d.now)
				d.Granted(d.now, Lot{KeyHits: KeyHits{Key: key, Window: d.accounts[key].window}, Left: d.left, Known: true})
			}
			d.tick(500 * time.Millisecond)
		}
		if leased != want {
			t.Errorf("%d of 10,000 are spent after half of the window: leased %v", used, leased)
		}
	}
}

// TestBusiestHaveRoom checks that a busy key takes the place of a slow one, and that the slow one does not ask for lots then.
func TestBusiestHaveRoom(t *testing.T) {
	d := newDesk(t, Limit{1_000_000, time.Hour})
	d.memory.room = 1
	slow, busy := Print{1, 7}, Print{2, 7}
	d.Lease(d.now, 1, slow, "slow", d.limit)
	d.tick(100 * time.Millisecond)
	if _, ok := d.memory.prints[slow]; !ok {
		t.Fatal("no lease")
	}
	for range 3 { // so its rate is known
		d.Interest(d.now, 1, busy, 100)
	}
	d.Lease(d.now, 1, busy, "busy", d.limit)
	for range 2 {
		d.now += int64(TickInterval)
		if asks := d.Tick(d.now).Asks; len(asks) > 0 { // another key could take a room that is free until the lot comes
			if _, ok := d.memory.prints[slow]; !ok {
				t.Error("the slow key lost its lease before the busy one has hits")
			}
			d.left -= asks[0].Hits
			d.Granted(d.now, Lot{KeyHits: asks[0].KeyHits, Left: d.left, Known: true})
			break
		}
	}
	d.tick(TickInterval)
	if _, ok := d.memory.prints[busy]; !ok {
		t.Error("the busy key has no lease")
	}
	for range 50 {
		for p, hits := range map[Print]int{slow: 2, busy: 20} {
			for range hits {
				if _, ok := d.memory.spend(d.now, p, 1); !ok {
					d.Interest(d.now, 1, p, 1)
				}
			}
		}
		d.tick(200 * time.Millisecond)
	}
	if _, ok := d.memory.prints[busy]; !ok || len(d.memory.leases) != 1 {
		t.Errorf("%d leases; the busy key has none", len(d.memory.leases))
	}
	before := d.lots
	for range 50 { // the busy one alone asks
		for range 8 {
			d.memory.spend(d.now, busy, 1)
		}
		d.Interest(d.now, 1, slow, 1)
		d.tick(400 * time.Millisecond)
	}
	if o := d.Totals(); o.Full == 0 || o.Full > 20 || d.lots-before > 60 {
		t.Errorf("%+v, %d lots", o, d.lots-before)
	}
}

// TestCosts has requests that take several hits. Most of them need no call, also if they are few and large.
func TestCosts(t *testing.T) {
	for name, c := range map[string]struct {
		rate, without float64
		least, most   uint32 // hits of a request
		limit         Limit
	}{
		"busy":           {200, 0.95, 1, 20, Limit{1_000_000, time.Minute}},
		"few":            {2, 0.7, 50, 50, Limit{100_000, time.Minute}},
		"unequal":        {5, 0.7, 1, 100, Limit{100_000, time.Minute}},
		"large":          {1.5, 0.5, 5000, 5000, Limit{10_000_000, time.Minute}},
		"near the limit": {20, 0.3, 1, 40, Limit{5000, 10 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(11, c.limit, 1, c.rate)
			w.cost = func() uint32 { return c.least + w.rng.Uint32N(c.most-c.least+1) }
			w.run(4 * time.Minute)
			if faults := w.check(); len(faults) > 0 {
				t.Error(faults)
			}
			all := uint64(0)
			for _, n := range w.admitted {
				all += n
			}
			o := w.totals()
			part := float64(w.without) / float64(all)
			t.Logf("%.3f of %d hits without a call, in %d lots; %.3f of the lots given back", part, all, w.asks, float64(o.Returned)/float64(o.Granted))
			if part < c.without {
				t.Errorf("want at least %.3f", c.without)
			}
		})
	}
}
